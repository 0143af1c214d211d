//! One entry of the timeline: what happened to a pod, and when each party knew.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{ContainerId, PodKey, PodUid};

/// An entry as it is kept on disk and shown by `skep events`.
///
/// Two families share it: transitions (a container started, died, was killed for memory), with
/// kernel and runtime times, and the kubelet's own events (Pulling, Created, Started, Killing,
/// BackOff ...), which have a `reason` of upstream's and a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When the agent knew; entries are ordered by it.
    pub agent_at: Timestamp,
    /// When it happened, by the kernel's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_at: Option<Timestamp>,
    /// When it happened, by the runtime's record (startedAt, finishedAt).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_at: Option<Timestamp>,
    /// When the runtime's record could first be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_known_at: Option<Timestamp>,
    pub pod: Option<PodKey>,
    pub uid: Option<PodUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<ContainerId>,
    pub level: Level,
    /// A word for the kind: upstream's event reason where there is one (Started, Killing,
    /// BackOff, Failed ...), else Skep's own (Died, OomKilled, ChildOomKilled, Gap, Mode).
    pub reason: String,
    pub message: String,
}

impl Entry {
    /// An entry of this moment that belongs to no pod; fields that say more are laid over it.
    pub fn now(level: Level, reason: &str, message: impl Into<String>) -> Self {
        Self {
            agent_at: super::clock::wall_now(),
            kernel_at: None,
            runtime_at: None,
            runtime_known_at: None,
            pod: None,
            uid: None,
            container: None,
            container_id: None,
            level,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The API's event types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
pub enum Level {
    Normal,
    Warning,
}
