//! What the runs ask of the agent, of the runtime and of the machine, beyond what a node's test does.

use std::collections::{BTreeSet, HashMap};

use agent::{
    cri::ListedState,
    types::id::{ContainerId, PodUid},
};
use k8s_openapi::api::core::v1::ContainerStatus;

use crate::node::{Node, Picture};

/// Goes on until it is told to stop, which it does at once.
pub(crate) const LASTING: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

/// All these pods run.
pub(crate) fn all_run(pods: &Picture, names: &[String]) -> Option<()> {
    names.iter().try_for_each(|name| pods.all_run(name))
}

pub(crate) fn id(status: &ContainerStatus) -> ContainerId {
    let id = status.container_id.as_deref().expect("it was created");
    id.trim_start_matches("containerd://").into()
}

/// Watches the runtime for what must never be there: two instances of one container that run, or
/// two that have run under one attempt.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    have_run: HashMap<(PodUid, String, u32), ContainerId>,
    restarted: BTreeSet<String>,
}

impl Duplicates {
    pub(crate) async fn check(&mut self, node: &Node) {
        for pod in node.client.list_pods().await.unwrap() {
            let ready = pod.sandboxes.iter().filter(|sandbox| sandbox.is_ready);
            let ready = ready.count();
            assert!(ready <= 1, "{} has {ready} sandboxes", pod.key);
            let mut running = BTreeSet::new();
            for container in &pod.containers {
                let name = &container.name;
                if container.state == ListedState::Running {
                    let is_only = running.insert(name);
                    assert!(is_only, "{name} of {} runs twice", pod.key);
                } else if container.state != ListedState::Exited {
                    continue;
                }
                let place = (pod.uid.clone(), name.clone(), container.attempt);
                let known = self.have_run.entry(place).or_insert(container.id.clone());
                assert_eq!(
                    *known, container.id,
                    "two instances of {name} in {} ran as attempt {}",
                    pod.key, container.attempt
                );
                if container.attempt > 0 {
                    self.restarted.insert(format!("{}/{name}", pod.key));
                }
            }
        }
    }

    /// Containers of which more than one instance ran.
    pub(crate) fn restarted(&self) -> &BTreeSet<String> {
        &self.restarted
    }
}
