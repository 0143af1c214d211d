//! Volumes of pods: set up before containers start, mounted into them, removed after the pod.
//!
//! The state is on disk, below `<root>/pods/<uid>/` (VOL-07), and outlives the agent: whoever runs
//! next finds it by the same paths. Each function blocks on the file system and therefore runs on
//! a thread of its own; what it waits for is local and short. A worker calls for its own pod only,
//! one call at a time.

mod emptydir;
mod hostpath;
mod subpath;

use std::{
    collections::HashSet,
    fmt, fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use crate::{
    cri::api::{Mount, MountPropagation},
    host::{mount, remove},
    types::{expand::expand_all, id::PodUid, pod::Pod, quantity::Quantity},
};

/// Mode of the folders that are the agent's own.
const FOLDER_MODE: u32 = 0o750;

/// Folders of a pod, by upstream's names: an agent that takes over a node finds them.
#[derive(Clone, Debug)]
pub struct PodDirs(PathBuf);

impl PodDirs {
    pub fn new(root: &Path, uid: &PodUid) -> Self {
        Self(root.join("pods").join(uid.as_str()))
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The hosts file that containers have at `/etc/hosts`.
    pub fn etc_hosts(&self) -> PathBuf {
        self.0.join("etc-hosts")
    }

    /// Holds a container's termination messages.
    pub fn container(&self, name: &str) -> PathBuf {
        self.0.join("containers").join(name)
    }

    fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.volumes().join(plugin).join(name)
    }

    fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    fn subpaths(&self) -> PathBuf {
        self.0.join("volume-subpaths")
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// `--root-dir`.
    pub root: PathBuf,
    /// What pods together may use: the most that a volume in memory may hold.
    pub allocatable_memory: Quantity,
    /// Volumes get the containers' label.
    pub is_selinux_enabled: bool,
}

/// The volumes of all pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volumes(Arc<Settings>);

/// A volume that could not be set up. The text is that of the event `FailedMount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedVolume {
    pub volume: String,
    pub message: String,
}

impl fmt::Display for FailedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, message } = self;
        write!(
            f,
            "MountVolume.SetUp failed for volume {volume:?} : {message}"
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One event `FailedMount` for each; all others of the pod are set up.
    #[error("{}", .0.iter().map(FailedVolume::to_string).collect::<Vec<_>>().join("; "))]
    SetUp(Vec<FailedVolume>),
    /// `CreateContainerConfigError` with this text.
    #[error("{message}")]
    Mounts { message: String },
    #[error("cannot make {}: {source}", path.display())]
    MakeFolder { path: PathBuf, source: io::Error },
    #[error("cannot remove {}: {source}", path.display())]
    TearDown { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    ReadFolder { path: PathBuf, source: io::Error },
    #[error("something is still mounted at {}", path.display())]
    StillMounted { path: PathBuf },
}

/// Text of an error of a step, for users.
type Fault = String;

impl Volumes {
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(settings))
    }

    pub fn dirs(&self, uid: &PodUid) -> PodDirs {
        PodDirs::new(&self.0.root, uid)
    }

    /// Makes the pod's folders and sets up the volumes that a container uses; a volume that none
    /// uses is skipped with all that it lacks (VOL-35). What is set up already is left alone.
    pub async fn set_up(&self, pod: &Pod) -> Result<(), Error> {
        let (volumes, pod) = (self.clone(), pod.clone());
        blocking(move || volumes.set_up_now(&pod)).await
    }

    /// What the container mounts, in the order of its `volumeMounts`; subpaths are made and bound
    /// on the way (VOL-12). `envs` is the container's environment, for subPathExpr.
    pub async fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        envs: &[(String, String)],
    ) -> Result<Vec<Mount>, Error> {
        let (volumes, pod) = (self.clone(), pod.clone());
        let (container, envs) = (container.clone(), envs.to_vec());
        blocking(move || volumes.mounts_now(&pod, &container, &envs)).await
    }

    /// Unmounts and removes all that the pod has on disk. Only once its containers are gone. Stops
    /// at a mount that is not the agent's, and at files that are no volume's of the agent; can be
    /// called again.
    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), Error> {
        let dirs = self.dirs(uid);
        blocking(move || tear_down_now(&dirs)).await
    }

    /// Pods that have a folder and are not among the `known`. For `tear_down`, once nothing of
    /// them runs (LOOP-15).
    pub async fn orphans(&self, known: HashSet<PodUid>) -> Result<Vec<PodUid>, Error> {
        let pods = self.0.root.join("pods");
        blocking(move || {
            let mut orphans: Vec<PodUid> = names_in(&pods)?
                .into_iter()
                .filter(|name| !known.contains(name.as_str()))
                .map(PodUid::from)
                .collect();
            orphans.sort();
            Ok(orphans)
        })
        .await
    }

    fn set_up_now(&self, pod: &Pod) -> Result<(), Error> {
        let dirs = self.dirs(pod.uid());
        for path in [dirs.root().to_owned(), dirs.volumes(), dirs.plugins()] {
            make_folder(&path).map_err(|source| Error::MakeFolder { path, source })?;
        }
        let used = used_volumes(pod);
        let failed: Vec<FailedVolume> = pod
            .spec()
            .volumes
            .iter()
            .flatten()
            .filter(|volume| used.contains(volume.name.as_str()))
            .filter_map(|volume| {
                let message = self.set_up_volume(pod, &dirs, volume).err()?;
                Some(FailedVolume {
                    volume: volume.name.clone(),
                    message,
                })
            })
            .collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Error::SetUp(failed))
        }
    }

    fn set_up_volume(&self, pod: &Pod, dirs: &PodDirs, volume: &Volume) -> Result<(), Fault> {
        if let Some(source) = &volume.empty_dir {
            emptydir::set_up(pod, dirs, &volume.name, source, self.0.allocatable_memory)
        } else if let Some(source) = &volume.host_path {
            hostpath::set_up(source)
        } else {
            Err("volumes of this kind are not supported yet".to_owned())
        }
    }

    fn mounts_now(
        &self,
        pod: &Pod,
        container: &Container,
        envs: &[(String, String)],
    ) -> Result<Vec<Mount>, Error> {
        let dirs = self.dirs(pod.uid());
        let all = container.volume_mounts.iter().flatten().enumerate();
        all.map(|(index, wanted)| self.mount_of(pod, &dirs, container, index, wanted, envs))
            .collect::<Result<_, Fault>>()
            .map_err(|message| Error::Mounts { message })
    }

    fn mount_of(
        &self,
        pod: &Pod,
        dirs: &PodDirs,
        container: &Container,
        index: usize,
        wanted: &VolumeMount,
        envs: &[(String, String)],
    ) -> Result<Mount, Fault> {
        let volumes = pod.spec().volumes.iter().flatten();
        let volume = volumes
            .into_iter()
            .find(|volume| volume.name == wanted.name);
        let (root, is_own) = match volume {
            Some(volume) if volume.empty_dir.is_some() => {
                (dirs.volume(emptydir::PLUGIN, &volume.name), true)
            }
            Some(Volume {
                host_path: Some(source),
                ..
            }) => (PathBuf::from(&source.path), false),
            Some(_) | None => {
                return Err(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    wanted.name, container.name
                ));
            }
        };
        let host_path = match sub_path(wanted, envs)? {
            None => root,
            Some(path) => subpath::Subpath {
                dirs,
                volume: &wanted.name,
                container: &container.name,
                index,
                root: &root,
                path: &path,
            }
            .bind()?,
        };
        check_recursive_read_only(wanted)?;
        Ok(Mount {
            host_path: host_path.to_string_lossy().into_owned(),
            container_path: absolute(&wanted.mount_path),
            readonly: wanted.read_only == Some(true),
            selinux_relabel: is_own && self.0.is_selinux_enabled,
            propagation: propagation(wanted)?.into(),
            ..Mount::default()
        })
    }
}

/// A container's path, which counts from its root also where the slash was left out.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn used_volumes(pod: &Pod) -> HashSet<&str> {
    let mounts = pod
        .all_containers()
        .flat_map(|(container, _)| container.volume_mounts.iter().flatten())
        .map(|mount| mount.name.as_str());
    let devices = pod
        .all_containers()
        .flat_map(|(container, _)| container.volume_devices.iter().flatten())
        .map(|device| device.name.as_str());
    mounts.chain(devices).collect()
}

/// The path below the volume that is mounted; none where it is all of it.
fn sub_path(wanted: &VolumeMount, envs: &[(String, String)]) -> Result<Option<PathBuf>, Fault> {
    let expression = wanted.sub_path_expr.as_deref().unwrap_or_default();
    let path = if expression.is_empty() {
        wanted.sub_path.clone().unwrap_or_default()
    } else {
        expand_all(expression, |name| {
            let var = envs.iter().find(|(var, _)| var == name)?;
            Some(var.1.as_str())
        })
        .map_err(|missing| format!("missing value for {}", missing.join(", ")))?
    };
    if path.is_empty() {
        return Ok(None);
    }
    if path.starts_with('/') {
        return Err(format!(
            "error SubPath `{path}` must not be an absolute path"
        ));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        ));
    }
    Ok(Some(PathBuf::from(path)))
}

fn propagation(wanted: &VolumeMount) -> Result<MountPropagation, Fault> {
    match wanted.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::PropagationBidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

/// Recursive read-only mounts are not asked of the runtime yet: what insists on them is refused
/// with the words for a runtime that cannot do them (VOL-14).
fn check_recursive_read_only(wanted: &VolumeMount) -> Result<(), Fault> {
    let mode = wanted.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(());
    }
    let asked = format!(
        "failed to resolve recursive read-only mode: volume {:?} requested recursive read-only \
         mode, but it is not",
        wanted.name
    );
    let propagation = wanted.mount_propagation.as_deref().unwrap_or("None");
    if wanted.read_only != Some(true) {
        Err(format!("{asked} read-only"))
    } else if propagation != "None" {
        Err(format!(
            "{asked} compatible with propagation {propagation:?}"
        ))
    } else if mode == "IfPossible" {
        Ok(())
    } else {
        Err(format!("{asked} supported by the runtime"))
    }
}

/// Plugins whose data lives in the pod's folder alone and goes with the pod.
const OWN_PLUGINS: [&str; 5] = [
    emptydir::PLUGIN,
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~projected",
    "kubernetes.io~downward-api",
];

fn tear_down_now(dirs: &PodDirs) -> Result<(), Error> {
    subpath::unbind_all(dirs)?;
    for plugin in names_in(&dirs.volumes())? {
        let folder = dirs.volumes().join(&plugin);
        for name in names_in(&folder)? {
            let path = folder.join(name);
            let removed = if OWN_PLUGINS.contains(&plugin.as_str()) {
                mount::unmount_all(&path).and_then(|()| remove::remove_tree(&path))
            } else if mount::is_mount_point(&path).unwrap_or(true) {
                return Err(Error::StillMounted { path });
            } else {
                // The data of somebody else's plugin is not the agent's to remove.
                fs::remove_dir(&path)
            };
            removed.map_err(|source| Error::TearDown { path, source })?;
        }
    }
    let table = mount::Mounts::read().map_err(|source| Error::ReadFolder {
        path: "/proc/self/mountinfo".into(),
        source,
    })?;
    // The table has real paths.
    let real = dirs
        .root()
        .canonicalize()
        .unwrap_or_else(|_| dirs.root().to_owned());
    if let Some(left) = table.below(&real).next() {
        return Err(Error::StillMounted {
            path: left.point.clone(),
        });
    }
    remove::remove_tree(dirs.root()).map_err(|source| Error::TearDown {
        path: dirs.root().to_owned(),
        source,
    })
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(path)
}

/// Names in a folder; none where the folder is not there.
fn names_in(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::ReadFolder {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map_err(failed)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests;
