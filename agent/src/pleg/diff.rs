//! Two pictures of a pod -> what happened between them (PLEG-02, PLEG-03). Pure.

use super::Change;
use crate::types::{
    id::ContainerId,
    runtime::{ContainerState, RuntimePod},
};

/// What an observer of states would say happened between two pictures of a pod; empty where nothing
/// did. The runtime's record replacing the kernel's word for the same exit is a change of the
/// picture, but no second death.
pub(super) fn changes(old: &RuntimePod, new: &RuntimePod) -> Vec<Change> {
    if old == new {
        return Vec::new();
    }
    let (before, after) = (lives(old), lives(new));
    let life_in = |lives: &[(ContainerId, Life)], id: &ContainerId| {
        lives
            .iter()
            .find(|(other, _)| other == id)
            .map(|(_, life)| *life)
    };
    let mut changes = Vec::new();
    for (id, now) in &after {
        if life_in(&before, id) != Some(*now) {
            changes.push(match now {
                Life::Running => Change::ContainerStarted(id.clone()),
                Life::Ended => Change::ContainerDied(id.clone()),
                Life::Other => Change::ContainerChanged(id.clone()),
            });
        }
    }
    for (id, life) in before {
        if life_in(&after, &id).is_none() {
            if life != Life::Ended {
                changes.push(Change::ContainerDied(id.clone()));
            }
            changes.push(Change::ContainerRemoved(id));
        }
    }
    if changes.is_empty() {
        changes.push(Change::PodSync);
    }
    changes
}

/// As much of a state as events tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Ended,
    Other,
}

/// Containers, and sandboxes, which count as containers.
fn lives(pod: &RuntimePod) -> Vec<(ContainerId, Life)> {
    let containers = pod.containers.iter().map(|container| {
        let life = match container.state {
            ContainerState::Running { .. } => Life::Running,
            ContainerState::Exited(_) => Life::Ended,
            ContainerState::Created | ContainerState::Unknown => Life::Other,
        };
        (container.id.clone(), life)
    });
    let sandboxes = pod.sandboxes.iter().map(|sandbox| {
        let life = if sandbox.is_ready {
            Life::Running
        } else {
            Life::Ended
        };
        (ContainerId::from(sandbox.id.as_str()), life)
    });
    containers.chain(sandboxes).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::types::{
        id::{PodKey, PodUid},
        runtime::{Exit, Witness, container_for_tests},
    };

    const RUNS: ContainerState = ContainerState::Running {
        started_at: jiff::Timestamp::UNIX_EPOCH,
    };

    fn ended(witness: Witness) -> ContainerState {
        ContainerState::Exited(Exit {
            code: 1,
            signal: 0,
            reason: "Error".to_owned(),
            message: String::new(),
            started_at: None,
            finished_at: jiff::Timestamp::UNIX_EPOCH,
            witness,
            oom_seen: false,
        })
    }

    fn pod(state: Option<ContainerState>) -> RuntimePod {
        let mut pod = RuntimePod::empty(PodUid::from("u"), PodKey::new("default", "p"));
        pod.containers
            .extend(state.map(|state| container_for_tests("c", state)));
        pod
    }

    #[rstest]
    #[case::made(None, Some(ContainerState::Created), vec!["ContainerChanged"])]
    #[case::started(Some(ContainerState::Created), Some(RUNS), vec!["ContainerStarted"])]
    #[case::same(Some(RUNS), Some(RUNS), vec![])]
    #[case::died(Some(RUNS), Some(ended(Witness::Kernel)), vec!["ContainerDied"])]
    #[case::recorded(
        Some(ended(Witness::Kernel)), Some(ended(Witness::Runtime)), vec!["PodSync"]
    )]
    #[case::lost(Some(RUNS), Some(ContainerState::Unknown), vec!["ContainerChanged"])]
    #[case::removed(Some(ended(Witness::Runtime)), None, vec!["ContainerRemoved"])]
    #[case::removed_alive(Some(RUNS), None, vec!["ContainerDied", "ContainerRemoved"])]
    fn tells_what_happened_in_upstreams_words(
        #[case] old: Option<ContainerState>,
        #[case] new: Option<ContainerState>,
        #[case] told: Vec<&str>,
    ) {
        let changes = changes(&pod(old), &pod(new));
        let names: Vec<&'static str> = changes.iter().map(Into::into).collect();
        assert_eq!(names, told);
    }
}
