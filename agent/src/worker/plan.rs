//! What to do with a pod now: desired x observed -> [`Plan`]. Pure; the heart of a sync.
//!
//! Rules: KRT-01..03, 08, 09, RST-06 (pod policy only), INIT-01..06. One plan is one step of a
//! pod's way; the next sync, on what the step brought, plans the next one.

use k8s_openapi::api::core::v1::Container as ContainerSpec;

use crate::{
    source::container_hash,
    types::{
        id::{ContainerId, SandboxId},
        pod::{Pod, Role},
        runtime::{Container, ContainerState, RuntimePod},
    },
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Everything of the pod is stopped: before a new sandbox, or because there is nothing left
    /// to run.
    pub(crate) kill_pod: bool,
    pub(crate) sandbox: Option<NewSandbox>,
    pub(crate) kill: Vec<Kill>,
    /// Records that stand in the way of what is started: made and never started, or of init
    /// containers of an earlier sandbox.
    pub(crate) remove: Vec<ContainerId>,
    /// In the order to start them. An init container that cannot be started ends the list.
    pub(crate) start: Vec<Start>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSandbox {
    pub(crate) attempt: u32,
    /// The sandbox that it replaces, where the change is worth an event (KRT-02).
    pub(crate) replaces: Option<SandboxId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) id: ContainerId,
    pub(crate) name: String,
    pub(crate) message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The record removed for it had this count: it never ran, so the count does not rise.
    pub(crate) reuse_count: Option<u32>,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The next step for a pod that is to run.
pub(crate) fn next(pod: &Pod, observed: &RuntimePod) -> Plan {
    let pod_restarts = pod.spec().restart_policy.as_deref() != Some("Never");
    if let Some(new) = sandbox_change(pod, observed) {
        return with_new_sandbox(pod, observed, new, pod_restarts);
    }
    let mut plan = Plan::default();
    let is_initialized = match plan_init(pod, observed, pod_restarts, &mut plan) {
        Init::Done => true,
        Init::UnderWay => false,
        Init::Failed => {
            return nothing_more(observed);
        }
    };
    if !is_initialized {
        return plan;
    }
    let mut kept = 0;
    let mut regular = Vec::new();
    for spec in pod.regular_containers() {
        let Some(container) = observed.newest(&spec.name) else {
            regular.push(start(spec, Role::Regular));
            continue;
        };
        match &container.state {
            ContainerState::Running { .. } if has_changed(spec, container) => {
                plan.kill.push(Kill {
                    id: container.id.clone(),
                    name: spec.name.clone(),
                    message: format!(
                        "Container {} definition changed, will be restarted",
                        spec.name
                    ),
                });
                regular.push(start(spec, Role::Regular));
            }
            ContainerState::Running { .. } => kept += 1,
            ContainerState::Created => {
                plan.remove.push(container.id.clone());
                regular.push(instead_of(spec, Role::Regular, container));
            }
            ContainerState::Unknown => {
                plan.kill.push(kill_unknown(spec, container, "Container"));
                regular.push(start(spec, Role::Regular));
            }
            ContainerState::Exited(exit) => {
                if pod.should_restart(spec, exit.code) {
                    regular.push(start(spec, Role::Regular));
                }
            }
        }
    }
    if kept == 0 && regular.is_empty() {
        // Nothing is left to run: sidecars alone do not keep a pod alive (INIT-05).
        return nothing_more(observed);
    }
    plan.start.extend(regular);
    plan
}

/// Containers of the pod that run now, or may.
pub(crate) fn alive(observed: &RuntimePod) -> impl Iterator<Item = &Container> {
    observed
        .containers
        .iter()
        .filter(|container| match container.state {
            ContainerState::Running { .. } | ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Exited(_) => false,
        })
}

/// Nothing is left to run: what still does is stopped, once.
fn nothing_more(observed: &RuntimePod) -> Plan {
    Plan {
        kill_pod: observed.is_running() || alive(observed).next().is_some(),
        ..Plan::default()
    }
}

/// Why a new sandbox is needed; none while the newest one serves (KRT-02).
fn sandbox_change(pod: &Pod, observed: &RuntimePod) -> Option<NewSandbox> {
    let Some(newest) = observed.newest_sandbox() else {
        return Some(NewSandbox {
            attempt: 0,
            replaces: None,
        });
    };
    let attempt = newest.attempt + 1;
    let replaces = Some(newest.id.clone());
    if observed
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.is_ready)
        .count()
        > 1
        || !newest.is_ready
    {
        return Some(NewSandbox { attempt, replaces });
    }
    if newest.is_host_network != pod.is_host_network() {
        return Some(NewSandbox {
            attempt,
            replaces: None,
        });
    }
    if !pod.is_host_network() && newest.ips.is_empty() {
        return Some(NewSandbox { attempt, replaces });
    }
    None
}

fn with_new_sandbox(pod: &Pod, observed: &RuntimePod, new: NewSandbox, pod_restarts: bool) -> Plan {
    // Something to stop: a former sandbox, or containers without one.
    let kill_pod = !observed.sandboxes.is_empty() || alive(observed).next().is_some();
    // KRT-03: with policy Never a pod that ever had a container gets no second sandbox.
    if !pod_restarts && new.attempt != 0 && !observed.containers.is_empty() {
        return nothing_more(observed);
    }
    let regular: Vec<Start> = pod
        .regular_containers()
        .filter(|spec| {
            let has_succeeded = observed
                .newest(&spec.name)
                .and_then(|container| container.state.exit())
                .is_some_and(|exit| exit.code == 0);
            !(pod.spec().restart_policy.as_deref() == Some("OnFailure") && has_succeeded)
        })
        .map(|spec| start(spec, Role::Regular))
        .collect();
    let had_regular = pod
        .regular_containers()
        .any(|spec| observed.newest(&spec.name).is_some());
    if regular.is_empty() && had_regular {
        return nothing_more(observed);
    }
    let first_init = pod.init_containers().next();
    Plan {
        kill_pod,
        sandbox: Some(new),
        kill: Vec::new(),
        // Init containers run anew in a new sandbox: what is left of the old ones goes (INIT-01).
        remove: pod
            .init_containers()
            .flat_map(|(spec, _)| observed.all_of(&spec.name))
            .map(|container| container.id.clone())
            .collect(),
        start: match first_init {
            Some((spec, role)) => vec![start(spec, role)],
            None => regular,
        },
    }
}

enum Init {
    Done,
    UnderWay,
    /// An init container failed and may not run again.
    Failed,
}

/// Looks at init containers and sidecars from the last to the first: the last one that left a trace
/// in this sandbox tells how far the chain has come, whatever became of the records before it.
fn plan_init(pod: &Pod, observed: &RuntimePod, pod_restarts: bool, plan: &mut Plan) -> Init {
    let init: Vec<_> = pod.init_containers().collect();
    if init.is_empty() {
        return Init::Done;
    }
    let current = observed.newest_sandbox().map(|sandbox| &sandbox.id);
    let active = |name: &str| {
        observed
            .newest(name)
            .filter(|container| Some(&container.sandbox) == current)
    };
    // A regular container of this sandbox has been made: the chain is done.
    let mut is_done = pod
        .regular_containers()
        .any(|spec| active(&spec.name).is_some());
    let mut is_passed = is_done;
    let mut starts: Vec<Start> = Vec::new();
    for (at, (spec, role)) in init.iter().enumerate().rev() {
        let is_last = at + 1 == init.len();
        let next = |starts: &mut Vec<Start>| {
            if let Some((spec, role)) = init.get(at + 1) {
                starts.push(start(spec, *role));
            }
        };
        let Some(container) = active(&spec.name) else {
            if is_passed && *role == Role::Sidecar {
                starts.push(start(spec, *role));
            }
            continue;
        };
        if is_passed && *role != Role::Sidecar {
            continue;
        }
        match (&container.state, role) {
            (ContainerState::Created, _) => {
                plan.remove.push(container.id.clone());
                starts.push(instead_of(spec, *role, container));
            }
            (ContainerState::Running { .. }, Role::Sidecar) => {
                if is_last {
                    is_done = true;
                } else if !is_passed {
                    next(&mut starts);
                }
                if has_changed(spec, container) {
                    plan.kill.push(Kill {
                        id: container.id.clone(),
                        name: spec.name.clone(),
                        message: format!("Init container {} definition changed", spec.name),
                    });
                    starts.push(start(spec, *role));
                }
            }
            (ContainerState::Running { .. }, Role::Init | Role::Regular) => {}
            (ContainerState::Exited(_), Role::Sidecar) => starts.push(start(spec, *role)),
            (ContainerState::Exited(exit), Role::Init | Role::Regular) => {
                // A memory kill in an init container is a failure whatever its code (INIT-01).
                if exit.code != 0 || exit.oom_seen {
                    // Marked by a memory kill, code 0 is a failure as well.
                    if !pod.should_restart(spec, if exit.code == 0 { 137 } else { exit.code }) {
                        return Init::Failed;
                    }
                    starts.push(start(spec, *role));
                } else if is_last {
                    is_done = true;
                } else {
                    next(&mut starts);
                }
            }
            (ContainerState::Unknown, Role::Sidecar) => {
                plan.kill
                    .push(kill_unknown(spec, container, "Init container"));
                starts.push(start(spec, *role));
            }
            (ContainerState::Unknown, Role::Init | Role::Regular) => {
                if !pod_restarts {
                    return Init::Failed;
                }
                plan.kill
                    .push(kill_unknown(spec, container, "Init container"));
                starts.push(start(spec, *role));
            }
        }
        is_passed = true;
    }
    if !is_passed && let Some((spec, role)) = init.first() {
        starts.push(start(spec, *role));
    }
    starts.reverse();
    plan.start = starts;
    if is_done { Init::Done } else { Init::UnderWay }
}

/// Only image and name count (KRT-08). A container of another agent without a hash is left alone.
fn has_changed(spec: &ContainerSpec, container: &Container) -> bool {
    container
        .hash
        .is_some_and(|hash| hash != container_hash(spec))
}

fn kill_unknown(spec: &ContainerSpec, container: &Container, kind: &str) -> Kill {
    Kill {
        id: container.id.clone(),
        name: spec.name.clone(),
        message: format!("{kind} is in \"unknown\" state, try killing it before restart"),
    }
}

fn start(spec: &ContainerSpec, role: Role) -> Start {
    Start {
        name: spec.name.clone(),
        role,
        reuse_count: None,
    }
}

fn instead_of(spec: &ContainerSpec, role: Role, container: &Container) -> Start {
    Start {
        reuse_count: Some(container.restart_count),
        ..start(spec, role)
    }
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
