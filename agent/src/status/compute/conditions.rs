//! The conditions of a pod, in upstream's order (COND-04..09).

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Phase, StatusInput};
use crate::types::{
    pod::{Pod, Role},
    reason::condition as reason,
    runtime::RuntimePod,
};

/// Conditions that a node agent writes; all others belong to somebody else and are kept.
const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
];

/// True, or false with a reason and a message.
#[derive(PartialEq, Eq)]
enum Verdict {
    True(Option<&'static str>),
    False(&'static str, Option<String>),
}

const YES: Verdict = Verdict::True(None);

pub(super) fn all(
    input: &StatusInput<'_>,
    statuses: &[&ContainerStatus],
    phase: Phase,
) -> Vec<PodCondition> {
    let pod = input.pod;
    let given = pod.object().status.as_ref();
    let mut all: Vec<PodCondition> = given
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .filter(|condition| !OWNED.contains(&condition.type_.as_str()))
        .cloned()
        .collect();
    // Set once by whoever disrupts the pod, and never computed again.
    if let Some(disrupted) = old(input, "DisruptionTarget") {
        all.retain(|condition| condition.type_ != disrupted.type_);
        all.push(disrupted.clone());
    }

    let sandbox = sandbox_ready(pod, input.runtime);
    let is_initialized = initialized(input, statuses, phase);
    let ready = match containers_ready(pod, statuses, phase) {
        YES => gates_ready(pod, &all),
        not_ready => not_ready,
    };
    let containers_ready = containers_ready(pod, statuses, phase);
    all.extend([
        condition(input, "PodReadyToStartContainers", sandbox),
        condition(input, "Initialized", is_initialized),
        condition(input, "Ready", ready),
        condition(input, "ContainersReady", containers_ready),
        condition(input, "PodScheduled", YES),
    ]);
    all
}

fn old<'a>(input: &StatusInput<'a>, type_: &str) -> Option<&'a PodCondition> {
    input
        .previous
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

fn condition(input: &StatusInput<'_>, type_: &str, verdict: Verdict) -> PodCondition {
    let (status, reason, message) = match verdict {
        Verdict::True(reason) => ("True", reason, None),
        Verdict::False(reason, message) => ("False", Some(reason), message),
    };
    let since = old(input, type_)
        .filter(|old| old.status == status)
        .and_then(|old| old.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        observed_generation: input.pod.metadata().generation.filter(|&n| n != 0),
        last_transition_time: Some(since.unwrap_or(Time(input.now))),
        last_probe_time: None,
    }
}

/// COND-08, by the same rules that decide whether a new sandbox is needed (KRT-02).
fn sandbox_ready(pod: &Pod, runtime: &RuntimePod) -> Verdict {
    let not = |why: &str| Verdict::False(reason::POD_SANDBOX_NOT_READY, Some(why.to_owned()));
    let ready = runtime.sandboxes.iter().filter(|s| s.is_ready).count();
    match runtime.newest_sandbox() {
        None => not("no pod sandbox exists"),
        Some(_) if ready > 1 => not("multiple pod sandboxes are ready and need to be reconciled"),
        Some(newest) if !newest.is_ready => not("pod sandbox is not ready"),
        Some(newest) if newest.is_host_network != pod.is_host_network() => {
            not("network namespace mode changed and sandbox needs to be recreated")
        }
        Some(newest) if !newest.is_host_network && newest.ips.is_empty() => {
            not("pod sandbox has no IP address")
        }
        Some(_) => YES,
    }
}

/// COND-05. Once true it stays true.
fn initialized(input: &StatusInput<'_>, statuses: &[&ContainerStatus], phase: Phase) -> Verdict {
    let pod = input.pod;
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for (container, role) in pod.init_containers() {
        let is_done = |status: &ContainerStatus| match role {
            Role::Sidecar => status.started == Some(true),
            Role::Init | Role::Regular => status.ready,
        };
        match statuses.iter().find(|status| status.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !is_done(status) => incomplete.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == Phase::Succeeded && unknown.is_empty() {
        return Verdict::True(Some(reason::POD_COMPLETED));
    }
    let has_started = pod.regular_containers().any(|container| {
        statuses
            .iter()
            .filter(|status| status.name == container.name)
            .filter_map(|status| status.state.as_ref())
            .any(|state| state.running.is_some() || state.terminated.is_some())
    });
    let was_initialized = || old(input, "Initialized").is_some_and(|old| old.status == "True");
    match unready_message(&unknown, "incomplete", &incomplete) {
        Some(message) if !has_started && !was_initialized() => {
            Verdict::False(reason::CONTAINERS_NOT_INITIALIZED, Some(message))
        }
        Some(_) | None => YES,
    }
}

/// COND-06: sidecars first, then the regular containers.
fn containers_ready(pod: &Pod, statuses: &[&ContainerStatus], phase: Phase) -> Verdict {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (container, role) in pod.all_containers() {
        match statuses.iter().find(|status| status.name == container.name) {
            _ if role == Role::Init => {}
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match phase {
        Phase::Succeeded if unknown.is_empty() => Verdict::False(reason::POD_COMPLETED, None),
        Phase::Failed => Verdict::False(reason::POD_FAILED, None),
        Phase::Succeeded | Phase::Pending | Phase::Running => {
            match unready_message(&unknown, "unready", &unready) {
                Some(message) => Verdict::False(reason::CONTAINERS_NOT_READY, Some(message)),
                None => YES,
            }
        }
    }
}

fn gates_ready(pod: &Pod, conditions: &[PodCondition]) -> Verdict {
    let complaints: Vec<String> = pod
        .spec()
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let gate = &gate.condition_type;
            match conditions.iter().find(|c| c.type_ == *gate) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {gate:?} does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if complaints.is_empty() {
        YES
    } else {
        Verdict::False(
            reason::READINESS_GATES_NOT_READY,
            Some(complaints.join(", ")),
        )
    }
}

fn unready_message(unknown: &[&str], word: &str, others: &[&str]) -> Option<String> {
    let part = |word: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {word} status: [{}]", names.join(" ")))
    };
    let parts: Vec<String> = [part("unknown", unknown), part(word, others)]
        .into_iter()
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
