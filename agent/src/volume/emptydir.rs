//! emptyDir volumes (VOL-08, VOL-32): a folder on the node's disk, or memory mounted there.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;

use super::{Fault, PodDirs, make_folder};
use crate::{
    host::{mount, remove},
    types::{
        pod::Pod,
        quantity::Quantity,
        resources::{HUGEPAGES_PREFIX, QosClass, hugepage_size, pod_level, pod_limits},
    },
};

pub(super) const PLUGIN: &str = "kubernetes.io~empty-dir";

const MODE: u32 = 0o777;

/// Makes the volume unless its marker says that it is there: a container that restarts, and one
/// after a reboot, finds its files again.
pub(super) fn set_up(
    pod: &Pod,
    dirs: &PodDirs,
    name: &str,
    source: &EmptyDirVolumeSource,
    allocatable_memory: Quantity,
) -> Result<(), Fault> {
    let medium = Medium::of(source, pod, allocatable_memory)?;
    let (path, marker) = (dirs.volume(PLUGIN, name), marker(dirs, name));
    let fs_group = pod
        .spec()
        .security_context
        .as_ref()
        .and_then(|of_pod| of_pod.fs_group);
    set_up_at(&path, &marker, medium, fs_group).map_err(|error| error.to_string())
}

fn marker(dirs: &PodDirs, name: &str) -> PathBuf {
    dirs.plugins().join(PLUGIN).join(name).join("ready")
}

fn set_up_at(path: &Path, marker: &Path, medium: Medium, fs_group: Option<i64>) -> io::Result<()> {
    let is_there = match medium {
        Medium::Disk => path.is_dir(),
        Medium::Memory { .. } | Medium::HugePages { .. } => match mount::is_mount_point(path) {
            Ok(is_mounted) => is_mounted,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        },
    };
    if is_there && marker.exists() {
        return Ok(());
    }
    let marker_dir = marker.parent().unwrap_or(marker);
    remove::remove_tree(marker_dir)?;

    make_folder(path.parent().unwrap_or(path))?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    set_mode(path, MODE)?;
    if !is_there {
        match medium {
            Medium::Disk => {}
            Medium::Memory { size } => mount::tmpfs(path, size)?,
            Medium::HugePages { page_size } => mount::hugetlbfs(path, page_size)?,
        }
    }
    if let Some(group) = fs_group {
        // The volume is new: there is nothing below it to change.
        let group = u32::try_from(group)
            .map_err(|_range| io::Error::other(format!("fsGroup {group} is no group id")))?;
        std::os::unix::fs::lchown(path, None, Some(group))?;
        let mode = fs::symlink_metadata(path)?.permissions().mode() & 0o7777;
        set_mode(path, mode | 0o2770)?;
    }
    make_folder(marker_dir)?;
    fs::write(marker, "")
}

/// The bits as they are wanted, whatever the umask is.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Disk,
    /// `size` in bytes.
    Memory {
        size: Option<i64>,
    },
    /// `page_size` in bytes.
    HugePages {
        page_size: i64,
    },
}

impl Medium {
    fn of(
        source: &EmptyDirVolumeSource,
        pod: &Pod,
        allocatable_memory: Quantity,
    ) -> Result<Self, Fault> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(Self::Disk),
            "Memory" => {
                let size = memory_size(source, pod, allocatable_memory)?;
                let size = Some(size.value()).filter(|size| *size > 0);
                Ok(Self::Memory { size })
            }
            medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
                page_size(medium, pod).map(|page_size| Self::HugePages { page_size })
            }
            other => Err(format!("unknown storage medium {other:?}")),
        }
    }
}

/// The least of: what all pods may use, what this pod may, what the volume may.
fn memory_size(
    source: &EmptyDirVolumeSource,
    pod: &Pod,
    allocatable: Quantity,
) -> Result<Quantity, Fault> {
    let limits = pod_limits(pod.spec());
    let is_limited = match pod.qos() {
        QosClass::Guaranteed => true,
        QosClass::Burstable => limits.all_memory_limited,
        QosClass::BestEffort => false,
    };
    let of_pod = limits.memory.filter(|_| is_limited);
    let own = match &source.size_limit {
        None => None,
        Some(limit) => {
            Some(Quantity::try_from(limit).map_err(|error| format!("sizeLimit: {error}"))?)
        }
    };
    let smaller = |most: Quantity, other: Quantity| {
        if other > Quantity::ZERO && other <= most {
            other
        } else {
            most
        }
    };
    Ok([of_pod, own]
        .into_iter()
        .flatten()
        .fold(allocatable, smaller))
}

/// The page size that the medium names, or the only one that the pod asks for.
fn page_size(medium: &str, pod: &Pod) -> Result<i64, Fault> {
    let named: Option<i64> = match medium.strip_prefix("HugePages-") {
        None => None,
        Some(text) => {
            let size: Quantity = text.parse().map_err(|error| format!("medium: {error}"))?;
            Some(size.value())
        }
    };
    let of_containers = pod
        .all_containers()
        .filter_map(|(container, _)| container.resources.as_ref());
    let mut asked: Vec<i64> = of_containers
        .chain(pod_level(pod.spec()))
        .flat_map(|resources| resources.requests.iter().flatten())
        .filter(|(name, _)| name.starts_with(HUGEPAGES_PREFIX))
        .filter_map(|(name, _)| hugepage_size(name))
        .filter(|size| named.is_none_or(|named| named == *size))
        .collect();
    asked.sort_unstable();
    asked.dedup();
    match asked.as_slice() {
        [size] => Ok(*size),
        [] => Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for \
             huge pages"
        )),
        [_, ..] => Err(format!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::pod::SourceKind;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::os::unix::fs::MetadataExt as _;

    const GIB: i64 = 1 << 30;

    fn medium(source: Value, resources: Value) -> Result<Medium, Fault> {
        let object = json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        });
        let pod = Pod::new(serde_json::from_value(object).unwrap(), SourceKind::File);
        let source: EmptyDirVolumeSource = serde_json::from_value(source).unwrap();
        Medium::of(&source, &pod, Quantity::of(8 * GIB))
    }

    #[rstest]
    #[case::node(json!({}), json!({}), 8 * GIB)]
    #[case::pod(json!({}), json!({"limits": {"memory": "2Gi"}}), 2 * GIB)]
    #[case::own(json!({"sizeLimit": "1Gi"}), json!({"limits": {"memory": "2Gi"}}), GIB)]
    #[case::own_is_larger(json!({"sizeLimit": "3Gi"}), json!({"limits": {"memory": "2Gi"}}), 2 * GIB)]
    #[case::zero(json!({"sizeLimit": "0"}), json!({}), 8 * GIB)]
    #[case::request_is_no_limit(json!({}), json!({"requests": {"memory": "2Gi"}}), 8 * GIB)]
    fn memory_is_bounded_by_the_least(
        #[case] mut source: Value,
        #[case] resources: Value,
        #[case] size: i64,
    ) {
        source["medium"] = "Memory".into();
        assert_eq!(
            medium(source, resources),
            Ok(Medium::Memory { size: Some(size) })
        );
    }

    #[rstest]
    #[case("", json!({}), Ok(Medium::Disk))]
    #[case("HugePages", json!({"requests": {"hugepages-2Mi": "4Mi"}}), Ok(Medium::HugePages { page_size: 2 << 20 }))]
    #[case("HugePages-1Gi", json!({"requests": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}}), Ok(Medium::HugePages { page_size: 1 << 30 }))]
    #[case("HugePages", json!({"requests": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}}),
        Err("medium: HugePages can't be used if container requests multiple huge page sizes".into()))]
    #[case("HugePages-2Mi", json!({}),
        Err("medium HugePages-2Mi: hugePages storage requested, but there is no resource request for huge pages".into()))]
    #[case("Tape", json!({}), Err("unknown storage medium \"Tape\"".into()))]
    fn reads_the_medium(
        #[case] name: &str,
        #[case] resources: Value,
        #[case] expected: Result<Medium, Fault>,
    ) {
        assert_eq!(medium(json!({"medium": name}), resources), expected);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_stay_while_the_marker_does() {
        let dir = tempfile::tempdir().unwrap();
        let (path, marker) = (dir.path().join("v/name"), dir.path().join("m/ready"));
        set_up_at(&path, &marker, Medium::Disk, None).unwrap();
        assert_eq!(mode(&path), 0o777);
        assert!(marker.exists());
        fs::write(path.join("file"), "text").unwrap();
        set_mode(&path, 0o700).unwrap(); // by a container

        set_up_at(&path, &marker, Medium::Disk, None).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "text");

        fs::remove_dir_all(&path).unwrap(); // by an operator
        set_up_at(&path, &marker, Medium::Disk, None).unwrap();
        assert_eq!(mode(&path), 0o777);
    }

    #[test]
    fn belongs_to_the_fs_group() {
        let dir = tempfile::tempdir().unwrap();
        let (path, marker) = (dir.path().join("name"), dir.path().join("m/ready"));
        let own = fs::metadata(dir.path()).unwrap().gid();
        set_up_at(&path, &marker, Medium::Disk, Some(i64::from(own))).unwrap();
        assert_eq!(mode(&path), 0o2777);
        assert_eq!(fs::metadata(&path).unwrap().gid(), own);
    }
}
