//! The CRI's messages to the agent's types. Answers that lack what everything stands on are errors
//! (KRT-28), as upstream has them; all else that a runtime leaves out stays absent.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use proto::cri::v1 as api;

use super::{
    Call, Condition, Error, Features, FsUse, Handler, ImageRecord, ListedContainer, ListedPod,
    ListedSandbox, ListedState, RuntimeStatus, annotations, labels,
};
use crate::types::{
    id::{ContainerId, PodKey, PodUid, SandboxId},
    runtime::{
        Container, ContainerResources, ContainerState, ContainerUser, Exit, Sandbox, Witness,
    },
};

/// Nanoseconds since 1970; 0 is "has not happened".
pub(super) fn time(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds == 0 {
        return None;
    }
    Timestamp::from_nanosecond(nanoseconds.into()).ok()
}

pub(super) fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn require<T>(value: Option<T>, call: Call, what: &'static str) -> Result<T, Error> {
    value.ok_or(Error::Answer { call, what })
}

pub(super) fn sandbox(status: Option<api::PodSandboxStatus>) -> Result<Sandbox, Error> {
    const CALL: Call = Call::PodSandboxStatus;
    let status = require(status, CALL, "no status")?;
    let is_ready = status.state() == api::PodSandboxState::SandboxReady;
    let id = require(present(status.id), CALL, "no id")?;
    let metadata = require(status.metadata, CALL, "no metadata")?;
    if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() {
        return Err(Error::Answer {
            call: CALL,
            what: "no metadata.name, metadata.namespace or metadata.uid",
        });
    }
    let created_at = require(time(status.created_at), CALL, "no created_at")?;
    let ips = status
        .network
        .map_or_else(Vec::new, |network| addresses(&id, network));
    let is_host_network = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options)
        .is_some_and(|options| options.network() == api::NamespaceMode::Node);
    Ok(Sandbox {
        id: id.into(),
        attempt: metadata.attempt,
        is_ready,
        created_at,
        ips,
        is_host_network,
        runtime_handler: status.runtime_handler,
    })
}

fn addresses(sandbox: &str, network: api::PodSandboxNetworkStatus) -> Vec<IpAddr> {
    std::iter::once(network.ip)
        .chain(network.additional_ips.into_iter().map(|ip| ip.ip))
        .filter(|text| !text.is_empty())
        .filter_map(|text| {
            let ip = text.parse();
            if ip.is_err() {
                tracing::warn!(
                    sandbox,
                    ip = text,
                    "the runtime reports an address that is none"
                );
            }
            ip.ok()
        })
        .collect()
}

pub(super) fn container(
    status: Option<api::ContainerStatus>,
    sandbox: &SandboxId,
) -> Result<Container, Error> {
    const CALL: Call = Call::ContainerStatus;
    let status = require(status, CALL, "no status")?;
    let state = status.state();
    let id = require(present(status.id), CALL, "no id")?;
    let metadata = require(status.metadata, CALL, "no metadata")?;
    let name = require(present(metadata.name), CALL, "no metadata.name")?;
    let created_at = require(time(status.created_at), CALL, "no created_at")?;
    let image = require(
        status.image.and_then(|image| present(image.image)),
        CALL,
        "no image",
    )?;
    let image_ref = require(present(status.image_ref), CALL, "no image_ref")?;

    let started_at = time(status.started_at);
    let state = match state {
        api::ContainerState::ContainerCreated => ContainerState::Created,
        api::ContainerState::ContainerRunning => ContainerState::Running {
            started_at: started_at.unwrap_or(created_at),
        },
        api::ContainerState::ContainerExited => ContainerState::Exited(Exit {
            code: status.exit_code,
            signal: 0,
            oom_seen: status.reason == "OOMKilled",
            reason: status.reason,
            message: status.message,
            started_at,
            // A runtime that lost the time still knows that it is not before these.
            finished_at: time(status.finished_at).unwrap_or(started_at.unwrap_or(created_at)),
            witness: Witness::Runtime,
        }),
        api::ContainerState::ContainerUnknown => ContainerState::Unknown,
    };

    let annotation = |name| {
        status
            .annotations
            .get(name)
            .filter(|text: &&String| !text.is_empty())
    };
    let termination_message_path = annotation(annotations::TERMINATION_MESSAGE_PATH).cloned();
    let termination_message_host_path = termination_message_path.as_ref().and_then(|path| {
        let mount = status
            .mounts
            .iter()
            .find(|mount| mount.container_path == *path)?;
        present(mount.host_path.clone())
    });
    Ok(Container {
        hash: annotation(annotations::HASH).and_then(|text| u32::from_str_radix(text, 16).ok()),
        restart_count: annotation(annotations::RESTART_COUNT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(metadata.attempt),
        termination_message_policy: annotation(annotations::TERMINATION_MESSAGE_POLICY).cloned(),
        termination_message_path,
        termination_message_host_path,
        id: id.into(),
        sandbox: sandbox.clone(),
        name,
        attempt: metadata.attempt,
        state,
        created_at,
        image,
        image_ref,
        log_path: present(status.log_path),
        pid: None,
        user: status
            .user
            .and_then(|user| user.linux)
            .map(|user| ContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: user.supplemental_groups,
            }),
        resources: status
            .resources
            .and_then(|resources| resources.linux)
            .map(|linux| ContainerResources {
                cpu_shares: linux.cpu_shares,
                cpu_quota: linux.cpu_quota,
                cpu_period: linux.cpu_period,
                memory_limit_bytes: linux.memory_limit_in_bytes,
            }),
    })
}

/// Groups a listing by pod, in the order of uids. Entries without metadata are no pods' and are
/// left out, as upstream does.
pub(super) fn pods(
    sandboxes: Vec<api::PodSandbox>,
    containers: Vec<api::Container>,
) -> Vec<ListedPod> {
    let mut pods = BTreeMap::<PodUid, ListedPod>::new();
    for sandbox in sandboxes {
        let is_ready = sandbox.state() == api::PodSandboxState::SandboxReady;
        let Some(metadata) = sandbox.metadata else {
            tracing::debug!(sandbox = sandbox.id, "sandbox without metadata");
            continue;
        };
        let key = PodKey::new(&metadata.namespace, &metadata.name);
        let uid = PodUid::from(metadata.uid);
        let pod = pods.entry(uid.clone()).or_insert_with(|| empty(uid, key));
        pod.sandboxes.push(ListedSandbox {
            id: SandboxId::from(sandbox.id),
            attempt: metadata.attempt,
            is_ready,
            created_at: time(sandbox.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
            handler: sandbox.runtime_handler,
        });
    }
    for container in containers {
        let state = listed_state(container.state());
        let Some(metadata) = container.metadata else {
            tracing::debug!(container = container.id, "container without metadata");
            continue;
        };
        let label = |name| container.labels.get(name).map_or("", String::as_str);
        let uid = PodUid::from(label(labels::POD_UID));
        let pod = pods.entry(uid.clone()).or_insert_with(|| {
            let key = PodKey::new(label(labels::POD_NAMESPACE), label(labels::POD_NAME));
            empty(uid, key)
        });
        pod.containers.push(ListedContainer {
            id: ContainerId::from(container.id),
            sandbox: SandboxId::from(container.pod_sandbox_id),
            name: metadata.name,
            attempt: metadata.attempt,
            state,
            created_at: time(container.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        });
    }
    for pod in pods.values_mut() {
        // KRT-24.
        pod.sandboxes.sort_by(|a, b| {
            let rank = |s: &ListedSandbox| (s.attempt, s.created_at, s.id.clone());
            rank(b).cmp(&rank(a))
        });
        pod.containers
            .sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    }
    pods.into_values().collect()
}

pub(super) fn empty(uid: PodUid, key: PodKey) -> ListedPod {
    ListedPod {
        uid,
        key,
        sandboxes: Vec::new(),
        containers: Vec::new(),
    }
}

fn listed_state(state: api::ContainerState) -> ListedState {
    match state {
        api::ContainerState::ContainerCreated => ListedState::Created,
        api::ContainerState::ContainerRunning => ListedState::Running,
        api::ContainerState::ContainerExited => ListedState::Exited,
        api::ContainerState::ContainerUnknown => ListedState::Unknown,
    }
}

pub(super) fn runtime_status(response: api::StatusResponse) -> Result<RuntimeStatus, Error> {
    const CALL: Call = Call::Status;
    let status = require(response.status, CALL, "no status")?;
    let condition = |kind: &str| {
        let found = status
            .conditions
            .iter()
            .find(|condition| condition.r#type == kind)?;
        Some(Condition {
            is_true: found.status,
            reason: found.reason.clone(),
            message: found.message.clone(),
        })
    };
    Ok(RuntimeStatus {
        ready: require(condition("RuntimeReady"), CALL, "no condition RuntimeReady")?,
        network: require(condition("NetworkReady"), CALL, "no condition NetworkReady")?,
        handlers: response
            .runtime_handlers
            .into_iter()
            .map(|handler| {
                let features = handler.features.unwrap_or_default();
                Handler {
                    name: handler.name,
                    has_recursive_read_only_mounts: features.recursive_read_only_mounts,
                    has_user_namespaces: features.user_namespaces,
                }
            })
            .collect(),
        features: Features {
            supplemental_groups_policy: response
                .features
                .is_some_and(|features| features.supplemental_groups_policy),
        },
    })
}

pub(super) fn image(image: api::Image) -> ImageRecord {
    ImageRecord {
        id: image.id,
        repo_tags: image.repo_tags,
        repo_digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        is_pinned: image.pinned,
    }
}

pub(super) fn fs_use(usage: api::FilesystemUsage) -> FsUse {
    FsUse {
        mountpoint: usage.fs_id.unwrap_or_default().mountpoint,
        used_bytes: usage.used_bytes.unwrap_or_default().value,
        inodes_used: usage.inodes_used.unwrap_or_default().value,
    }
}

/// The main process, which only the runtime's own verbose answer has: `info["info"]` is JSON with
/// a `pid` in containerd and CRI-O. 0 is "no process".
pub(super) fn pid(info: &std::collections::HashMap<String, String>) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Verbose {
        pid: Option<u32>,
    }
    let verbose: Verbose = serde_json::from_str(info.get("info")?).ok()?;
    verbose.pid.filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests;
