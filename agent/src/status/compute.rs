//! A pod's status, as the API describes it, from what is wanted and what the runtime has.
//!
//! Pure: the pod's worker gives everything that the answer depends on, its last answer included,
//! because some of the truth survives only there: the last state of a container whose record was
//! removed, restart counts, terminal phases, transition times. Inventory rows COND-01..28.

mod conditions;
mod containers;
mod phase;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, PodIP, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use phase::{Phase, phase};

use crate::types::{pod::Pod, resources, runtime::RuntimePod};

/// Longest termination message of a pod, shared evenly by its containers.
const MESSAGE_BYTES: usize = 12 * 1024;

/// All that a status depends on.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a RuntimePod,
    /// The last status that was computed for this pod, if any.
    pub previous: Option<&'a PodStatus>,
    /// Containers, by name, that could not be started when they were last tried, with why
    /// (COND-12). Taken out once a start succeeds.
    pub waiting: &'a HashMap<String, Waiting>,
    /// The node's own addresses, the preferred one first.
    pub node_ips: &'a [IpAddr],
    /// Nothing of the pod will be started again.
    pub is_terminal: bool,
    /// The pod was told to stop: nobody wants it any more.
    pub is_terminating: bool,
    /// As it stands before `://` in container ids: `containerd`.
    pub runtime_name: &'a str,
    pub now: Timestamp,
}

/// Why a container is not running although it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// One of [`crate::types::reason::waiting`], or the text of an error that has no name.
    pub reason: String,
    pub message: String,
}

pub fn compute(input: &StatusInput<'_>) -> PodStatus {
    let (pod, previous) = (input.pod, input.previous);
    let container_statuses = containers::regular(input);
    let init_container_statuses = containers::init(input);
    let all: Vec<&ContainerStatus> = init_container_statuses
        .iter()
        .chain(&container_statuses)
        .collect();

    let given = pod.object().status.as_ref();
    let phase = [previous, given]
        .into_iter()
        .flatten()
        .filter_map(|status| status.phase.as_deref().and_then(Phase::from_text))
        .find(|phase| phase.is_terminal());
    let computed = phase::phase(pod, &all, input.is_terminal, has_started(input));
    let phase = if computed.is_terminal() {
        computed
    } else {
        phase.unwrap_or(computed)
    };

    let is_same_phase = previous
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|old| old == phase.text());
    let kept = |field: fn(&PodStatus) -> Option<&String>| {
        let old = previous.and_then(field).or_else(|| given.and_then(field));
        old.filter(|_| is_same_phase).cloned()
    };
    let (pod_ips, host_ips) = addresses(input);
    let (requests, limits) = &resources::pod_amounts(pod.spec());

    let mut status = PodStatus {
        conditions: Some(conditions::all(input, &all, phase)),
        phase: Some(phase.text().to_owned()),
        reason: kept(|status| status.reason.as_ref()),
        message: kept(|status| status.message.as_ref()),
        observed_generation: pod.metadata().generation.filter(|&number| number != 0),
        host_ip: host_ips.first().map(ToString::to_string),
        host_ips: some(host_ips, |ip| HostIP { ip: ip.to_string() }),
        pod_ip: pod_ips.first().map(ToString::to_string),
        pod_ips: some(pod_ips, |ip| PodIP { ip: ip.to_string() }),
        qos_class: Some(pod.qos().to_string()),
        start_time: Some(start_time(input)),
        allocated_resources: Some(containers::amounts(requests)).filter(|all| !all.is_empty()),
        resources: Some(ResourceRequirements {
            requests: Some(containers::amounts(requests)).filter(|all| !all.is_empty()),
            limits: Some(containers::amounts(limits)).filter(|all| !all.is_empty()),
            claims: None,
        }),
        container_statuses: Some(container_statuses),
        init_container_statuses: Some(init_container_statuses).filter(|all| !all.is_empty()),
        ..PodStatus::default()
    };
    normalize(pod, &mut status);
    status
}

/// The status of a pod whose work is over: no container is left without an end. One whose record
/// cannot be found counts as failed, so that the pod is not called successful by mistake.
pub fn finish(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    if containers::has_initialized(pod, &status) {
        for container in status.container_statuses.iter_mut().flatten() {
            containers::end_unknown(container);
        }
    }
    let tried = containers::tried_init(&status);
    for container in status
        .init_container_statuses
        .iter_mut()
        .flatten()
        .take(tried)
    {
        containers::end_unknown(container);
    }
    if !pod.is_static()
        && !status
            .phase
            .as_deref()
            .and_then(Phase::from_text)
            .is_some_and(Phase::is_terminal)
    {
        status.phase = Some(Phase::Failed.text().to_owned());
    }
    status
}

/// A regular container has a record in the sandbox that is ready now: initialization is over.
fn has_started(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) = input.runtime.newest_sandbox().filter(|s| s.is_ready) else {
        return false;
    };
    input.pod.regular_containers().any(|wanted| {
        input
            .runtime
            .all_of(&wanted.name)
            .any(|container| container.sandbox == sandbox.id)
    })
}

/// Pod and host addresses: at most one of each family, the family of the node's first address
/// first (COND-10).
fn addresses(input: &StatusInput<'_>) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let is_v6_first = input.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let pick = |all: &[IpAddr]| -> Vec<IpAddr> {
        [is_v6_first, !is_v6_first]
            .into_iter()
            .filter_map(|is_v6| all.iter().find(|ip| ip.is_ipv6() == is_v6).copied())
            .collect()
    };
    let host = pick(input.node_ips);
    let pod = if input.pod.is_host_network() {
        host_network_ips(input, &host)
    } else {
        let sandbox = input.runtime.newest_sandbox();
        pick(sandbox.map_or(&[], |sandbox| &sandbox.ips))
    };
    (pod, host)
}

/// The node's addresses, which stay as they were first seen but for a second family.
fn host_network_ips(input: &StatusInput<'_>, host: &[IpAddr]) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = input
        .previous
        .and_then(|status| status.pod_ips.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|ip| ip.ip.parse().ok())
        .collect();
    if ips.is_empty() {
        ips.extend(host.first());
    }
    if let ([first], Some(second)) = (&ips[..], host.get(1))
        && first.is_ipv6() != second.is_ipv6()
    {
        ips.push(*second);
    }
    ips
}

/// When the agent first knew the pod. After a restart of the agent its oldest sandbox bears
/// witness.
fn start_time(input: &StatusInput<'_>) -> Time {
    let known = input.previous.and_then(|status| status.start_time.clone());
    known.unwrap_or_else(|| {
        let oldest = input.runtime.sandboxes.iter().map(|s| s.created_at).min();
        Time(oldest.map_or(input.now, |oldest| oldest.min(input.now)))
    })
}

/// Times to the second, as the API keeps them, and messages of bounded length.
fn normalize(pod: &Pod, status: &mut PodStatus) {
    let longest = MESSAGE_BYTES / pod.all_containers().count().max(1);
    let all = status
        .container_statuses
        .iter_mut()
        .chain(&mut status.init_container_statuses)
        .flatten();
    for state in all
        .flat_map(|c| [&mut c.state, &mut c.last_state])
        .flatten()
    {
        if let Some(running) = &mut state.running {
            to_second(&mut running.started_at);
        }
        if let Some(terminated) = &mut state.terminated {
            to_second(&mut terminated.started_at);
            to_second(&mut terminated.finished_at);
            if let Some(message) = &mut terminated.message {
                message.truncate(message.floor_char_boundary(longest));
            }
        }
    }
    for condition in status.conditions.iter_mut().flatten() {
        to_second(&mut condition.last_transition_time);
    }
    to_second(&mut status.start_time);
}

fn to_second(time: &mut Option<Time>) {
    if let Some(Time(time)) = time {
        *time = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    }
}

fn some<T, U>(all: Vec<T>, convert: impl Fn(T) -> U) -> Option<Vec<U>> {
    (!all.is_empty()).then(|| all.into_iter().map(convert).collect())
}

type Resources = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;
