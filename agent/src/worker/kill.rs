//! Stops containers and pods with their grace: SIGTERM, then SIGKILL when it is over.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::Instant;

use super::{Context, context, context::spec_of};
use crate::{
    cri,
    types::{
        pod::{Pod, Role},
        reason::event,
        runtime::{Container, RuntimePod},
        timeline::Level,
    },
};

/// StopContainer never gets less (WORK-05, KRT-16).
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// Grace of a pod that nobody knows (WORK-10).
const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// What stopping a pod failed at: one line a failure.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct KillError(Vec<String>);

/// The grace in force: the shorter of the pod's own and what the order says, at least a second.
pub(super) fn grace(pod: &Pod, order: Option<Duration>) -> Duration {
    let own = context::spec_grace(pod.object());
    order
        .map_or(own, |order| own.min(order))
        .max(Duration::from_secs(1))
}

/// Stops all containers, then the sandboxes (KRT-15). Regular containers go first, all at once;
/// sidecars follow in reverse order, each when the later ones are gone (INIT-04).
pub(super) async fn kill_pod(
    context: &Arc<Context>,
    pod: &Pod,
    observed: &RuntimePod,
    grace: Duration,
) -> Result<(), KillError> {
    let deadline = Instant::now() + grace;
    let order: HashMap<&str, usize> = pod
        .init_containers()
        .filter(|(_, role)| *role == Role::Sidecar)
        .enumerate()
        .map(|(at, (spec, _))| (spec.name.as_str(), at))
        .collect();
    let (mut sidecars, first): (Vec<_>, Vec<_>) = super::plan::alive(observed)
        .partition(|container| order.contains_key(container.name.as_str()));
    let mut failures: Vec<String> = Vec::new();
    let stopped = join_all(
        first
            .iter()
            .map(|container| kill_container(context, pod, container, None, grace)),
    )
    .await;
    failures.extend(
        stopped
            .into_iter()
            .filter_map(Result::err)
            .map(|error| error.to_string()),
    );
    sidecars.sort_by_key(|container| std::cmp::Reverse(order.get(container.name.as_str())));
    for container in sidecars {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = kill_container(context, pod, container, None, left).await {
            failures.push(error.to_string());
        }
    }
    failures.extend(stop_sandboxes(&context.runtime, observed).await);
    if failures.is_empty() {
        Ok(())
    } else {
        Err(KillError(failures))
    }
}

/// A container that is gone already is stopped.
pub(super) async fn kill_container(
    context: &Context,
    pod: &Pod,
    container: &Container,
    message: Option<&str>,
    grace: Duration,
) -> Result<(), cri::Error> {
    let message = message.map_or_else(
        || format!("Stopping container {}", container.name),
        str::to_owned,
    );
    let name = spec_of(pod, &container.name).map(|(spec, _)| spec.name.as_str());
    context.event(pod, name, Level::Normal, event::KILLING, message);
    match context
        .runtime
        .stop_container(&container.id, grace.max(LEAST_GRACE))
        .await
    {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn stop_sandboxes(runtime: &cri::Client, observed: &RuntimePod) -> Vec<String> {
    let mut failures = Vec::new();
    for sandbox in &observed.sandboxes {
        match runtime.stop_sandbox(&sandbox.id).await {
            Err(error) if !error.is_not_found() => failures.push(error.to_string()),
            Ok(()) | Err(_) => {}
        }
    }
    failures
}

/// Stops what runs of a pod that no source wants and no worker has (KRT-17, LOOP-14).
///
/// # Errors
/// Something could not be stopped; the next housekeeping tries again.
pub async fn kill_orphan(runtime: &cri::Client, observed: &RuntimePod) -> Result<(), KillError> {
    let grace = ORPHAN_GRACE.max(LEAST_GRACE);
    let stopped = join_all(
        super::plan::alive(observed).map(|container| runtime.stop_container(&container.id, grace)),
    )
    .await;
    let mut failures: Vec<String> = stopped
        .into_iter()
        .filter_map(Result::err)
        .filter(|error| !error.is_not_found())
        .map(|error| error.to_string())
        .collect();
    failures.extend(stop_sandboxes(runtime, observed).await);
    if failures.is_empty() {
        Ok(())
    } else {
        Err(KillError(failures))
    }
}
