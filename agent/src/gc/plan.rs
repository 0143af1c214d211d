//! What may go: pure decisions over the cache's pods.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
};

use jiff::Timestamp;

use crate::{
    config::GcSettings,
    types::{
        id::{ContainerId, PodKey, PodUid, SandboxId},
        runtime::{Container, ContainerState, RuntimePod, SharedRuntimePod, Witness},
    },
};

/// What the workers know of pods.
#[derive(Clone, Copy, Debug)]
pub struct Pods<'a> {
    /// Pods with a worker, in whatever phase.
    pub known: &'a HashSet<PodUid>,
    /// Those of them that have terminated and that nobody wants any more.
    pub finished: &'a HashSet<PodUid>,
    /// Every source has told its pods: a pod that is not known is wanted by nobody. Before that,
    /// nothing of an unknown pod goes.
    pub are_sources_ready: bool,
}

impl Pods<'_> {
    /// Nothing of the pod needs to stay (upstream's ShouldPodContentBeRemoved).
    pub(super) fn is_removable(&self, uid: &PodUid) -> bool {
        if self.known.contains(uid) {
            self.finished.contains(uid)
        } else {
            self.are_sources_ready
        }
    }
}

/// A container that may go, with what its logs are found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub id: ContainerId,
    pub key: PodKey,
    pub uid: PodUid,
    pub name: String,
    pub log_path: Option<PathBuf>,
    /// The runtime does not know whether it runs: it is stopped first.
    pub is_unknown: bool,
}

impl Removal {
    pub fn new(pod: &RuntimePod, container: &Container) -> Self {
        Self {
            id: container.id.clone(),
            key: pod.key.clone(),
            uid: pod.uid.clone(),
            name: container.name.clone(),
            log_path: container.log_path.as_ref().map(PathBuf::from),
            is_unknown: container.state == ContainerState::Unknown,
        }
    }
}

/// Not running, and known to be so by the runtime.
fn is_dead(state: &ContainerState) -> bool {
    match state {
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited(exit) => exit.witness == Witness::Runtime,
        ContainerState::Running { .. } => false,
    }
}

/// One dead container; the order is by age, newest first.
struct Dead<'a> {
    pod: &'a RuntimePod,
    container: &'a Container,
}

impl Dead<'_> {
    fn age_rank(&self) -> std::cmp::Reverse<(Timestamp, &ContainerId)> {
        std::cmp::Reverse((self.container.created_at, &self.container.id))
    }
}

/// Dead containers by pod and name.
type Units<'a> = BTreeMap<(&'a PodUid, &'a str), Vec<Dead<'a>>>;

/// Takes what is beyond `keep` from each unit, whose order is newest first.
fn trim<'a>(units: &mut Units<'a>, keep: usize) -> Vec<Dead<'a>> {
    let mut taken = Vec::new();
    for unit in units.values_mut() {
        taken.extend(unit.drain(keep.min(unit.len())..));
    }
    units.retain(|_, unit| !unit.is_empty());
    taken
}

/// Containers that a periodic collection removes, oldest first (GC-01): all of pods that may go,
/// then what is beyond the number for each name of a pod, then what is beyond the total, an equal
/// share for each name and the oldest of all.
pub fn containers(
    snapshot: &[SharedRuntimePod],
    pods: &Pods<'_>,
    settings: &GcSettings,
    now: Timestamp,
) -> Vec<Removal> {
    let youngest = now.checked_sub(settings.min_age).unwrap_or(Timestamp::MIN);
    let mut units = Units::new();
    let mut going = Vec::new();
    for pod in snapshot {
        let is_removable = pods.are_sources_ready && pods.is_removable(&pod.uid);
        for container in &pod.containers {
            if !is_dead(&container.state) || container.created_at > youngest {
                continue;
            }
            let dead = Dead { pod, container };
            if is_removable {
                going.push(dead);
            } else {
                let unit = units.entry((&pod.uid, &container.name)).or_default();
                unit.push(dead);
            }
        }
    }
    for unit in units.values_mut() {
        unit.sort_by(|a, b| a.age_rank().cmp(&b.age_rank()));
    }
    if let Some(keep) = settings.max_per_container {
        going.extend(trim(&mut units, keep));
    }
    if let Some(max) = settings.max_dead
        && units.values().map(Vec::len).sum::<usize>() > max
    {
        let share = (max / units.len()).max(1);
        going.extend(trim(&mut units, share));
        let mut rest: Vec<_> = units.into_values().flatten().collect();
        if rest.len() > max {
            rest.sort_by(|a, b| a.age_rank().cmp(&b.age_rank()));
            going.extend(rest.drain(max..));
        }
    }
    going.sort_by(|a, b| b.age_rank().cmp(&a.age_rank()));
    going
        .into_iter()
        .map(|dead| Removal::new(dead.pod, dead.container))
        .collect()
}

/// Sandboxes that may go once `removed` are gone, oldest first: not ready, empty, and not the
/// newest of a pod that stays (GC-02; the newest is the one that was created last, KRT-24).
pub fn sandboxes(
    snapshot: &[SharedRuntimePod],
    pods: &Pods<'_>,
    removed: &[ContainerId],
) -> Vec<SandboxId> {
    let removed: HashSet<_> = removed.iter().collect();
    let occupied: HashSet<_> = snapshot
        .iter()
        .flat_map(|pod| &pod.containers)
        .filter(|container| !removed.contains(&container.id))
        .map(|container| &container.sandbox)
        .collect();
    let mut going = Vec::new();
    for pod in snapshot {
        let newest = pod
            .sandboxes
            .iter()
            .max_by_key(|sandbox| sandbox.created_at);
        let kept = newest
            .filter(|_| !pods.is_removable(&pod.uid))
            .map(|sandbox| &sandbox.id);
        going.extend(pod.sandboxes.iter().filter(|sandbox| {
            !sandbox.is_ready && !occupied.contains(&sandbox.id) && kept != Some(&sandbox.id)
        }));
    }
    going.sort_by_key(|sandbox| sandbox.created_at);
    going
        .into_iter()
        .map(|sandbox| sandbox.id.clone())
        .collect()
}

/// What goes at once when `died` has (GC-11): of the exited containers of its name all but the
/// newest, or but `max_per_container` if that is more; all exited ones of a pod that is finished.
pub fn after_death(
    pod: &RuntimePod,
    died: &ContainerId,
    is_finished: bool,
    settings: &GcSettings,
) -> Vec<Removal> {
    let Some(died) = pod.container(died) else {
        return Vec::new();
    };
    let keep = match (is_finished, settings.max_per_container) {
        (true, _) => 0,
        (false, None) => return Vec::new(),
        (false, Some(most)) => most.max(1),
    };
    let mut exited: Vec<_> = pod
        .containers
        .iter()
        .filter(|container| is_finished || container.name == died.name)
        .filter(|container| container.state.exit().is_some())
        .collect();
    exited.sort_by_key(|container| std::cmp::Reverse(container.created_at));
    exited
        .into_iter()
        .skip(keep)
        // Counted above, but not removed before the runtime has recorded its exit.
        .filter(|container| is_dead(&container.state))
        .map(|container| Removal::new(pod, container))
        .collect()
}
