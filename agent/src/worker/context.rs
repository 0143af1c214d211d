//! What all workers share: the ways to the runtime, to the machine, and to those who read.

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod as PodObject;
use tokio::sync::{Semaphore, mpsc, watch};

use super::{Report, facts::NodeFacts};
use crate::{
    cri,
    host::cgroup::Cgroups,
    image::Images,
    pleg,
    status::Statuses,
    timeline::Recorder,
    types::{
        pod::Pod,
        timeline::{Entry, Level},
    },
    volume::Volumes,
};

#[derive(Debug)]
pub struct Context {
    pub runtime: cri::Client,
    /// As it stands before `://` in container ids.
    pub runtime_name: String,
    pub images: Images,
    pub volumes: Volumes,
    pub cgroups: Cgroups,
    pub facts: NodeFacts,
    pub pleg: pleg::Handle,
    pub statuses: Statuses,
    pub recorder: Recorder,
    /// Why the pod network is not ready; none while it is.
    pub network: watch::Receiver<Option<String>>,
    /// Why no pod can be synced (the runtime is down); none while one can.
    pub runtime_state: watch::Receiver<Option<String>>,
    /// Containers and sandboxes that may be starting at one time, over all pods: more of them would
    /// only make the runtime slower for all (a storm of restarts).
    pub starts: Arc<Semaphore>,
    pub reports: mpsc::Sender<Report>,
    pub settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub pod_logs: PathBuf,
    pub container_logs: PathBuf,
    pub sync_period: Duration,
    pub max_restart_backoff: Duration,
    /// Places in `starts`.
    pub max_starts: usize,
}

impl Context {
    /// An event of the pod, or of one of its containers: to the timeline, and to the log.
    pub(super) fn event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        level: Level,
        reason: &str,
        message: impl Into<String>,
    ) {
        let message = message.into();
        match level {
            Level::Normal => {
                tracing::debug!(pod = %pod.key(), container, reason, %message, "Event")
            }
            Level::Warning => {
                tracing::info!(pod = %pod.key(), container, reason, %message, "Event")
            }
        }
        self.recorder.record(Entry {
            pod: Some(pod.key().clone()),
            uid: Some(pod.uid().clone()),
            container: container.map(str::to_owned),
            ..Entry::now(level, reason, message)
        });
    }

    /// One warning of the node at start, where its resolver file holds more than pods can have
    /// (NET-09).
    pub fn check_resolver(&self) {
        let dns = &self.facts.dns;
        let Some(path) = &dns.resolv_conf else { return };
        let host = super::dns::read_host(dns);
        if let Some(warning) = super::dns::check_limits(path, &host, &dns.cluster_domain) {
            tracing::warn!(reason = warning.reason, message = %warning.message, "Resolver");
        }
    }

    /// `<ns>_<name>_<uid>` under the pods' log folder (LOG-01).
    pub fn log_dir(&self, pod: &Pod) -> PathBuf {
        self.settings.pod_logs.join(format!(
            "{}_{}_{}",
            pod.key().namespace,
            pod.key().name,
            pod.uid()
        ))
    }
}

/// The spec's container of this name, with its place in the spec for event references.
pub(super) fn spec_of<'a>(
    pod: &'a Pod,
    name: &str,
) -> Option<(
    &'a k8s_openapi::api::core::v1::Container,
    crate::types::pod::Role,
)> {
    pod.all_containers().find(|(spec, _)| spec.name == name)
}

/// Seconds of grace that the pod's object asks for (30 by default).
pub(super) fn spec_grace(object: &PodObject) -> Duration {
    let asked = object
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    Duration::from_secs(asked.unwrap_or(30).max(0).unsigned_abs())
}
