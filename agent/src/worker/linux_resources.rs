//! Requests and limits as the runtime is told them (CGRP-05, 06, 07, 09, 15, 17, 21, 24). Pure.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::facts::NodeFacts;
use crate::{
    cri::api::{HugepageLimit, LinuxContainerResources},
    host::hierarchy::CgroupVersion,
    types::{
        pod::Pod,
        quantity::Quantity,
        resources::{
            CPU, HUGEPAGES_PREFIX, MEMORY, cpu_quota, cpu_shares, hugepage_size,
            hugepage_size_name, limit, oom_score_adj, pod_level, request, sandbox_limits,
            sandbox_requests,
        },
    },
};

/// Of one container.
pub(crate) fn of_container(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
) -> LinuxContainerResources {
    let own = container.resources.as_ref();
    let of_pod = pod_level(pod.spec());
    // A container without a limit of its own may use as much as its pod.
    let limit_or_pods = |name: &str| {
        limit(own, name)
            .filter(|limit| !limit.is_zero())
            .or_else(|| limit(of_pod, name))
            .unwrap_or_default()
    };
    let cpu_limit = limit_or_pods(CPU);
    let cpu_request = request(own, CPU).unwrap_or(cpu_limit);
    let mut resources = basic(cpu_request, cpu_limit, limit_or_pods(MEMORY), facts);
    resources.oom_score_adj = oom_score_adj(pod, container, facts.memory_capacity);
    resources.hugepage_limits = hugepage_limits(pod.spec(), container, facts);

    match facts.cgroup_version {
        CgroupVersion::V1 if facts.swap_usable => {
            // Memory and swap together: no swap beyond the memory limit.
            resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        }
        CgroupVersion::V1 => {}
        CgroupVersion::V2 => {
            let mut set = |file: &str| resources.unified.insert(file.into(), "0".into());
            if facts.swap_usable {
                set("memory.swap.max");
            }
            set("memory.min");
            set("memory.low");
        }
    }
    resources
}

/// Of a sandbox: the sums of its pod without the overhead (CGRP-24).
pub(crate) fn of_sandbox(pod: &Pod, facts: &NodeFacts) -> LinuxContainerResources {
    let (requests, limits) = (sandbox_requests(pod.spec()), sandbox_limits(pod.spec()));
    let cpu_limit = limits.cpu.unwrap_or_default();
    basic(
        requests.cpu.unwrap_or(cpu_limit),
        cpu_limit,
        limits.memory.unwrap_or_default(),
        facts,
    )
}

/// What the sandbox itself needs beside its containers, as request and limit alike.
pub(crate) fn of_overhead(pod: &Pod, facts: &NodeFacts) -> LinuxContainerResources {
    let Some(overhead) = &pod.spec().overhead else {
        return LinuxContainerResources::default();
    };
    let amount = |name: &str| {
        let amount = overhead
            .get(name)
            .and_then(|text| Quantity::try_from(text).ok());
        amount.unwrap_or_default()
    };
    basic(amount(CPU), amount(CPU), amount(MEMORY), facts)
}

fn basic(
    cpu_request: Quantity,
    cpu_limit: Quantity,
    memory_limit: Quantity,
    facts: &NodeFacts,
) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(cpu_shares(cpu_request.milli_value())).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory_limit.value(),
        ..LinuxContainerResources::default()
    };
    if facts.cgroups.cpu_cfs_quota {
        let period = facts.cgroups.cpu_cfs_quota_period.as_micros();
        let period = i64::try_from(period).unwrap_or(i64::MAX);
        resources.cpu_quota = cpu_quota(cpu_limit.milli_value(), period);
        resources.cpu_period = period;
    }
    let kills_one_process = facts.cgroups.single_process_oom_kill.unwrap_or(false);
    if facts.cgroup_version == CgroupVersion::V2 && !kills_one_process {
        resources
            .unified
            .insert("memory.oom.group".into(), "1".into());
    }
    resources
}

/// One for each page size of the node: what is not asked for is forbidden.
fn hugepage_limits(spec: &PodSpec, container: &Container, facts: &NodeFacts) -> Vec<HugepageLimit> {
    let of_size = |resources: Option<&k8s_openapi::api::core::v1::ResourceRequirements>, size| {
        resources?
            .limits
            .iter()
            .flatten()
            .filter(|(name, _)| name.starts_with(HUGEPAGES_PREFIX))
            .find(|(name, _)| hugepage_size(name) == Some(size))
            .and_then(|(_, amount)| Quantity::try_from(amount).ok())
    };
    facts
        .hugepage_sizes
        .iter()
        .map(|size| {
            let amount = of_size(container.resources.as_ref(), *size)
                .or_else(|| of_size(pod_level(spec), *size))
                .unwrap_or_default();
            HugepageLimit {
                page_size: hugepage_size_name(*size),
                limit: u64::try_from(amount.value()).unwrap_or_default(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{
        facts,
        testing::{pod, pod_with_container},
    };
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn of(resources: Value, facts: &NodeFacts) -> LinuxContainerResources {
        let pod = pod_with_container(json!({"resources": resources}));
        of_container(&pod, &pod.spec().containers[0], facts)
    }

    #[rstest]
    #[case::nothing(json!({}), 2, 0, 0)]
    #[case::request(json!({"requests": {"cpu": "250m", "memory": "1Mi"}}), 256, 0, 0)]
    #[case::limits(json!({"limits": {"cpu": "500m", "memory": "64Mi"}}), 512, 50_000, 64 << 20)]
    #[case::both(
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1500m"}}), 102, 150_000, 0
    )]
    #[case::tiny(json!({"limits": {"cpu": "1m"}}), 2, 1000, 0)]
    #[case::zero_request(json!({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}), 2, 100_000, 0)]
    fn tells_cpu_and_memory(
        #[case] resources: Value,
        #[case] shares: i64,
        #[case] quota: i64,
        #[case] memory: i64,
    ) {
        let told = of(resources, &facts::for_tests());
        assert_eq!(
            (
                told.cpu_shares,
                told.cpu_quota,
                told.cpu_period,
                told.memory_limit_in_bytes
            ),
            (shares, quota, 100_000, memory)
        );
    }

    #[test]
    fn without_cfs_quota_tells_neither_quota_nor_period() {
        let mut facts = facts::for_tests();
        facts.cgroups.cpu_cfs_quota = false;
        let told = of(json!({"limits": {"cpu": "1"}}), &facts);
        assert_eq!((told.cpu_quota, told.cpu_period), (0, 0));
    }

    #[rstest]
    #[case::default(None, true, &[("memory.low", "0"), ("memory.min", "0"), ("memory.oom.group", "1"), ("memory.swap.max", "0")])]
    #[case::single(Some(true), true, &[("memory.low", "0"), ("memory.min", "0"), ("memory.swap.max", "0")])]
    #[case::no_swap(Some(false), false, &[("memory.low", "0"), ("memory.min", "0"), ("memory.oom.group", "1")])]
    fn tells_the_v2_files(
        #[case] single: Option<bool>,
        #[case] swap: bool,
        #[case] expected: &[(&str, &str)],
    ) {
        let mut facts = facts::for_tests();
        facts.cgroups.single_process_oom_kill = single;
        facts.swap_usable = swap;
        let told: BTreeMap<_, _> = of(json!({}), &facts).unified.into_iter().collect();
        let told: Vec<_> = told.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn v1_has_no_files_and_no_swap_beyond_the_limit() {
        let mut facts = facts::for_tests();
        facts.cgroup_version = CgroupVersion::V1;
        let told = of(json!({"limits": {"memory": "1Mi"}}), &facts);
        assert!(told.unified.is_empty());
        assert_eq!(told.memory_swap_limit_in_bytes, 1 << 20);
        facts.swap_usable = false;
        let told = of(json!({"limits": {"memory": "1Mi"}}), &facts);
        assert_eq!(told.memory_swap_limit_in_bytes, 0);
    }

    #[test]
    fn forbids_huge_pages_that_were_not_asked_for() {
        let mut facts = facts::for_tests();
        facts.hugepage_sizes = vec![2 << 20, 1 << 30];
        let told = of(json!({"limits": {"hugepages-2Mi": "4Mi"}}), &facts);
        let told: Vec<_> = told
            .hugepage_limits
            .iter()
            .map(|limit| (limit.page_size.as_str(), limit.limit))
            .collect();
        assert_eq!(told, [("2MB", 4 << 20), ("1GB", 0)]);
    }

    #[test]
    fn a_limit_of_the_pod_holds_for_containers_without_one() {
        let pod = pod(json!({
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "1"}}}],
        }));
        let facts = facts::for_tests();
        let a = of_container(&pod, &pod.spec().containers[0], &facts);
        let b = of_container(&pod, &pod.spec().containers[1], &facts);
        assert_eq!((a.cpu_quota, a.memory_limit_in_bytes), (200_000, 1 << 30));
        assert_eq!((b.cpu_quota, b.memory_limit_in_bytes), (100_000, 1 << 30));
    }

    #[test]
    fn a_sandbox_is_told_sums_without_the_overhead() {
        let pod = pod(json!({
            "overhead": {"cpu": "250m", "memory": "32Mi"},
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Mi"}}},
                {"name": "b", "resources": {"limits": {"memory": "2Mi"}}},
            ],
        }));
        let facts = facts::for_tests();
        let sums = of_sandbox(&pod, &facts);
        assert_eq!(
            (sums.cpu_shares, sums.cpu_quota, sums.cpu_period),
            (1024, 0, 100_000)
        );
        assert_eq!(sums.memory_limit_in_bytes, 3 << 20);
        let overhead = of_overhead(&pod, &facts);
        assert_eq!((overhead.cpu_shares, overhead.cpu_quota), (256, 25_000));
        assert_eq!(overhead.memory_limit_in_bytes, 32 << 20);
    }
}
