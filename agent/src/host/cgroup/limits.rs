//! What a cgroup is limited to, and how that is written. Deciding is pure; every write is checked
//! by reading back.

use std::{collections::BTreeMap, path::Path};

use cgroups_rs::fs::{
    MaxValue, cpu::CpuController, hugetlb::HugeTlbController, memory::MemController,
    pid::PidController,
};

use super::{Error, Machine, read, tree::Tree};
use crate::{
    config::CgroupSettings,
    host::hierarchy::CgroupVersion,
    types::{
        pod::Pod,
        quantity::Quantity,
        resources::{
            MAX_SHARES, MIN_SHARES, QosClass, cpu_quota, cpu_shares, hugepage_size_name,
            pod_limits, pod_requests,
        },
    },
};

/// None: left as the kernel made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) shares: Option<u64>,
    /// Microseconds of each period; -1 is unlimited.
    pub(super) quota: Option<Quota>,
    /// Bytes.
    pub(super) memory: Option<i64>,
    pub(super) pids: Option<i64>,
    /// Page size in bytes to bytes; a size that is not named gets none.
    pub(super) hugepages: Option<BTreeMap<i64, i64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) micros: i64,
    pub(super) period_micros: u64,
}

/// CGRP-03.
pub(super) fn of_pod(pod: &Pod, settings: &CgroupSettings) -> Limits {
    let requests = pod_requests(pod.spec());
    let limits = pod_limits(pod.spec());
    let period = settings.cpu_cfs_quota_period.as_micros();
    let period = i64::try_from(period).unwrap_or(i64::MAX);
    let milli = |amount: Option<Quantity>| amount.map_or(0, Quantity::milli_value);
    let quota = Quota {
        micros: if settings.cpu_cfs_quota {
            cpu_quota(milli(limits.cpu), period)
        } else {
            -1
        },
        period_micros: period.unsigned_abs(),
    };
    let memory = limits.memory.map(Quantity::value);
    let (shares, quota, memory) = match pod.qos() {
        QosClass::Guaranteed => (cpu_shares(milli(requests.cpu)), Some(quota), memory),
        QosClass::Burstable => (
            cpu_shares(milli(requests.cpu)),
            Some(quota).filter(|_| limits.all_cpu_limited),
            memory.filter(|_| limits.all_memory_limited),
        ),
        QosClass::BestEffort => (MIN_SHARES, None, None),
    };
    Limits {
        shares: Some(shares),
        quota,
        memory,
        pids: settings.pids_limit.filter(|&limit| limit > 0),
        hugepages: Some(requests.hugepages),
    }
}

/// The cgroup of all pods gets what the machine has less what is reserved (CGRP-10); without
/// enforcement, what the machine has.
pub(super) fn of_all_pods(machine: &Machine, settings: &CgroupSettings) -> Limits {
    let (system, kube) = (settings.system_reserved, settings.kube_reserved);
    let left = |capacity: i64, reserved: [i64; 2]| {
        if settings.enforce_pods {
            reserved
                .into_iter()
                .fold(capacity, i64::saturating_sub)
                .max(0)
        } else {
            capacity
        }
    };
    let cpu = [system.cpu.milli_value(), kube.cpu.milli_value()];
    let memory = [system.memory.value(), kube.memory.value()];
    let pids = [system.pids.value(), kube.pids.value()];
    Limits {
        shares: Some(cpu_shares(left(machine.cpu.milli_value(), cpu))),
        memory: Some(left(machine.memory.value(), memory)),
        pids: Some(left(machine.pids.value(), pids)),
        ..Limits::default()
    }
}

/// Burstable pods together weigh what they ask for, BestEffort pods the least (CGRP-08).
pub(super) fn of_class(class: QosClass, active: &[Pod]) -> Limits {
    let asked: i64 = active
        .iter()
        .filter(|pod| pod.qos() == class)
        .filter_map(|pod| pod_requests(pod.spec()).cpu)
        .map(Quantity::milli_value)
        .fold(0, i64::saturating_add);
    Limits {
        shares: Some(match class {
            QosClass::Burstable | QosClass::Guaranteed => cpu_shares(asked),
            QosClass::BestEffort => MIN_SHARES,
        }),
        ..Limits::default()
    }
}

/// v2's weight for v1's shares, linear as upstream converts for its own cgroups (CGRP-04).
pub(super) fn weight(shares: u64) -> u64 {
    if shares >= MAX_SHARES {
        10_000
    } else {
        1 + (shares.saturating_sub(MIN_SHARES) * 9999) / (MAX_SHARES - MIN_SHARES)
    }
}

/// Writes `limits` into the cgroup `name`, in whatever controllers the tree has.
pub(super) fn apply(tree: &Tree, name: &str, limits: &Limits) -> Result<(), Error> {
    let is_v2 = tree.version() == CgroupVersion::V2;
    let root = tree.mount().to_owned();
    if let Some(directory) = tree.directory("cpu", name) {
        let cpu = CpuController::new(directory.clone(), root.clone(), is_v2);
        if let Some(shares) = limits.shares {
            let (file, value) = if is_v2 {
                ("cpu.weight", weight(shares))
            } else {
                ("cpu.shares", shares)
            };
            checked(&directory, file, &value.to_string(), || {
                cpu.set_shares(value)
            })?;
        }
        if let Some(quota) = limits.quota {
            apply_quota(&cpu, &directory, quota, is_v2)?;
        }
    }
    if let Some(directory) = tree.directory("memory", name)
        && let Some(bytes) = limits.memory
    {
        let memory = MemController::new(directory.clone(), root.clone(), is_v2);
        let file = if is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let whole_pages = bytes / page * page;
        checked(&directory, file, &whole_pages.to_string(), || {
            memory.set_limit(whole_pages)
        })?;
    }
    if let Some(directory) = tree.directory("pids", name)
        && let Some(most) = limits.pids
    {
        let pids = PidController::new(directory.clone(), root.clone(), is_v2);
        checked(&directory, "pids.max", &most.to_string(), || {
            pids.set_pid_max(MaxValue::Value(most))
        })?;
    }
    if let Some(directory) = tree.directory("hugetlb", name)
        && let Some(wanted) = &limits.hugepages
    {
        let hugetlb = HugeTlbController::new(directory.clone(), root, is_v2);
        let wanted: BTreeMap<String, i64> = wanted
            .iter()
            .map(|(size, bytes)| (hugepage_size_name(*size), *bytes))
            .collect();
        for size in hugetlb.get_sizes() {
            let bytes = wanted.get(&size).map_or(0, |bytes| bytes.unsigned_abs());
            let file = if is_v2 {
                format!("hugetlb.{size}.max")
            } else {
                format!("hugetlb.{size}.limit_in_bytes")
            };
            checked(&directory, &file, &bytes.to_string(), || {
                hugetlb.set_limit_in_bytes(&size, bytes)
            })?;
        }
    }
    Ok(())
}

fn apply_quota(
    cpu: &CpuController,
    directory: &Path,
    quota: Quota,
    is_v2: bool,
) -> Result<(), Error> {
    // A quota of 0 means none, as in the CRI.
    let micros = if quota.micros > 0 { quota.micros } else { -1 };
    let period = quota.period_micros;
    if is_v2 {
        let text = if micros < 0 {
            format!("max {period}")
        } else {
            format!("{micros} {period}")
        };
        return checked(directory, "cpu.max", &text, || {
            cpu.set_cfs_quota_and_period(Some(micros), Some(period))
        });
    }
    // The period first: the kernel refuses a quota that is out of proportion to it.
    checked(directory, "cpu.cfs_period_us", &period.to_string(), || {
        cpu.set_cfs_period(period)
    })?;
    checked(directory, "cpu.cfs_quota_us", &micros.to_string(), || {
        cpu.set_cfs_quota(micros)
    })
}

/// Writes, and reads back: a write that the kernel took otherwise is an error.
pub(super) fn checked(
    directory: &Path,
    file: &str,
    value: &str,
    write: impl FnOnce() -> cgroups_rs::fs::error::Result<()>,
) -> Result<(), Error> {
    let path = directory.join(file);
    write().map_err(|source| Error::Write {
        path: path.clone(),
        value: value.to_owned(),
        reason: reason(&source),
    })?;
    let found = read::text(&path)?;
    if found.trim() == value {
        Ok(())
    } else {
        Err(Error::NotTaken {
            path,
            value: value.to_owned(),
            found: found.trim().to_owned(),
        })
    }
}

/// The innermost cause, which is the kernel's answer.
fn reason(error: &cgroups_rs::fs::error::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::types::pod::SourceKind;

    fn pod(containers: serde_json::Value) -> Pod {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
            "spec": {"containers": containers},
        }))
        .expect("a pod");
        Pod::new(object, SourceKind::File)
    }

    fn quota(micros: i64) -> Option<Quota> {
        Some(Quota {
            micros,
            period_micros: 100_000,
        })
    }

    #[test]
    fn a_best_effort_pod_gets_the_least_weight_and_no_limit() {
        let limits = of_pod(&pod(json!([{"name": "a"}])), &CgroupSettings::for_tests());
        assert_eq!(
            limits,
            Limits {
                shares: Some(2),
                hugepages: Some(BTreeMap::new()),
                ..Limits::default()
            }
        );
    }

    #[test]
    fn a_guaranteed_pod_gets_its_sums() {
        let amounts = json!({"cpu": "500m", "memory": "64Mi"});
        let resources = json!({"requests": amounts, "limits": amounts});
        let pod = pod(json!([
            {"name": "a", "resources": resources}, {"name": "b", "resources": resources}]));
        let limits = of_pod(&pod, &CgroupSettings::for_tests());
        assert_eq!(limits.shares, Some(1024));
        assert_eq!(limits.quota, quota(100_000));
        assert_eq!(limits.memory, Some(128 << 20));
    }

    #[rstest]
    #[case::one_is_unlimited(json!({}), None, None)]
    #[case::all_are_limited(json!({"cpu": "1", "memory": "32Mi"}), quota(150_000), Some(96 << 20))]
    #[case::all_have_a_memory_limit(json!({"memory": "32Mi"}), None, Some(96 << 20))]
    fn a_burstable_pod_is_limited_only_where_all_its_containers_are(
        #[case] other: serde_json::Value,
        #[case] want_quota: Option<Quota>,
        #[case] want_memory: Option<i64>,
    ) {
        let pod = pod(json!([
            {"name": "a", "resources": {
                "requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}},
            {"name": "b", "resources": {"limits": other}}]));
        let limits = of_pod(&pod, &CgroupSettings::for_tests());
        assert_eq!(limits.quota, want_quota);
        assert_eq!(limits.memory, want_memory);
    }

    #[test]
    fn without_cfs_quota_the_pod_is_told_so() {
        let amounts = json!({"cpu": "1", "memory": "64Mi"});
        let pod =
            pod(json!([{"name": "a", "resources": {"requests": amounts, "limits": amounts}}]));
        let mut settings = CgroupSettings::for_tests();
        settings.cpu_cfs_quota = false;
        settings.pids_limit = Some(100);
        let limits = of_pod(&pod, &settings);
        assert_eq!(limits.quota, quota(-1));
        assert_eq!(limits.pids, Some(100));
    }

    #[rstest]
    #[case(true, 1024, 7 << 30, 900)]
    #[case(false, 2048, 8 << 30, 1000)]
    fn all_pods_share_what_is_not_reserved(
        #[case] enforce_pods: bool,
        #[case] shares: u64,
        #[case] memory: i64,
        #[case] pids: i64,
    ) {
        let machine = Machine {
            cpu: Quantity::of(2),
            memory: Quantity::of(8 << 30),
            pids: Quantity::of(1000),
        };
        let mut settings = CgroupSettings::for_tests();
        settings.enforce_pods = enforce_pods;
        settings.system_reserved.cpu = Quantity::of(1);
        settings.kube_reserved.memory = Quantity::of(1 << 30);
        settings.kube_reserved.pids = Quantity::of(100);
        let limits = of_all_pods(&machine, &settings);
        assert_eq!(limits.shares, Some(shares));
        assert_eq!(limits.memory, Some(memory));
        assert_eq!(limits.pids, Some(pids));
    }

    #[test]
    fn a_class_weighs_what_its_pods_ask_for() {
        let burstable = pod(json!([{"name": "a", "resources": {"requests": {"cpu": "250m"}}}]));
        let other = pod(json!([{"name": "a"}]));
        let all = [burstable.clone(), other, burstable];
        let shares = |class| of_class(class, &all).shares;
        assert_eq!(shares(QosClass::Burstable), Some(512));
        assert_eq!(shares(QosClass::BestEffort), Some(2));
        assert_eq!(of_class(QosClass::Burstable, &[]).shares, Some(2));
    }

    #[rstest]
    #[case(2, 1)]
    #[case(1024, 39)]
    #[case(262_144, 10_000)]
    #[case(102, 4)]
    fn weights_are_upstreams(#[case] shares: u64, #[case] want: u64) {
        assert_eq!(weight(shares), want);
    }

    /// A recorded v2 tree with one pod's cgroup.
    fn recorded(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("pod")).expect("a folder");
        for (file, text) in files {
            std::fs::write(dir.path().join(file), text).expect("written");
        }
        let tree = Tree::v2_at(dir.path()).expect("a tree");
        (dir, tree)
    }

    #[test]
    fn on_v2_limits_go_into_the_files_of_v2() {
        let (dir, tree) = recorded(&[
            ("cgroup.controllers", "cpuset cpu io memory pids rdma\n"),
            ("pod/cgroup.controllers", "cpuset cpu memory pids\n"),
            ("pod/cpu.max", "max 100000\n"),
        ]);
        let limits = Limits {
            shares: Some(1024),
            quota: quota(50_000),
            memory: Some((64 << 20) + 1),
            pids: Some(100),
            hugepages: Some(BTreeMap::new()),
        };
        assert!(tree.validate("/pod").is_ok());
        apply(&tree, "/pod", &limits).expect("applied");
        let file = |name: &str| {
            let text = std::fs::read_to_string(dir.path().join("pod").join(name));
            text.expect("written").trim().to_owned()
        };
        assert_eq!(file("cpu.weight"), "39");
        assert_eq!(file("cpu.max"), "50000 100000");
        assert_eq!(file("memory.max"), "67108864");
        assert_eq!(file("pids.max"), "100");

        let unlimited = Limits {
            quota: quota(-1),
            ..Limits::default()
        };
        apply(&tree, "/pod", &unlimited).expect("applied");
        assert_eq!(file("cpu.max"), "max 100000");
    }

    #[test]
    fn on_v2_a_cgroup_without_a_needed_controller_is_not_there() {
        let (dir, tree) = recorded(&[
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("pod/cgroup.controllers", "memory io\n"),
        ]);
        let text = |name: &str| tree.validate(name).expect_err("incomplete").to_string();
        assert_eq!(
            text("/pod"),
            "cgroup [\"pod\"] has some missing controllers: cpu, cpuset, pids"
        );
        assert_eq!(
            text("/nope"),
            format!(
                "could not read controllers for cgroup [\"nope\"]: open {}: no such file or directory",
                dir.path().join("nope/cgroup.controllers").display()
            )
        );
    }
}
