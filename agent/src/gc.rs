//! Dead containers, sandboxes and their logs: what may go, and its going (GC-01 to GC-03, GC-11,
//! GC-12).
//!
//! [`plan`] is pure: it looks at the cache's pods and at what the workers know of them. A
//! [`Collector`] carries plans out; it holds no state besides its settings. When to collect (each
//! minute, and when a container has died) is the caller's business.
//!
//! An exit that only the kernel has told keeps its container, and with it the sandbox, until the
//! runtime's record is there: removing it earlier would lose that record.

mod logs;
mod plan;

use std::{
    collections::{BTreeSet, HashSet},
    path::PathBuf,
};

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;

pub use self::{
    logs::{log_link_name, remove_container_logs},
    plan::{Pods, Removal, after_death, containers, sandboxes},
};
use crate::{
    config::{Dirs, GcSettings},
    cri,
    types::{
        id::{ContainerId, PodUid, SandboxId},
        runtime::SharedRuntimePod,
    },
};

/// The grace of a container that the runtime does not know the state of, before it is removed: the
/// API's default for pods.
const UNKNOWN_GRACE: std::time::Duration = std::time::Duration::from_secs(30);

/// Removals under way at one time: enough to keep the runtime busy, too few to choke it.
const PARALLEL: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("stop container {id} of unknown state")]
    Stop { id: ContainerId, source: cri::Error },
    /// The container stays: its logs go first (GC-12).
    #[error("remove log {}", path.display())]
    Log {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("remove container {id}")]
    Remove { id: ContainerId, source: cri::Error },
    #[error("stop and remove sandbox {id}")]
    Sandbox { id: SandboxId, source: cri::Error },
    #[error("clean up the log folder {}", path.display())]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Whether a pod has a worker by now.
pub type HasCome<'a> = &'a (dyn Fn(&PodUid) -> bool + Send + Sync);

/// Carries removals out.
#[derive(Clone, Debug)]
pub struct Collector {
    client: cri::Client,
    dirs: Dirs,
    settings: GcSettings,
}

impl Collector {
    pub fn new(client: cri::Client, dirs: Dirs, settings: GcSettings) -> Self {
        Self {
            client,
            dirs,
            settings,
        }
    }

    /// One whole collection: containers, then sandboxes that are left empty, then the logs of pods
    /// that are gone. One failure does not keep the rest; all are returned, with the pods that have
    /// changed in the runtime.
    ///
    /// `pods` is the cache, read when the collection begins; the sandboxes' turn trusts it only
    /// where all containers of a sandbox were removed here. Removals take time: `has_come` says of a
    /// pod that it came after `pods` was written down, and its log folder stays.
    pub async fn collect(
        &self,
        snapshot: &[SharedRuntimePod],
        pods: &Pods<'_>,
        has_come: HasCome<'_>,
        now: Timestamp,
    ) -> (BTreeSet<PodUid>, Vec<Error>) {
        let removals = containers(snapshot, pods, &self.settings, now);
        let (removed, mut errors) = self.remove_all(removals).await;
        let dead = sandboxes(snapshot, pods, &removed);
        let changed = snapshot
            .iter()
            .filter(|pod| {
                pod.containers
                    .iter()
                    .any(|container| removed.contains(&container.id))
                    || pod
                        .sandboxes
                        .iter()
                        .any(|sandbox| dead.contains(&sandbox.id))
            })
            .map(|pod| pod.uid.clone())
            .collect();
        for id in dead {
            if let Err(error) = self.remove_sandbox(&id).await {
                errors.push(error);
            }
        }
        if pods.are_sources_ready {
            errors.extend(logs::remove_folders(&self.dirs.pod_logs, pods, has_come).await);
        }
        errors.extend(logs::remove_dead_links(&self.dirs.container_logs, &self.client).await);
        (changed, errors)
    }

    /// Everything of every pod that does not run, however young: the end of `down`.
    pub async fn collect_everything(
        &self,
        snapshot: &[SharedRuntimePod],
    ) -> (BTreeSet<PodUid>, Vec<Error>) {
        let none = HashSet::new();
        let pods = Pods {
            known: &none,
            finished: &none,
            are_sources_ready: true,
        };
        self.collect(snapshot, &pods, &|_| false, Timestamp::MAX)
            .await
    }

    /// Removes containers, some at a time; returns those that are gone and what failed.
    pub async fn remove_all(&self, removals: Vec<Removal>) -> (Vec<ContainerId>, Vec<Error>) {
        let results: Vec<_> = stream::iter(removals)
            .map(|removal| async move {
                let result = self.remove(&removal).await;
                result.map(|()| removal.id)
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let (mut removed, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(id) => removed.push(id),
                Err(error) => errors.push(error),
            }
        }
        (removed, errors)
    }

    /// Removes one container after its logs; one that is gone already is removed.
    pub async fn remove(&self, removal: &Removal) -> Result<(), Error> {
        let id = &removal.id;
        if removal.is_unknown {
            match self.client.stop_container(id, UNKNOWN_GRACE).await {
                Err(source) if !source.is_not_found() => {
                    return Err(Error::Stop {
                        id: id.clone(),
                        source,
                    });
                }
                Err(_) | Ok(()) => {}
            }
        }
        remove_container_logs(&self.dirs.container_logs, removal).await?;
        match self.client.remove_container(id).await {
            Err(source) if !source.is_not_found() => Err(Error::Remove {
                id: id.clone(),
                source,
            }),
            Err(_) | Ok(()) => {
                tracing::debug!(container = %id, pod = %removal.key, "dead container removed");
                Ok(())
            }
        }
    }

    /// Stops the sandbox once more, for the case that nobody did, and removes it.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), Error> {
        let gone = |result: Result<(), cri::Error>| match result {
            Err(source) if !source.is_not_found() => Err(Error::Sandbox {
                id: id.clone(),
                source,
            }),
            Err(_) | Ok(()) => Ok(()),
        };
        gone(self.client.stop_sandbox(id).await)?;
        gone(self.client.remove_sandbox(id).await)?;
        tracing::debug!(sandbox = %id, "dead sandbox removed");
        Ok(())
    }

    /// What goes after a container's death (GC-11), with this node's settings.
    pub fn plan_after_death(
        &self,
        pod: &crate::types::runtime::RuntimePod,
        died: &ContainerId,
        is_finished: bool,
    ) -> Vec<Removal> {
        after_death(pod, died, is_finished, &self.settings)
    }
}

#[cfg(test)]
mod tests;
