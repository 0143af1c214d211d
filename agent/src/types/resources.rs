//! Requests and limits: quality of service, what a whole pod asks for, and the numbers that the
//! kernel is told (CPU shares and quota, `oom_score_adj`).
//!
//! Pure. A source has validated the quantities of a pod before anything here reads them; one that
//! can't be read counts as not set.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

use super::{pod::Pod, quantity::Quantity};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// The least and the most that the kernel takes as `cpu.shares`.
pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;

/// The least CFS quota that the kernel takes, in microseconds.
pub const MIN_QUOTA_MICROS: i64 = 1000;

/// `oom_score_adj` of what should be killed last among pods.
const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";

/// Quality of service class of a pod; the text is the API's.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::Display,
)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// Amounts by resource name, as read.
pub type Amounts = BTreeMap<String, Quantity>;

/// What a pod as a whole asks for (INIT-08).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequests {
    pub cpu: Option<Quantity>,
    pub memory: Option<Quantity>,
    /// Page size in bytes to amount in bytes.
    pub hugepages: BTreeMap<i64, i64>,
}

/// What a pod as a whole may use. A sum says nothing of a pod of which one container is unlimited:
/// the `all_*` fields tell whether it may be written into the pod's cgroup (CGRP-03).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodLimits {
    pub cpu: Option<Quantity>,
    pub memory: Option<Quantity>,
    /// Every init and regular container has a CPU limit, or the pod itself has one.
    pub all_cpu_limited: bool,
    pub all_memory_limited: bool,
}

/// Class of a pod: of its own resources where it has some, else of all its containers together
/// (COND-23; upstream's `ComputePodQOS`).
pub fn qos_class(spec: &PodSpec) -> QosClass {
    if let Some(resources) = pod_level(spec) {
        return class_of(resources);
    }
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    same_class(containers.map(|container| match &container.resources {
        Some(resources) => class_of(resources),
        None => QosClass::BestEffort,
    }))
}

fn class_of(resources: &ResourceRequirements) -> QosClass {
    same_class([CPU, MEMORY].into_iter().map(|resource| {
        let request = request(Some(resources), resource).unwrap_or_default();
        let limit = limit(Some(resources), resource).unwrap_or_default();
        if request != limit {
            QosClass::Burstable
        } else if request.is_zero() {
            QosClass::BestEffort
        } else {
            QosClass::Guaranteed
        }
    }))
}

/// The class that all share; Burstable where they differ.
fn same_class(mut classes: impl Iterator<Item = QosClass>) -> QosClass {
    let Some(first) = classes.next() else {
        return QosClass::BestEffort;
    };
    if classes.all(|class| class == first) {
        first
    } else {
        QosClass::Burstable
    }
}

/// Requests and limits of a pod with its overhead, by resource name: what its status shows
/// (COND-28).
pub fn pod_amounts(spec: &PodSpec) -> (Amounts, Amounts) {
    (requests(spec, true), limits(spec, true))
}

/// Requests of a pod with its overhead: what its cgroup gets.
pub fn pod_requests(spec: &PodSpec) -> PodRequests {
    requests_of(requests(spec, true))
}

/// Requests of a pod without its overhead: what its sandbox is told (CGRP-24).
pub fn sandbox_requests(spec: &PodSpec) -> PodRequests {
    requests_of(requests(spec, false))
}

/// Limits of a pod with its overhead: what its cgroup gets.
pub fn pod_limits(spec: &PodSpec) -> PodLimits {
    limits_of(spec, &limits(spec, true))
}

/// Limits of a pod without its overhead: what its sandbox is told (CGRP-24).
pub fn sandbox_limits(spec: &PodSpec) -> PodLimits {
    limits_of(spec, &limits(spec, false))
}

fn requests_of(amounts: Amounts) -> PodRequests {
    PodRequests {
        cpu: amounts.get(CPU).copied(),
        memory: amounts.get(MEMORY).copied(),
        hugepages: amounts
            .iter()
            .filter_map(|(name, amount)| Some((hugepage_size(name)?, amount.value())))
            .collect(),
    }
}

fn limits_of(spec: &PodSpec, amounts: &Amounts) -> PodLimits {
    let is_limited = |resource: &str| {
        let has_limit = |resources: Option<&ResourceRequirements>| {
            limit(resources, resource).is_some_and(|limit| !limit.is_zero())
        };
        has_limit(spec.resources.as_ref())
            || spec
                .init_containers
                .iter()
                .flatten()
                .chain(&spec.containers)
                .all(|container| has_limit(container.resources.as_ref()))
    };
    PodLimits {
        cpu: amounts.get(CPU).copied(),
        memory: amounts.get(MEMORY).copied(),
        all_cpu_limited: is_limited(CPU),
        all_memory_limited: is_limited(MEMORY),
    }
}

fn requests(spec: &PodSpec, with_overhead: bool) -> Amounts {
    let mut sum = of_containers(spec, |resources| &resources.requests);
    set_pod_level(
        &mut sum,
        pod_level(spec).and_then(|own| own.requests.as_ref()),
    );
    for (name, overhead) in spec.overhead.iter().flatten().filter(|_| with_overhead) {
        add(&mut sum, name, read(overhead));
    }
    sum
}

fn limits(spec: &PodSpec, with_overhead: bool) -> Amounts {
    let mut sum = of_containers(spec, |resources| &resources.limits);
    set_pod_level(
        &mut sum,
        pod_level(spec).and_then(|own| own.limits.as_ref()),
    );
    for (name, overhead) in spec.overhead.iter().flatten().filter(|_| with_overhead) {
        // What has no limit does not get one from the overhead.
        if sum.contains_key(name) {
            add(&mut sum, name, read(overhead));
        }
    }
    sum
}

type ApiAmounts = Option<BTreeMap<String, ApiQuantity>>;

/// The most that containers need at one time: all regular ones beside all sidecars, or one init
/// container beside the sidecars that were started before it.
fn of_containers(spec: &PodSpec, pick: impl Fn(&ResourceRequirements) -> &ApiAmounts) -> Amounts {
    let amounts = |container: &Container| -> Amounts {
        let Some(amounts) = container
            .resources
            .as_ref()
            .and_then(|all| pick(all).as_ref())
        else {
            return Amounts::new();
        };
        amounts
            .iter()
            .filter_map(|(name, amount)| Some((name.clone(), read(amount)?)))
            .collect()
    };
    let add_all = |sum: &mut Amounts, more: &Amounts| {
        for (name, amount) in more {
            add(sum, name, Some(*amount));
        }
    };

    let mut together = Amounts::new();
    for container in &spec.containers {
        add_all(&mut together, &amounts(container));
    }
    let (mut sidecars, mut init_peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = amounts(container);
        let mut now = sidecars.clone();
        add_all(&mut now, &own);
        if container.restart_policy.as_deref() == Some("Always") {
            add_all(&mut together, &own);
            sidecars = now.clone();
        }
        raise_all(&mut init_peak, &now);
    }
    raise_all(&mut together, &init_peak);
    together
}

fn add(sum: &mut Amounts, name: &str, amount: Option<Quantity>) {
    if let Some(amount) = amount {
        let entry = sum.entry(name.to_owned()).or_default();
        *entry = *entry + amount;
    }
}

fn raise_all(peak: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = peak.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

fn set_pod_level(sum: &mut Amounts, own: Option<&BTreeMap<String, ApiQuantity>>) {
    for (name, amount) in own.into_iter().flatten() {
        if let Some(amount) = read(amount).filter(|_| is_pod_level_resource(name)) {
            sum.insert(name.clone(), amount);
        }
    }
}

fn is_pod_level_resource(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with(HUGEPAGES_PREFIX)
}

/// A pod's own resources, if they set at least one that a pod may have: an empty
/// `spec.resources` counts as not set.
pub fn pod_level(spec: &PodSpec) -> Option<&ResourceRequirements> {
    spec.resources.as_ref().filter(|own| {
        [&own.requests, &own.limits]
            .into_iter()
            .flatten()
            .flat_map(BTreeMap::keys)
            .any(|name| is_pod_level_resource(name))
    })
}

fn read(quantity: &ApiQuantity) -> Option<Quantity> {
    Quantity::try_from(quantity).ok()
}

/// The request for `name`, if it is set.
pub fn request(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    resources?.requests.as_ref()?.get(name).and_then(read)
}

/// The limit for `name`, if it is set.
pub fn limit(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    resources?.limits.as_ref()?.get(name).and_then(read)
}

/// Page size in bytes of a resource like `hugepages-2Mi`.
pub fn hugepage_size(resource: &str) -> Option<i64> {
    let size: Quantity = resource.strip_prefix(HUGEPAGES_PREFIX)?.parse().ok()?;
    Some(size.value())
}

/// A page size as cgroups and the CRI name it: 2097152 is `2MB`.
pub fn hugepage_size_name(mut bytes: i64) -> String {
    let mut units = ["B", "KB", "MB", "GB", "TB", "PB"].into_iter().peekable();
    let mut unit = units.next().unwrap_or_default();
    while bytes > 0 && bytes % 1024 == 0 {
        let Some(larger) = units.next() else { break };
        unit = larger;
        bytes /= 1024;
    }
    format!("{bytes}{unit}")
}

/// CPU shares for thousandths of a CPU, within what the kernel takes (CGRP-03).
pub fn cpu_shares(milli: i64) -> u64 {
    let shares = i128::from(milli) * 1024 / 1000;
    u64::try_from(shares)
        .unwrap_or_default()
        .clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds of each `period` (microseconds) for a limit in thousandths of a CPU;
/// 0, which is unlimited to the CRI, where there is no limit (CGRP-05).
pub fn cpu_quota(milli: i64, period_micros: i64) -> i64 {
    if milli == 0 {
        return 0;
    }
    let quota = i128::from(milli) * i128::from(period_micros) / 1000;
    i64::try_from(quota)
        .unwrap_or(i64::MAX)
        .max(MIN_QUOTA_MICROS)
}

/// Must not be evicted or preempted: static, a mirror pod, or of a priority of two billion and
/// more (upstream's `IsCriticalPod`).
pub fn is_critical(pod: &Pod) -> bool {
    let is_mirror = || {
        pod.metadata()
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"))
    };
    pod.is_static()
        || is_mirror()
        || pod
            .spec()
            .priority
            .is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

/// How willingly the kernel kills the container when the machine is out of memory: the smaller
/// the share of memory that it asked for, the sooner (CGRP-07). `memory_capacity` in bytes.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let spec = pod.spec();
    let is_node_critical = spec.priority_class_name.as_deref() == Some(SYSTEM_NODE_CRITICAL);
    if is_node_critical && is_critical(pod) {
        return GUARANTEED_OOM_SCORE;
    }
    match pod.qos() {
        QosClass::Guaranteed => return GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {}
    }

    let memory_request = |container: &Container| {
        request(container.resources.as_ref(), MEMORY).map_or(0, Quantity::value)
    };
    let share = unclaimed_memory_share(spec);
    let score = |bytes: i64| {
        let bytes = i128::from(bytes) + i128::from(share);
        let taken = 1000 * bytes / i128::from(memory_capacity.max(1));
        i64::try_from(1000 - taken).unwrap_or(i64::MIN)
    };

    let mut adj = score(memory_request(container));
    let is_sidecar = pod
        .init_containers()
        .any(|(other, role)| role == super::pod::Role::Sidecar && other.name == container.name);
    if is_sidecar {
        // A sidecar must not die before those that it serves.
        let least = pod.regular_containers().map(memory_request).min();
        adj = adj.min(score(least.unwrap_or(0)));
    }
    adj = adj.max(1000 + GUARANTEED_OOM_SCORE);
    if adj == BEST_EFFORT_OOM_SCORE {
        adj - 1
    } else {
        adj
    }
}

/// What a pod asked for as a whole beyond its containers' requests, split evenly among them.
fn unclaimed_memory_share(spec: &PodSpec) -> i64 {
    let Some(own) = request(pod_level(spec), MEMORY).filter(|own| !own.is_zero()) else {
        return 0;
    };
    let of_containers = of_containers(spec, |resources| &resources.requests);
    let claimed = of_containers.get(MEMORY).copied().unwrap_or_default();
    let count = spec.containers.len() + spec.init_containers.iter().flatten().count();
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    own.value().saturating_sub(claimed.value()) / count
}

#[cfg(test)]
mod tests;
