//! The pod lifecycle event generator (PLEG): knows what every pod is doing in the runtime, and
//! tells when it changed.
//!
//! Kernel events and the runtime's event stream are *hints*: they say where to look. State is read
//! from the runtime for that one pod, stored in the [`Cache`], compared with what was known, and a
//! [`PodEvent`] leaves. The one exception is an exit that the kernel has shown in full (main process
//! ended, cgroup empty): it enters the cache at once, marked [`Witness::Kernel`], and the runtime's
//! record replaces it when it comes.
//!
//! Owner of the state: [`Task`], alone. It writes the cache; everyone else reads it or asks through
//! the [`Handle`].
//!
//! | file | holds |
//! | --- | --- |
//! | `cache` | the last known [`RuntimePod`] of every pod, with waits for "newer than" |
//! | `index` | cgroup id -> container -> pod |
//! | `deaths` | what the kernel said of exits, laid over what the runtime says, and compared |
//! | `diff` | two pictures of a pod -> events (pure) |
//! | `message` | a container's termination message |
//! | `read` | one pod from the runtime, re-using what cannot have changed |
//! | `awaiting` | exits whose record the runtime does not have yet: when to look again |
//! | `suspects` | what a listing found otherwise than the cache, until it is explained |
//! | `task` | the loop, and the change of modes |

mod awaiting;
mod cache;
mod deaths;
mod diff;
mod index;
mod message;
mod read;
mod suspects;
mod task;

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

pub use self::{
    cache::{Cache, View},
    message::with_early as with_early_messages,
    task::{Deps, KernelOpener, KernelSource, Task},
};
use crate::config::PlegMode;
use crate::types::{
    clock::Mono,
    id::{ContainerId, PodUid},
    runtime::SharedRuntimePod,
};

#[cfg(doc)]
use crate::types::runtime::{RuntimePod, Witness};

/// Something about a pod changed; the new state is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub uid: PodUid,
    /// At least one.
    pub changes: Vec<Change>,
    /// When the kernel's event behind it happened, where there was one.
    pub kernel_at: Option<Mono>,
}

/// What happened, in upstream's words (PLEG-02). A sandbox counts as a container.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Change {
    ContainerStarted(ContainerId),
    ContainerDied(ContainerId),
    ContainerRemoved(ContainerId),
    /// It was made, or its state is not known any more.
    ContainerChanged(ContainerId),
    /// None of the others: the runtime's record replaced the kernel's word, an address came.
    PodSync,
}

impl Change {
    pub fn container(&self) -> Option<&ContainerId> {
        match self {
            Self::ContainerStarted(id)
            | Self::ContainerDied(id)
            | Self::ContainerRemoved(id)
            | Self::ContainerChanged(id) => Some(id),
            Self::PodSync => None,
        }
    }
}

/// What a forced listing found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub sandboxes: usize,
    pub containers: usize,
    /// Pods with a difference that no event had told, in words.
    pub missed: Vec<String>,
}

enum Command {
    Read(PodUid),
    Relist(oneshot::Sender<Result<Listing, String>>),
    RuntimeReturned,
    RuntimeAnswered,
}

/// The way in: cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    cache: Cache,
    mode: watch::Sender<Option<PlegMode>>,
}

/// One command per pod worker and a few more: a sender waits while the task is busy, which is what
/// a worker would do anyway.
const COMMANDS: usize = 256;

impl Handle {
    fn new() -> (Self, mpsc::Receiver<Command>) {
        let (commands, commands_rx) = mpsc::channel(COMMANDS);
        let mode = watch::channel(None).0;
        (
            Self {
                commands,
                cache: Cache::default(),
                mode,
            },
            commands_rx,
        )
    }

    /// The mode in force; none before one is chosen.
    pub fn mode(&self) -> Option<PlegMode> {
        *self.mode.borrow()
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The pod as it was at `since` or later: from the cache if it is that new, else by a re-read.
    ///
    /// # Errors
    /// The runtime could not be read; the text is for the event `FailedSync`.
    pub async fn fresh(&self, uid: &PodUid, since: Instant) -> Result<SharedRuntimePod, String> {
        if let Some(view) = self.cache.newer_than(uid, since) {
            return view.pod();
        }
        self.ask(Command::Read(uid.clone())).await?;
        self.cache.wait_newer_than(uid, since).await.pod()
    }

    /// Lists everything once and returns what that found.
    pub async fn relist(&self) -> Result<Listing, String> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Relist(reply)).await?;
        answer
            .await
            .unwrap_or_else(|_closed| Err("the agent is stopping".to_owned()))
    }

    /// The runtime answers again after it did not: everything is read again once.
    pub async fn runtime_returned(&self) {
        // An error means that the task has ended, and with it the need.
        self.ask(Command::RuntimeReturned).await.ok();
    }

    /// The runtime answered a call of somebody else's: proof that it is there (see `/readyz`).
    pub fn runtime_answered(&self) {
        // A full queue means that the task is at work, which is proof enough.
        self.commands.try_send(Command::RuntimeAnswered).ok();
    }

    async fn ask(&self, command: Command) -> Result<(), String> {
        self.commands
            .send(command)
            .await
            .map_err(|_closed| "the agent is stopping".to_owned())
    }
}

/// Upstream's period of the listing mode.
const LISTING_PERIOD: Duration = Duration::from_secs(1);
/// Upstream's limit for "the PLEG is healthy" (PLEG-08).
const HEALTHY_FOR: Duration = Duration::from_secs(180);

/// Reads one pod from the runtime, without a PLEG: for commands that work without an agent.
///
/// # Errors
/// The runtime could not be asked.
pub async fn read_pod(
    client: &crate::cri::Client,
    uid: &PodUid,
) -> Result<crate::types::runtime::RuntimePod, crate::cri::Error> {
    read::pod(client, uid, None).await
}
