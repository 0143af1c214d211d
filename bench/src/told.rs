//! What an agent tells of its pods at its read-only port's `/pods`, as far as benches read it.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::subject::settings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// As the manifest has it.
    pub name: String,
    pub phase: String,
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id of the current instance; empty where there is none yet.
    pub id: String,
    pub is_running: bool,
    /// The current and the last instance's, where they have ended.
    pub ends: Vec<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The instance's.
    pub id: String,
    pub reason: String,
}

impl Pod {
    /// How that instance of a container ended; none where that is not told.
    pub fn end(&self, id: &str) -> Option<&End> {
        let mut ends = self.containers.iter().flat_map(|it| &it.ends);
        ends.find(|end| end.id == id)
    }

    /// Whether all is as if nothing had ever happened to that instance, its only container's.
    pub fn is_running(&self, id: &str) -> bool {
        let is_it = |container: &Container| container.is_running && container.id == id;
        self.phase == "Running" && self.containers.iter().any(is_it)
    }
}

mod wire {
    use serde::Deserialize;

    #[derive(Deserialize)]
    pub(super) struct Pod {
        pub(super) metadata: Metadata,
        #[serde(default)]
        pub(super) status: PodStatus,
    }

    #[derive(Deserialize)]
    pub(super) struct Metadata {
        pub(super) name: String,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct PodStatus {
        pub(super) phase: String,
        pub(super) container_statuses: Vec<Status>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct Status {
        #[serde(rename = "containerID")]
        pub(super) container_id: String,
        pub(super) state: State,
        pub(super) last_state: State,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    pub(super) struct State {
        pub(super) running: Option<Running>,
        pub(super) terminated: Option<Terminated>,
    }

    #[derive(Deserialize)]
    pub(super) struct Running {}

    #[derive(Default, Deserialize)]
    #[serde(default)]
    pub(super) struct Terminated {
        #[serde(rename = "containerID")]
        pub(super) container_id: String,
        pub(super) reason: String,
    }
}

#[derive(Deserialize)]
struct List {
    /// A node without pods may say null.
    items: Option<Vec<wire::Pod>>,
}

pub fn parse(text: &str) -> Result<Vec<Pod>> {
    let list: List = serde_json::from_str(text).context("reading the agent's pods")?;
    Ok(list
        .items
        .unwrap_or_default()
        .into_iter()
        .map(pod)
        .collect())
}

fn pod(pod: wire::Pod) -> Pod {
    let name = pod.metadata.name;
    Pod {
        name: match name.strip_suffix(settings::NODE_SUFFIX) {
            Some(name) => name.to_owned(),
            None => name,
        },
        phase: pod.status.phase,
        containers: pod
            .status
            .container_statuses
            .into_iter()
            .map(container)
            .collect(),
    }
}

fn container(status: wire::Status) -> Container {
    let is_running = status.state.running.is_some();
    let ends = [status.state.terminated, status.last_state.terminated];
    Container {
        id: bare(&status.container_id),
        is_running,
        ends: ends
            .into_iter()
            .flatten()
            .map(|end| End {
                id: bare(&end.container_id),
                reason: end.reason,
            })
            .collect(),
    }
}

/// Kubernetes puts the runtime's name before the id.
fn bare(id: &str) -> String {
    let bare = id.rsplit_once("://").map_or(id, |(_, bare)| bare);
    bare.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_instances_end_is_told_beside_the_current_one() {
        let text = json!({"kind": "PodList", "items": [{
            "metadata": {"name": "p1-node"},
            "spec": {},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "main",
                "containerID": "containerd://b",
                "restartCount": 1,
                "state": {"running": {"startedAt": "2026-11-30T00:00:00Z"}},
                "lastState": {"terminated": {"containerID": "containerd://a", "reason": "Error"}},
            }]},
        }]});
        let pods = parse(&text.to_string()).unwrap();
        assert_eq!(pods[0].name, "p1");
        assert!(pods[0].is_running("b") && !pods[0].is_running("a"));
        assert_eq!(pods[0].end("a").unwrap().reason, "Error");
        assert_eq!(pods[0].end("b"), None);
    }

    #[test]
    fn a_node_without_pods_and_a_pod_without_status_can_be_read() {
        assert_eq!(parse(r#"{"items": null}"#).unwrap(), []);
        let pods = parse(r#"{"items": [{"metadata": {"name": "p"}}]}"#).unwrap();
        assert_eq!((pods[0].phase.as_str(), pods[0].containers.len()), ("", 0));
    }
}
