//! Which cgroup hierarchy the agent follows, and who is who in it.
//!
//! Detection reads two tables of the agent's own process; the walk reads directories. Names become
//! places by pure functions, since both cgroup drivers' forms are met: cgroupfs (`podUID/ID`) and
//! systemd (`kubepods-burstable-podUID.slice/cri-containerd-ID.scope`).

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::types::{
    id::{CgroupId, ContainerId, PodUid},
    resources::QosClass,
};

/// The cgroup interface that limits memory on this machine. A hybrid machine (v1 controllers
/// beside a v2 tree without them) counts as v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// The hierarchy whose events are followed: the one that limits memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub version: CgroupVersion,
    /// The kernel's number of it (`cgroup_root.hierarchy_id`); 0 is v2's.
    pub id: u32,
    /// Where it is mounted: usually `/sys/fs/cgroup/memory`, or `/sys/fs/cgroup` on v2.
    pub mount: PathBuf,
    /// How deep in the hierarchy the mounted directory is: 0 unless a part of it is mounted.
    pub mount_depth: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the memory cgroup hierarchy is not mounted (no {kind} mount in {})", table.display())]
    NotMounted { kind: &'static str, table: PathBuf },
    #[error("the cgroup hierarchy at {} has no memory controller", mount.display())]
    NoMemoryController { mount: PathBuf },
    #[error("{} is not below {}, where the cgroup hierarchy is mounted", path.display(), mount.display())]
    Outside { path: PathBuf, mount: PathBuf },
}

impl Hierarchy {
    pub fn detect() -> Result<Self, Error> {
        Self::detect_in(Path::new("/proc/self"))
    }

    /// As [`Self::detect`], from the `cgroup` and `mountinfo` of another folder.
    pub fn detect_in(process: &Path) -> Result<Self, Error> {
        let groups = read(&process.join("cgroup"))?;
        let table = process.join("mountinfo");
        let mounts = read(&table)?;
        let v1 = groups.lines().find_map(v1_memory_hierarchy);
        let (version, id, kind) = match v1 {
            Some(id) => (CgroupVersion::V1, id, "cgroup"),
            None => (CgroupVersion::V2, 0, "cgroup2"),
        };
        let mount = mounts
            .lines()
            .filter_map(CgroupMount::parse)
            .filter(|mount| match version {
                CgroupVersion::V1 => mount.kind == "cgroup" && mount.has_option("memory"),
                CgroupVersion::V2 => mount.kind == "cgroup2",
            })
            // The whole hierarchy rather than a part of it, and its usual place rather than a copy.
            .min_by_key(|mount| (mount.depth, mount.at.components().count()))
            .ok_or(Error::NotMounted { kind, table })?;
        if version == CgroupVersion::V2 {
            let controllers = read(&mount.at.join("cgroup.controllers"))?;
            if !controllers.split_whitespace().any(|name| name == "memory") {
                return Err(Error::NoMemoryController { mount: mount.at });
            }
        }
        Ok(Self {
            version,
            id,
            mount: mount.at,
            mount_depth: mount.depth,
        })
    }

    /// How deep a directory is in the hierarchy, as the kernel counts (`cgroup.level`).
    pub fn depth(&self, directory: &Path) -> Result<u32, Error> {
        let Ok(below) = directory.strip_prefix(&self.mount) else {
            return Err(Error::Outside {
                path: directory.to_owned(),
                mount: self.mount.clone(),
            });
        };
        let below = u32::try_from(below.components().count()).unwrap_or(u32::MAX);
        Ok(self.mount_depth.saturating_add(below))
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// The number of a line such as `4:memory:/` in `/proc/PID/cgroup`.
fn v1_memory_hierarchy(line: &str) -> Option<u32> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers) = (fields.next()?, fields.next()?);
    let has_memory = controllers.split(',').any(|name| name == "memory");
    id.parse().ok().filter(|_| has_memory)
}

struct CgroupMount<'a> {
    kind: &'a str,
    options: &'a str,
    at: PathBuf,
    depth: u32,
}

impl<'a> CgroupMount<'a> {
    /// A line of `/proc/PID/mountinfo`, where it is a cgroup mount (proc_pid_mountinfo(5)).
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        matches!(kind, "cgroup" | "cgroup2").then(|| Self {
            kind,
            options,
            at: PathBuf::from(unescape(at)),
            depth: u32::try_from(root.split('/').filter(|part| !part.is_empty()).count())
                .unwrap_or(u32::MAX),
        })
    }

    fn has_option(&self, wanted: &str) -> bool {
        self.options.split(',').any(|option| option == wanted)
    }
}

/// The kernel writes white space and backslashes in paths as `\040` and the like.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).map(|digits| u8::from_str_radix(digits, 8)) {
            Some(Ok(byte)) if byte.is_ascii() => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            _ => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// What a directory below the pods' root is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The parent of the Burstable or BestEffort pods; Guaranteed pods are right below the root.
    Qos(QosClass),
    Pod(PodUid),
    /// `None` where the name is not a container's: a runtime's monitor, say.
    Container(Option<ContainerId>),
}

impl Place {
    /// How many levels below it are followed.
    pub fn levels_below(&self) -> u8 {
        match self {
            Self::Qos(_) => 2,
            Self::Pod(_) => 1,
            Self::Container(_) => 0,
        }
    }
}

/// A directory that the walk met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: CgroupId,
    pub parent: CgroupId,
    /// The last part of its path.
    pub name: String,
    pub path: PathBuf,
    pub place: Place,
}

/// The id of a cgroup, from its directory.
pub fn cgroup_id(directory: &Path) -> io::Result<CgroupId> {
    fs::metadata(directory).map(|metadata| CgroupId(metadata.ino()))
}

/// The QoS classes, pods and containers below the pods' root, parents before their children.
/// `visit` is called for each before its children are listed: who follows a directory from then on
/// misses nothing that is made in it.
///
/// Directories that vanish meanwhile are left out; a root that is not there is an error.
pub fn walk(
    pods_root: &Path,
    visit: &mut dyn FnMut(&Found) -> io::Result<()>,
) -> io::Result<Vec<Found>> {
    let root = cgroup_id(pods_root)?;
    let mut found = Vec::new();
    walk_into(pods_root, root, None, visit, &mut found)?;
    Ok(found)
}

fn walk_into(
    directory: &Path,
    parent: CgroupId,
    above: Option<&Place>,
    visit: &mut dyn FnMut(&Found) -> io::Result<()>,
    found: &mut Vec<Found>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = match entry {
            Ok(entry) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => entry.path(),
            Ok(_) => continue,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let Some(place) = place_of(name, above) else {
            continue;
        };
        let id = match cgroup_id(&path) {
            Ok(id) => id,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        let one = Found {
            id,
            parent,
            name: name.to_owned(),
            path: path.clone(),
            place,
        };
        visit(&one)?;
        let below = (one.place.levels_below() > 0).then(|| one.place.clone());
        found.push(one);
        if let Some(place) = below {
            match walk_into(&path, id, Some(&place), visit, found) {
                Err(error) if !is_gone(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// How the kernel says that a cgroup was removed while it was read.
fn is_gone(error: &io::Error) -> bool {
    let removed = rustix::io::Errno::NODEV.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(removed)
}

/// What a directory is for, from its name and its parent's place (`None` for the pods' root).
/// `None` where it is nothing of the pods'.
pub fn place_of(name: &str, above: Option<&Place>) -> Option<Place> {
    match above {
        None => qos_class(name)
            .map(Place::Qos)
            .or_else(|| pod_uid(name).map(Place::Pod)),
        Some(Place::Qos(_)) => pod_uid(name).map(Place::Pod),
        Some(Place::Pod(_)) => Some(Place::Container(container_id(name))),
        Some(Place::Container(_)) => None,
    }
}

/// The QoS class of `burstable`, `besteffort`, or their slices.
pub fn qos_class(name: &str) -> Option<QosClass> {
    match name.strip_suffix(".slice") {
        None => qos_word(name),
        Some(slice) => slice
            .rsplit_once('-')
            .filter(|(root, _)| is_pods_root(root))
            .and_then(|(_, word)| qos_word(word)),
    }
}

fn qos_word(word: &str) -> Option<QosClass> {
    match word {
        "burstable" => Some(QosClass::Burstable),
        "besteffort" => Some(QosClass::BestEffort),
        _ => None,
    }
}

/// A slice's name carries those of the slices above it.
fn is_pods_root(slice: &str) -> bool {
    slice == "kubepods" || slice.ends_with("-kubepods")
}

/// The pod's uid of `podUID` or `kubepods-burstable-podUID.slice`, where `_` stands for `-`.
pub fn pod_uid(name: &str) -> Option<PodUid> {
    let uid = match name.strip_suffix(".slice") {
        None => name.strip_prefix("pod")?.to_owned(),
        Some(slice) => {
            let (above, uid) = slice.rsplit_once("-pod")?;
            let root = above
                .strip_suffix("-burstable")
                .or_else(|| above.strip_suffix("-besteffort"))
                .unwrap_or(above);
            is_pods_root(root).then(|| uid.replace('_', "-"))?
        }
    };
    (!uid.is_empty()).then(|| PodUid::from(uid))
}

/// The container's id of a directory right below a pod's: `ID`, `crio-ID`,
/// `cri-containerd-ID.scope`, `crio-ID.scope`. `None` for a runtime's monitor process.
pub fn container_id(name: &str) -> Option<ContainerId> {
    let bare = name.strip_suffix(".scope");
    let id = match bare.unwrap_or(name) {
        monitor if monitor.starts_with("crio-conmon-") => return None,
        name => name
            .strip_prefix("cri-containerd-")
            .or_else(|| name.strip_prefix("crio-"))
            .or_else(|| {
                bare.and_then(|scope| scope.rsplit_once('-'))
                    .map(|(_, id)| id)
            })
            .unwrap_or(name),
    };
    (!id.is_empty()).then(|| ContainerId::from(id))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const V1: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:32 /a/b /mnt/part\\040of rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn process(groups: &str, mounts: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup"), groups).unwrap();
        fs::write(folder.path().join("mountinfo"), mounts).unwrap();
        folder
    }

    #[test]
    fn a_hybrid_machine_is_followed_at_its_v1_memory_hierarchy() {
        let folder = process("9:name=systemd:/\n4:memory:/x\n0::/\n", V1);
        let found = Hierarchy::detect_in(folder.path()).unwrap();
        let expected = Hierarchy {
            version: CgroupVersion::V1,
            id: 4,
            mount: "/sys/fs/cgroup/memory".into(),
            mount_depth: 0,
        };
        assert_eq!(found, expected);
        let depth = |path: &str| found.depth(Path::new(path));
        assert_eq!(depth("/sys/fs/cgroup/memory").unwrap(), 0);
        assert_eq!(
            depth("/sys/fs/cgroup/memory/kubepods/burstable").unwrap(),
            2
        );
        assert!(matches!(
            depth("/sys/fs/cgroup/cpu/x"),
            Err(Error::Outside { .. })
        ));
    }

    #[test]
    fn a_mounted_part_of_a_hierarchy_counts_from_the_hierarchys_root() {
        let mounts: String = V1.lines().filter(|line| line.contains("/mnt/")).collect();
        let folder = process("4:memory:/x\n", &mounts);
        let found = Hierarchy::detect_in(folder.path()).unwrap();
        assert_eq!(found.mount, Path::new("/mnt/part of"));
        assert_eq!(found.depth(Path::new("/mnt/part of/kubepods")).unwrap(), 3);
    }

    #[test]
    fn a_v2_machine_is_followed_at_its_only_hierarchy() {
        let tree = tempfile::tempdir().unwrap();
        let line = format!(
            "30 23 0:26 / {} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            tree.path().display()
        );
        let folder = process("0::/init.scope\n", &line);
        fs::write(tree.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let found = Hierarchy::detect_in(folder.path()).unwrap();
        assert_eq!(
            (found.version, found.id, found.mount.as_path()),
            (CgroupVersion::V2, 0, tree.path())
        );
        fs::write(tree.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert!(matches!(
            Hierarchy::detect_in(folder.path()),
            Err(Error::NoMemoryController { .. })
        ));
    }

    #[test]
    fn a_machine_without_a_mounted_hierarchy_is_told_so() {
        let folder = process("4:memory:/x\n", "");
        let message = Hierarchy::detect_in(folder.path()).unwrap_err().to_string();
        assert!(message.starts_with("the memory cgroup hierarchy is not mounted (no cgroup mount"));
        let nothing = tempfile::tempdir().unwrap();
        assert!(matches!(
            Hierarchy::detect_in(nothing.path()),
            Err(Error::Read { .. })
        ));
    }

    #[rstest]
    #[case::cgroupfs("pod8e7c", Some("8e7c"))]
    #[case::with_dashes("pod1b2c-3d", Some("1b2c-3d"))]
    #[case::guaranteed_slice("kubepods-pod1b2c_3d.slice", Some("1b2c-3d"))]
    #[case::burstable_slice("kubepods-burstable-pod1b2c_3d.slice", Some("1b2c-3d"))]
    #[case::under_another_slice("kubelet-kubepods-besteffort-podab.slice", Some("ab"))]
    #[case::a_class_is_no_pod("kubepods-burstable.slice", None)]
    #[case::strange_slice("system-podman.slice", None)]
    #[case::no_uid("pod", None)]
    #[case::no_uid_in_slice("kubepods-pod.slice", None)]
    #[case::something_else("init.scope", None)]
    fn a_pods_uid_is_read_from_its_directory(#[case] name: &str, #[case] uid: Option<&str>) {
        assert_eq!(pod_uid(name), uid.map(PodUid::from));
    }

    #[rstest]
    #[case::cgroupfs("0f".repeat(32), Some("0f".repeat(32)))]
    #[case::containerd("cri-containerd-ab12.scope".into(), Some("ab12".into()))]
    #[case::crio("crio-ab12.scope".into(), Some("ab12".into()))]
    #[case::crio_cgroupfs("crio-ab12".into(), Some("ab12".into()))]
    #[case::other_runtime("docker-ab12.scope".into(), Some("ab12".into()))]
    #[case::with_dashes("my-app".into(), Some("my-app".into()))]
    #[case::monitor("crio-conmon-ab12.scope".into(), None)]
    #[case::no_id("crio-.scope".into(), None)]
    fn a_containers_id_is_read_from_its_directory(
        #[case] name: String,
        #[case] id: Option<String>,
    ) {
        assert_eq!(container_id(&name), id.map(ContainerId::from));
    }

    #[rstest]
    #[case("burstable", Some(QosClass::Burstable))]
    #[case("besteffort", Some(QosClass::BestEffort))]
    #[case("kubepods-besteffort.slice", Some(QosClass::BestEffort))]
    #[case("x-kubepods-burstable.slice", Some(QosClass::Burstable))]
    #[case("system-burstable.slice", None)]
    #[case("guaranteed", None)]
    fn a_classs_directory_is_known_by_its_name(
        #[case] name: &str,
        #[case] class: Option<QosClass>,
    ) {
        assert_eq!(qos_class(name), class);
    }

    #[test]
    fn the_walk_finds_classes_pods_and_containers_and_nothing_deeper() {
        let tree = tempfile::tempdir().unwrap();
        for path in [
            "burstable/podB/c1/nested/deeper",
            "podG/c2",
            "besteffort/unrelated/c3",
            "init.scope",
        ] {
            fs::create_dir_all(tree.path().join(path)).unwrap();
        }
        fs::write(tree.path().join("podG/tasks"), "").unwrap();
        let mut visited = Vec::new();
        let found = walk(tree.path(), &mut |one| {
            visited.push(one.name.clone());
            Ok(())
        })
        .unwrap();
        let names: Vec<_> = found.iter().map(|one| one.name.clone()).collect();
        assert_eq!(visited, names);
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["besteffort", "burstable", "c1", "c2", "podB", "podG"]
        );
        let one = |name: &str| found.iter().find(|one| one.name == name).unwrap();
        assert_eq!(one("c1").parent, one("podB").id);
        assert_eq!(one("podB").parent, one("burstable").id);
        assert_eq!(one("podG").parent, cgroup_id(tree.path()).unwrap());
        assert_eq!(one("podG").place, Place::Pod("G".into()));
        assert_eq!(one("c2").place, Place::Container(Some("c2".into())));
        assert!(walk(&tree.path().join("missing"), &mut |_| Ok(())).is_err());
    }
}
