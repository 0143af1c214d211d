//! What is known of the node when sandboxes and containers are asked for. Read once at start.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::{
    config::{CgroupSettings, DnsSettings},
    host::hierarchy::CgroupVersion,
    types::quantity::Quantity,
};

#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub node_name: String,
    /// The node's own addresses: the primary one first, at most one of each family.
    pub node_ips: Vec<IpAddr>,
    /// Bytes.
    pub memory_capacity: i64,
    pub allocatable: Allocatable,
    pub cgroup_version: CgroupVersion,
    pub cgroups: CgroupSettings,
    pub dns: DnsSettings,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// The memory controller can limit swap (CGRP-15).
    pub swap_usable: bool,
    /// In bytes, all that the kernel has; from `hugepage_sizes`.
    pub hugepage_sizes: Vec<i64>,
    /// From `thermal_throttle_paths`.
    pub thermal_throttle_paths: Vec<String>,
    /// From `is_selinux_enabled`.
    pub is_selinux_enabled: bool,
}

/// What pods together may use of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocatable {
    pub cpu: Quantity,
    pub memory: Quantity,
    /// None where it was not measured.
    pub ephemeral_storage: Option<Quantity>,
}

/// Sizes in bytes of the huge pages that the kernel has, ascending; `sys` is `/sys`.
pub fn hugepage_sizes(sys: &Path) -> Vec<i64> {
    let Ok(entries) = fs::read_dir(sys.join("kernel/mm/hugepages")) else {
        return Vec::new(); // a kernel without huge pages
    };
    let mut sizes: Vec<i64> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let kilobytes = name
                .to_str()?
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?;
            kilobytes.parse::<i64>().ok()?.checked_mul(1024)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// The folders that tell how often a CPU was throttled, which containers must not see (SCTX-05);
/// `sys` is `/sys`.
pub fn thermal_throttle_paths(sys: &Path) -> Vec<String> {
    let cpus = sys.join("devices/system/cpu");
    let possible = fs::read_to_string(cpus.join("possible")).unwrap_or_default();
    cpu_list(&possible)
        .filter(|cpu| cpus.join(format!("cpu{cpu}/thermal_throttle")).exists())
        .map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"))
        .collect()
}

/// The most CPUs that a kernel can be built for, with room to spare.
const MAX_CPUS: u32 = 1 << 16;

/// A list like `0-3,8`.
fn cpu_list(text: &str) -> impl Iterator<Item = u32> {
    text.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => first..=last.min(MAX_CPUS),
            (Err(_), _) | (_, Err(_)) => std::ops::RangeInclusive::new(1, 0),
        }
    })
}

/// SELinux is switched on: its file system is there. `sys` is `/sys`.
pub fn is_selinux_enabled(sys: &Path) -> bool {
    sys.join("fs/selinux/enforce").exists()
}

#[cfg(test)]
pub(crate) fn for_tests() -> NodeFacts {
    NodeFacts {
        node_name: "node-1".into(),
        node_ips: vec!["192.0.2.10".parse().expect("an address")],
        memory_capacity: 8 << 30,
        allocatable: Allocatable {
            cpu: Quantity::of_milli(1900),
            memory: Quantity::of(7 << 30),
            ephemeral_storage: Some(Quantity::of(50 << 30)),
        },
        cgroup_version: CgroupVersion::V2,
        cgroups: CgroupSettings::for_tests(),
        dns: DnsSettings {
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: Some("/etc/resolv.conf".into()),
        },
        root_dir: "/var/lib/kubelet".into(),
        seccomp_default: false,
        swap_usable: true,
        hugepage_sizes: vec![2 << 20],
        thermal_throttle_paths: Vec::new(),
        is_selinux_enabled: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_page_sizes_and_throttle_folders() {
        let sys = tempfile::tempdir().unwrap();
        for dir in [
            "kernel/mm/hugepages/hugepages-1048576kB",
            "kernel/mm/hugepages/hugepages-2048kB",
            "devices/system/cpu/cpu1/thermal_throttle",
            "devices/system/cpu/cpu2",
        ] {
            fs::create_dir_all(sys.path().join(dir)).unwrap();
        }
        fs::write(sys.path().join("devices/system/cpu/possible"), "0-2\n").unwrap();
        assert_eq!(hugepage_sizes(sys.path()), [2 << 20, 1 << 30]);
        assert_eq!(
            thermal_throttle_paths(sys.path()),
            ["/sys/devices/system/cpu/cpu1/thermal_throttle"]
        );
        assert!(!is_selinux_enabled(sys.path()));
    }

    #[test]
    fn a_machine_without_these_files_has_none() {
        let sys = tempfile::tempdir().unwrap();
        assert!(hugepage_sizes(sys.path()).is_empty());
        assert!(thermal_throttle_paths(sys.path()).is_empty());
    }
}
