//! The container runtime, through the CRI: the only place that knows its messages.
//!
//! [`Client`] is the way in: cheap to clone, connects when first used, and again when the runtime
//! comes back. Answers become the agent's own types (`types::runtime`, and what is here) and are
//! checked on the way; configurations for creation go in as the CRI's own messages (`proto`).
//! There is no state here besides the connection.

mod client;
mod convert;
mod endpoint;
mod error;
mod events;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod turns;

use jiff::Timestamp;
/// The CRI's messages, for those who fill in configurations.
pub use proto::cri::v1 as api;

pub use self::{
    client::Client,
    error::{Call, Error},
    events::{EventKind, Events, RuntimeEvent},
};
use crate::types::id::{ContainerId, PodKey, PodUid, SandboxId};

/// Labels by which a pod's sandboxes and containers are found again (upstream's `types.Kubernetes*Label`).
pub mod labels {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// Annotations of containers that the agent reads back after its own restart.
pub mod annotations {
    pub const HASH: &str = "io.kubernetes.container.hash";
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub const PORTS: &str = "io.kubernetes.container.ports";
    pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// Who the runtime is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// "containerd", the type in the API's container ids.
    pub runtime_name: String,
    pub runtime_version: String,
    /// "v1".
    pub runtime_api_version: String,
}

/// What the runtime says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// RuntimeReady.
    pub ready: Condition,
    /// NetworkReady.
    pub network: Condition,
    pub handlers: Vec<Handler>,
    pub features: Features,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub is_true: bool,
    pub reason: String,
    pub message: String,
}

/// A runtime handler (RuntimeClass); the default one has the name "".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    pub has_recursive_read_only_mounts: bool,
    pub has_user_namespaces: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub supplemental_groups_policy: bool,
}

/// What a listing has of one pod: enough to see what changed, too little for a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPod {
    /// Empty for containers without the label [`labels::POD_UID`].
    pub uid: PodUid,
    /// Of empty strings where nothing of the pod is left.
    pub key: PodKey,
    /// Newest first, as in `RuntimePod`.
    pub sandboxes: Vec<ListedSandbox>,
    /// Newest first, by creation time.
    pub containers: Vec<ListedContainer>,
}

impl ListedPod {
    /// The runtime has nothing of this pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub is_ready: bool,
    pub created_at: Timestamp,
    /// The runtime handler, "" for the default.
    pub handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub name: String,
    pub attempt: u32,
    pub state: ListedState,
    pub created_at: Timestamp,
}

/// A container's state without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ListedState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// What a command that ran to its end left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
}

/// An image that the runtime has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRecord {
    pub id: String,
    pub repo_tags: Vec<String>,
    pub repo_digests: Vec<String>,
    /// Bytes on disk.
    pub size: u64,
    /// The user that the image wants, by number; or by `username`.
    pub uid: Option<i64>,
    pub username: String,
    /// Never removed by image collection.
    pub is_pinned: bool,
}

/// Use of one file system that holds images or containers' writable layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsUse {
    pub mountpoint: String,
    pub used_bytes: u64,
    pub inodes_used: u64,
}

/// [`Client::image_fs_info`]: file systems of images and, where the runtime tells them apart, of
/// containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFs {
    pub images: Vec<FsUse>,
    pub containers: Vec<FsUse>,
}
