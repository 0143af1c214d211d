//! What the runs ask of the agent, of the runtime and of the machine, beyond what a node's test does.

use std::collections::{BTreeMap, BTreeSet};

use agent::{
    cri::{ListedContainer, ListedState},
    types::id::ContainerId,
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

/// Watches the runtime for what must never be there: two instances of one container that run at a
/// time, or that have run one after the other although nothing ended the first.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    /// Of each pod's container, those that have run, by attempt.
    have_run: BTreeMap<(String, String), BTreeMap<u32, ContainerId>>,
    /// Their start was cut off, so that they never ran.
    cut_off: BTreeSet<ContainerId>,
}

impl Instances {
    pub(crate) async fn check(&mut self, node: &Node) {
        for pod in node.client.list_pods().await.unwrap() {
            let ready = pod.sandboxes.iter().filter(|sandbox| sandbox.is_ready);
            let ready = ready.count();
            assert!(ready <= 1, "{} has {ready} sandboxes", pod.key);
            let mut running = BTreeSet::new();
            for container in &pod.containers {
                let (name, id) = (&container.name, &container.id);
                match container.state {
                    ListedState::Running => {
                        let is_only = running.insert(name);
                        assert!(is_only, "{name} of {} runs twice", pod.key);
                    }
                    // One that is gone by now was seen, or its successor is.
                    ListedState::Exited if self.has_run(node, container).await => {}
                    ListedState::Exited | ListedState::Created | ListedState::Unknown => continue,
                }
                let place = (pod.key.to_string(), name.clone());
                let instances = self.have_run.entry(place).or_default();
                let known = instances.entry(container.attempt).or_insert(id.clone());
                let attempt = container.attempt;
                assert_eq!(known, id, "{name} of {} ran twice as {attempt}", pod.key);
            }
        }
    }

    async fn has_run(&mut self, node: &Node, container: &ListedContainer) -> bool {
        let asked = node
            .client
            .container_status(&container.id, &container.sandbox);
        let Ok(found) = asked.await else { return false };
        let has_run = found
            .state
            .exit()
            .is_some_and(|exit| exit.started_at.is_some());
        if !has_run {
            self.cut_off.insert(container.id.clone());
        }
        has_run
    }

    /// Containers of which more than one instance has run.
    pub(crate) fn restarted(&self) -> Vec<&(String, String)> {
        let several = |instances: &BTreeMap<_, _>| instances.len() > 1;
        let all = self.have_run.iter();
        all.filter(|(_, instances)| several(instances))
            .map(|(place, _)| place)
            .collect()
    }

    /// How many have run, and how many starts were cut off.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.have_run.len(), self.cut_off.len())
    }
}
