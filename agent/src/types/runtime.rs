//! What exists in the container runtime, as last read: pods' sandboxes and containers.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use serde::Serialize;

use super::id::{ContainerId, PodKey, PodUid, SandboxId};

/// All that the runtime has of one pod. `PartialEq` compares what the runtime said, so a re-read
/// that brought nothing new is equal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuntimePod {
    pub uid: PodUid,
    pub key: PodKey,
    /// Newest first: by attempt, then creation time, then id, all descending. The first is "the"
    /// sandbox (KRT-24).
    pub sandboxes: Vec<Sandbox>,
    /// Newest first, by creation time.
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub is_ready: bool,
    pub created_at: Timestamp,
    /// The sandbox's own first, then additional ones, as the runtime ordered them. Kept from the
    /// last ready state once the sandbox has stopped (PLEG-10).
    pub ips: Vec<IpAddr>,
    pub is_host_network: bool,
    pub runtime_handler: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Container {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub name: String,
    /// `metadata.attempt`, which is the restart count when it was created.
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: Timestamp,
    /// As the runtime reports it, verbatim: `status.image` of the API.
    pub image: String,
    /// `image_ref` verbatim: `status.imageID` of the API.
    pub image_ref: String,
    /// From the annotation `io.kubernetes.container.hash`; none on containers of others.
    pub hash: Option<u32>,
    /// From the annotation `io.kubernetes.container.restartCount`, else `attempt`.
    pub restart_count: u32,
    /// From the annotations `io.kubernetes.container.terminationMessage{Path,Policy}`.
    pub termination_message_path: Option<String>,
    pub termination_message_policy: Option<String>,
    /// Path of the CRI log file on the host.
    pub log_path: Option<String>,
    /// Path on the host of what the container has mounted at `termination_message_path`.
    pub termination_message_host_path: Option<String>,
    /// The main process as the agent's own pid namespace sees it, once known.
    pub pid: Option<u32>,
    pub user: Option<ContainerUser>,
    pub resources: Option<ContainerResources>,
}

/// uid, gid and groups that the main process started with (COND-20).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

/// Linux resources that the runtime reports as applied; zero means unset, as in the CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerResources {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory_limit_bytes: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ContainerState {
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited(Exit),
    /// The runtime has a record but does not know (after a restart of its own).
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exit {
    pub code: i32,
    pub signal: i32,
    /// CRI reasons: Completed, Error, OOMKilled, StartError, ContainerCannotRun, Unknown.
    pub reason: String,
    pub message: String,
    /// None where it never ran.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    pub witness: Witness,
    /// The kernel killed a process of this container for memory while it lived, be it the main
    /// one or a child: an init container so marked has failed (INIT-01).
    pub oom_seen: bool,
}

/// Whose word an exit stands on. The kernel's comes first and may be acted on (design 2.1); the
/// runtime's record replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Witness {
    Kernel,
    Runtime,
}

impl ContainerState {
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Created | Self::Running { .. } | Self::Unknown => None,
        }
    }
}

impl RuntimePod {
    pub fn empty(uid: PodUid, key: PodKey) -> Self {
        Self {
            uid,
            key,
            sandboxes: Vec::new(),
            containers: Vec::new(),
        }
    }

    /// It has a container, or a sandbox (by its pause container), of this id.
    pub fn has(&self, id: &ContainerId) -> bool {
        self.container(id).is_some()
            || self
                .sandboxes
                .iter()
                .any(|sandbox| sandbox.id.as_str() == id.as_str())
    }

    /// The newest container of a name: the one whose state is the name's state.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }

    /// All containers of a name, newest first.
    pub fn all_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Container> + 'a {
        self.containers
            .iter()
            .filter(move |container| container.name == name)
    }

    pub fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == *id)
    }

    pub fn newest_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first()
    }

    /// A sandbox is ready or a container runs: there is something to stop.
    pub fn is_running(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.is_ready)
            || self
                .containers
                .iter()
                .any(|container| container.state.is_running())
    }
}

/// Shared form: what the cache hands out.
pub type SharedRuntimePod = Arc<RuntimePod>;

/// Containers for tests: what a test does not speak of is as plain as can be.
#[cfg(test)]
pub(crate) fn container_for_tests(name: &str, state: ContainerState) -> Container {
    Container {
        id: ContainerId::from(name),
        sandbox: SandboxId::from("s"),
        name: name.to_owned(),
        attempt: 0,
        state,
        created_at: Timestamp::UNIX_EPOCH,
        image: "busybox:1".to_owned(),
        image_ref: "sha256:1".to_owned(),
        hash: None,
        restart_count: 0,
        termination_message_path: None,
        termination_message_policy: None,
        log_path: None,
        termination_message_host_path: None,
        pid: None,
        user: None,
        resources: None,
    }
}
