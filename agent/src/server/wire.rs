//! What the local API's requests and answers hold, for the server and the commands alike.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodObject;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::types::id::PodKey;

/// `GET /v1/pods`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    pub node: String,
    /// By namespace and name.
    pub pods: Vec<PodView>,
}

/// A pod as it is, and how its line in a table reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub object: PodObject,
    pub is_terminating: bool,
    pub printed: PrintedPod,
}

/// READY, STATUS and RESTARTS as `kubectl get pods` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrintedPod {
    pub ready: usize,
    pub total: usize,
    pub status: String,
    pub restarts: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restart: Option<Timestamp>,
}

/// `POST /v1/exec`: a command to run to its end, without input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecRequest {
    pub namespace: String,
    pub pod: String,
    /// None: the pod's default container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub command: Vec<String>,
    /// 0 is none.
    #[serde(default)]
    pub timeout_seconds: u64,
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    pub code: i32,
    pub stdout: Base64,
    pub stderr: Base64,
}

/// Bytes as base64 text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(&text)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// What the agent is and does: filled in by the composition root.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    pub version: String,
    pub node: String,
    /// The PLEG's mode in force; none before it is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    pub runtime_endpoint: String,
    /// Name and version; none while the runtime cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Processes by role: `agent`, and `containerd` where the agent started one.
    pub pids: BTreeMap<String, u32>,
    /// Manifests and sources that cannot be used.
    pub refusals: Vec<SourceRefusal>,
}

/// A file or an address, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceRefusal {
    pub origin: String,
    pub message: String,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(flatten)]
    pub agent: Description,
    pub is_ready: bool,
    pub parts: Vec<PartState>,
}

/// How a part of the agent fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartState {
    pub part: String,
    /// `good`, `degraded`, `bad`, or `silent` where it has not reported yet.
    pub grade: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// `POST /v1/relist`: what a forced listing found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListingReport {
    pub sandboxes: usize,
    pub containers: usize,
    /// Differences that no event had told, in words; 0 in a healthy agent.
    pub missed: Vec<String>,
}

/// One line of the answer to `POST /v1/down`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownProgress {
    pub message: String,
    /// The pod that is meant, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodKey>,
    /// Pods that are still there.
    pub left: usize,
    /// Stopping has failed: something is left behind.
    #[serde(default)]
    pub has_failed: bool,
}

/// What every refused request is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub message: String,
}

/// The container that is meant when none is named: the one of the annotation
/// `kubectl.kubernetes.io/default-container`, else the first.
pub fn default_container(pod: &PodObject) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    let annotated = pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .find(|(key, _)| key.as_str() == "kubectl.kubernetes.io/default-container")
        .map(|(_, name)| name.as_str());
    containers
        .iter()
        .map(|container| container.name.as_str())
        .find(|name| annotated == Some(*name))
        .or_else(|| Some(containers.first()?.name.as_str()))
}
