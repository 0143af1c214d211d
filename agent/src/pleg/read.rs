//! One pod from the runtime. What cannot have changed since the last reading is not asked for
//! again: a recorded exit, and a container that the list still shows running.

use std::collections::HashMap;

use super::message;
use crate::{
    cri::{self, ListedPod, ListedState},
    types::{
        id::{ContainerId, PodUid, SandboxId},
        runtime::{Container, ContainerState, RuntimePod, Sandbox, Witness},
    },
};

/// Reads the pod. Containers that vanish between the list and the question are left out.
pub(super) async fn pod(
    client: &cri::Client,
    uid: &PodUid,
    known: Option<&RuntimePod>,
) -> Result<RuntimePod, cri::Error> {
    let listed = client.list_pod(uid).await?;
    of_listed(client, &listed, known).await
}

/// The pod of which a listing has just shown this much.
pub(super) async fn of_listed(
    client: &cri::Client,
    listed: &ListedPod,
    known: Option<&RuntimePod>,
) -> Result<RuntimePod, cri::Error> {
    let mut sandboxes = Vec::with_capacity(listed.sandboxes.len());
    for item in &listed.sandboxes {
        let before = known.and_then(|k| k.sandboxes.iter().find(|s| s.id == item.id));
        match before {
            // A ready sandbox gets its addresses once and keeps them.
            Some(before) if before.is_ready == item.is_ready && !before.ips.is_empty() => {
                sandboxes.push(before.clone());
            }
            _ => sandboxes.extend(
                found(client.sandbox_status(&item.id).await)?.map(|mut new| {
                    keep_addresses(&mut new, before);
                    new
                }),
            ),
        }
    }
    let mut containers = Vec::with_capacity(listed.containers.len());
    for item in &listed.containers {
        let before = known.and_then(|known| known.container(&item.id));
        match before.filter(|before| still_holds(before, item.state)) {
            Some(before) => containers.push(before.clone()),
            None => containers.extend(container(client, &item.id, &item.sandbox).await?),
        }
    }
    let key = if listed.key.name.is_empty() {
        known.map_or_else(|| listed.key.clone(), |known| known.key.clone())
    } else {
        listed.key.clone()
    };
    let mut pod = RuntimePod {
        uid: listed.uid.clone(),
        key,
        sandboxes,
        containers,
    };
    sort(&mut pod);
    Ok(pod)
}

/// One container's status; none where the runtime does not have it any more.
pub(super) async fn container(
    client: &cri::Client,
    id: &ContainerId,
    sandbox: &SandboxId,
) -> Result<Option<Container>, cri::Error> {
    let mut container = found(client.container_status(id, sandbox).await)?;
    if let Some(container) = &mut container {
        message::add(container).await;
    }
    Ok(container)
}

fn found<T>(answer: Result<T, cri::Error>) -> Result<Option<T>, cri::Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The addresses outlive the sandbox in the pod's status (PLEG-10).
fn keep_addresses(sandbox: &mut Sandbox, before: Option<&Sandbox>) {
    if !sandbox.is_ready
        && sandbox.ips.is_empty()
        && let Some(before) = before
    {
        sandbox.ips.clone_from(&before.ips);
    }
}

fn still_holds(before: &Container, listed: ListedState) -> bool {
    match (&before.state, listed) {
        (ContainerState::Running { .. }, ListedState::Running) => true,
        (ContainerState::Exited(exit), ListedState::Exited) => exit.witness == Witness::Runtime,
        // The kernel is ahead: its word stands until there is a record.
        (ContainerState::Exited(exit), ListedState::Running) => exit.witness == Witness::Kernel,
        _ => false,
    }
}

/// Newest first, as KRT-24 orders sandboxes.
fn sort(pod: &mut RuntimePod) {
    pod.sandboxes.sort_by(|a, b| {
        (b.attempt, b.created_at, b.id.as_str()).cmp(&(a.attempt, a.created_at, a.id.as_str()))
    });
    pod.containers.sort_by(|a, b| {
        (b.created_at, b.attempt, b.id.as_str()).cmp(&(a.created_at, a.attempt, a.id.as_str()))
    });
}

/// Whether a listing says the same of a pod as the cache: ids and states.
pub(super) fn agrees(listed: Option<&ListedPod>, known: Option<&RuntimePod>) -> bool {
    let listed_sandboxes: HashMap<&str, bool> = listed
        .map(|pod| {
            pod.sandboxes
                .iter()
                .map(|s| (s.id.as_str(), s.is_ready))
                .collect()
        })
        .unwrap_or_default();
    let known_sandboxes: HashMap<&str, bool> = known
        .map(|pod| {
            pod.sandboxes
                .iter()
                .map(|s| (s.id.as_str(), s.is_ready))
                .collect()
        })
        .unwrap_or_default();
    let listed_containers: HashMap<&ContainerId, ListedState> = listed
        .map(|pod| pod.containers.iter().map(|c| (&c.id, c.state)).collect())
        .unwrap_or_default();
    let known_containers: HashMap<&ContainerId, &Container> = known
        .map(|pod| pod.containers.iter().map(|c| (&c.id, c)).collect())
        .unwrap_or_default();
    listed_sandboxes == known_sandboxes
        && listed_containers.len() == known_containers.len()
        && listed_containers.iter().all(|(id, state)| {
            known_containers
                .get(id)
                .is_some_and(|known| match (&known.state, state) {
                    (ContainerState::Created, ListedState::Created)
                    | (ContainerState::Unknown, ListedState::Unknown) => true,
                    // An exit that the runtime lost and the kernel told is an exit here.
                    (ContainerState::Exited(_), ListedState::Unknown) => true,
                    _ => still_holds(known, *state),
                })
        })
}
