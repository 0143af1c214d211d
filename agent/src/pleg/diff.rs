//! Two pictures of a pod -> what changed (PLEG-02, PLEG-03). Pure.

use crate::types::{
    id::ContainerId,
    runtime::{ContainerState, RuntimePod},
};

use super::Change;

/// What an observer of states would say happened between two pictures of a pod; none where nothing
/// did. The runtime's record replacing the kernel's word for the same exit is a change of the
/// picture, but no second death.
pub(super) fn change(old: &RuntimePod, new: &RuntimePod) -> Option<Change> {
    if old == new {
        return None;
    }
    if new.sandboxes.is_empty() && new.containers.is_empty() {
        return Some(Change::Gone);
    }
    let died = died(old, new);
    Some(if died.is_empty() {
        Change::Changed
    } else {
        Change::Died(died)
    })
}

/// Ids that lived and do not any more: containers, and sandboxes (which count as containers).
fn died(old: &RuntimePod, new: &RuntimePod) -> Vec<ContainerId> {
    let mut died: Vec<ContainerId> = Vec::new();
    for container in &new.containers {
        let had_ended = old
            .container(&container.id)
            .is_some_and(|old| has_ended(&old.state));
        if has_ended(&container.state) && !had_ended {
            died.push(container.id.clone());
        }
    }
    for container in &old.containers {
        if !has_ended(&container.state) && new.container(&container.id).is_none() {
            died.push(container.id.clone());
        }
    }
    for sandbox in old.sandboxes.iter().filter(|sandbox| sandbox.is_ready) {
        if !new
            .sandboxes
            .iter()
            .any(|new| new.id == sandbox.id && new.is_ready)
        {
            died.push(ContainerId::from(sandbox.id.as_str()));
        }
    }
    died
}

fn has_ended(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Exited(_))
}

/// A container runs in `new` that did not in `old`.
pub(super) fn has_started(old: &RuntimePod, new: &RuntimePod) -> bool {
    let running = new
        .containers
        .iter()
        .filter(|container| container.state.is_running());
    running.into_iter().any(|container| {
        !old.container(&container.id)
            .is_some_and(|old| old.state.is_running())
    })
}
