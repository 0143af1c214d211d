//! Where cgroups are on this machine, and making and removing them there.
//!
//! On v1 each controller has a tree of its own and a cgroup is a folder of one name in all of them;
//! on v2 there is one tree, and a controller must be handed down by each ancestor.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cgroups_rs::fs::{Controller as _, cpuset::CpuSetController};
use procfs::process::{MountInfo, Process};

use super::{
    Error,
    read::{self, ReadError},
};
use crate::host::hierarchy::CgroupVersion;

/// Controllers that pods need: a cgroup counts as there only when it has them all (CGRP-02).
const NEEDED_V2: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
const NEEDED_V1: [&str; 7] = [
    "cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd",
];
/// Without these v1 is not usable at all.
const REQUIRED_V1: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// Every controller that v1 has had, by the mount option that names it.
const KNOWN_V1: [&str; 15] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "name=systemd",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

#[derive(Clone, Debug)]
pub struct Tree {
    version: CgroupVersion,
    /// Controllers with the mount that has them. On v2 all have the same.
    controllers: Vec<(String, PathBuf)>,
    /// Mounts in which cgroups of pods may be: all of v1's, and v2's beside them on a hybrid
    /// machine, where a runtime may use it too.
    mounts: Vec<PathBuf>,
}

impl Tree {
    /// The trees that are mounted where this process can see them.
    pub fn detect(version: CgroupVersion) -> Result<Self, Error> {
        let mounts = Process::myself()
            .and_then(|process| process.mountinfo())
            .map_err(|source| Error::Mounts { source })?
            .0;
        match version {
            CgroupVersion::V1 => Self::v1(&mounts),
            CgroupVersion::V2 => {
                let mount = shortest(mounts.iter().filter(|m| m.fs_type == "cgroup2"));
                Self::v2_at(&mount.ok_or(Error::NoV2Mount)?.mount_point)
            }
        }
    }

    /// A v2 tree at a given place.
    pub fn v2_at(mount: &Path) -> Result<Self, Error> {
        let known = read::words(&mount.join("cgroup.controllers"))?;
        Ok(Self {
            version: CgroupVersion::V2,
            controllers: known
                .into_iter()
                .map(|name| (name, mount.to_owned()))
                .collect(),
            mounts: vec![mount.to_owned()],
        })
    }

    fn v1(mounts: &[MountInfo]) -> Result<Self, Error> {
        let controllers: Vec<(String, PathBuf)> = KNOWN_V1
            .iter()
            .filter_map(|option| {
                let has_it = |mount: &&MountInfo| {
                    let (key, value) = option.split_once('=').unwrap_or((option, ""));
                    let found = mount.super_options.get(key);
                    mount.fs_type == "cgroup"
                        && found.is_some_and(|found| found.as_deref().unwrap_or("") == value)
                };
                let mount = shortest(mounts.iter().filter(has_it))?;
                let name = option.strip_prefix("name=").unwrap_or(option);
                Some((name.to_owned(), mount.mount_point.clone()))
            })
            .collect();
        let missing: Vec<&str> = REQUIRED_V1
            .into_iter()
            .filter(|name| !controllers.iter().any(|(found, _)| found == name))
            .collect();
        if !missing.is_empty() {
            return Err(Error::V1Missing {
                missing: missing.join(" "),
            });
        }
        let unified = shortest(mounts.iter().filter(|mount| mount.fs_type == "cgroup2"));
        let mut all: Vec<PathBuf> = controllers.iter().map(|(_, at)| at.clone()).collect();
        all.extend(unified.map(|mount| mount.mount_point.clone()));
        all.sort();
        all.dedup();
        Ok(Self {
            version: CgroupVersion::V1,
            controllers,
            mounts: all,
        })
    }

    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The mount of the tree that limits memory, which is the one that is followed.
    pub fn mount(&self) -> &Path {
        self.mount_of("memory")
            .or_else(|| self.mounts.first().map(PathBuf::as_path))
            .unwrap_or(Path::new("/sys/fs/cgroup"))
    }

    fn mount_of(&self, controller: &str) -> Option<&Path> {
        self.controllers
            .iter()
            .find(|(name, _)| name == controller)
            .map(|(_, mount)| mount.as_path())
    }

    /// The folder of a cgroup in a controller's tree; none where the machine lacks the controller.
    pub(super) fn directory(&self, controller: &str, name: &str) -> Option<PathBuf> {
        self.mount_of(controller).map(|mount| below(mount, name))
    }

    /// The folders of a cgroup in all mounts, there or not.
    pub(super) fn directories(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        self.mounts.iter().map(move |mount| below(mount, name))
    }

    /// Is the cgroup there with every controller that pods need? The error says what is missing, in
    /// upstream's words.
    pub(super) fn validate(&self, name: &str) -> Result<(), Error> {
        match self.version {
            CgroupVersion::V1 => {
                let mut missing: Vec<String> = NEEDED_V1
                    .into_iter()
                    .filter_map(|controller| self.directory(controller, name))
                    .filter(|directory| !directory.exists())
                    .map(|directory| directory.display().to_string())
                    .collect();
                missing.sort();
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(Error::Invalid {
                        text: format!(
                            "cgroup {} has some missing paths: {}",
                            go_quoted(name),
                            missing.join(", ")
                        ),
                    })
                }
            }
            CgroupVersion::V2 => {
                let file = below(self.mount(), name).join("cgroup.controllers");
                let enabled = read::words(&file).map_err(|error| Error::Invalid {
                    text: format!(
                        "could not read controllers for cgroup {}: open {}: {}",
                        go_quoted(name),
                        file.display(),
                        go_error(&error)
                    ),
                })?;
                let missing: Vec<&str> = self
                    .needed()
                    .filter(|name| !enabled.iter().any(|enabled| enabled == name))
                    .collect();
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(Error::Invalid {
                        text: format!(
                            "cgroup {} has some missing controllers: {}",
                            go_quoted(name),
                            missing.join(", ")
                        ),
                    })
                }
            }
        }
    }

    fn needed(&self) -> impl Iterator<Item = &'static str> {
        NEEDED_V2
            .into_iter()
            .filter(|name| self.mount_of(name).is_some())
    }

    /// Makes the cgroup and its ancestors, with all controllers.
    pub(super) fn make(&self, name: &str) -> Result<(), Error> {
        match self.version {
            CgroupVersion::V1 => self.make_v1(name)?,
            CgroupVersion::V2 => self.make_v2(name)?,
        }
        self.validate(name)
    }

    fn make_v1(&self, name: &str) -> Result<(), Error> {
        for (controller, mount) in &self.controllers {
            let directory = below(mount, name);
            fs::create_dir_all(&directory).map_err(|source| Error::Make {
                path: directory.clone(),
                source,
            })?;
            if controller != "cpuset" {
                continue;
            }
            // No process can enter a cpuset that names no CPU or no memory node. The library fills
            // them in from the parents, and only logs where it cannot.
            let cpuset = CpuSetController::new(directory.clone(), mount.clone(), false);
            cpuset.create().map_err(|error| Error::Write {
                path: directory.clone(),
                value: "its parent's CPUs".to_owned(),
                reason: error.to_string(),
            })?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let path = directory.join(file);
                if read::text(&path)?.trim().is_empty() {
                    return Err(Error::NotTaken {
                        path,
                        value: "its parent's".to_owned(),
                        found: String::new(),
                    });
                }
            }
        }
        Ok(())
    }

    fn make_v2(&self, name: &str) -> Result<(), Error> {
        let mut directory = self.mount().to_owned();
        for part in parts(name) {
            self.hand_down(&directory)?;
            directory.push(part);
            match fs::create_dir(&directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(Error::Make {
                        path: directory,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Lets the children of a cgroup have every controller that it has itself. One that pods don't
    /// need may refuse.
    fn hand_down(&self, directory: &Path) -> Result<(), Error> {
        let file = directory.join("cgroup.subtree_control");
        let handed: Vec<String> = read::words(&file)?;
        for controller in read::words(&directory.join("cgroup.controllers"))? {
            if handed.contains(&controller) {
                continue;
            }
            if let Err(source) = fs::write(&file, format!("+{controller}")) {
                if self.needed().any(|needed| needed == controller) {
                    return Err(Error::Write {
                        path: file,
                        value: format!("+{controller}"),
                        reason: source.to_string(),
                    });
                }
                tracing::debug!(%controller, path = %directory.display(), error = %source,
                    "controller not handed down");
            }
        }
        Ok(())
    }
}

/// Processes of a cgroup and all below it, in one tree. A cgroup that is gone has none.
pub(super) fn processes_below(directory: &Path) -> Result<Vec<u32>, Error> {
    let mut all = Vec::new();
    for directory in subtree(directory)? {
        match read::processes(&directory) {
            Ok(processes) => all.extend(processes),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// Removes a cgroup and all below it from one tree, children first. One that is gone is fine; one
/// that still holds processes is an error (EBUSY).
pub(super) fn remove(directory: &Path) -> Result<(), Error> {
    for directory in subtree(directory)?.into_iter().rev() {
        match fs::remove_dir(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Error::Remove {
                    path: directory,
                    source,
                });
            }
        }
    }
    Ok(())
}

/// A folder and those below it, parents first; empty where it is gone.
fn subtree(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut all = Vec::new();
    for entry in walkdir::WalkDir::new(directory) {
        match entry {
            Ok(entry) if entry.file_type().is_dir() => all.push(entry.into_path()),
            Ok(_) => {}
            Err(error) => {
                let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                if !error.io_error().is_some_and(is_gone) {
                    return Err(Error::Walk {
                        path: directory.to_owned(),
                        source: error.into(),
                    });
                }
            }
        }
    }
    Ok(all)
}

fn below(mount: &Path, name: &str) -> PathBuf {
    parts(name).fold(mount.to_owned(), |path, part| path.join(part))
}

fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split('/').filter(|part| !part.is_empty())
}

fn shortest<'a>(mounts: impl Iterator<Item = &'a MountInfo>) -> Option<&'a MountInfo> {
    mounts.min_by_key(|mount| (mount.root.len(), mount.mount_point.components().count()))
}

/// A cgroup's name as upstream's messages have it: `["kubepods" "burstable"]`.
fn go_quoted(name: &str) -> String {
    let parts: Vec<String> = parts(name).map(|part| format!("{part:?}")).collect();
    format!("[{}]", parts.join(" "))
}

fn go_error(error: &ReadError) -> String {
    match error {
        ReadError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "no such file or directory".to_owned()
        }
        ReadError::Read { source, .. } => source.to_string(),
        ReadError::Malformed { .. } => error.to_string(),
    }
}
