//! The loop of one worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Context, Desired, Kick, Mailbox, kill,
    machine::{Input, Phase},
    plan, steps,
};
use crate::{
    metrics, pleg,
    status::{self, PodRecord, StatusInput, Waiting},
    telemetry::chain,
    types::{
        backoff::CrashLoop,
        clock::{self, Mono},
        id::{ContainerId, PodUid},
        pod::Pod,
        reason::event,
        runtime::{RuntimePod, SharedRuntimePod},
        timeline::Level,
    },
};

/// After a sync that failed (LOOP-06).
const RETRY: Duration = Duration::from_secs(10);
/// After a failed sync because of the network.
const RETRY_NETWORK: Duration = Duration::from_secs(1);
/// After a failed attempt to stop or to clean up.
const RETRY_TERMINATION: Duration = Duration::from_secs(2);
/// How long a step may go on after the agent was told to stop.
const STEP_PATIENCE: Duration = Duration::from_secs(5);
/// The same for the stop of a pod, most of which is waiting for its containers.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What a worker tells the sync loop after each turn.
#[derive(Clone, Debug)]
pub struct Report {
    pub uid: PodUid,
    /// When it wants to be called again, if nothing happens before.
    pub next: Option<Instant>,
}

/// The state of one worker; run it with [`Worker::run`].
#[derive(Debug)]
pub struct Worker {
    context: Arc<Context>,
    pod: Pod,
    mailbox: Mailbox,
    phase: watch::Sender<Phase>,
    /// What must be in the cache before the next plan: whatever this worker did is in it then.
    since: Instant,
    pub(super) backoff: CrashLoop,
    /// Containers that could not be started, and why; the pod's status shows it.
    pub(super) waiting: HashMap<String, Waiting>,
    /// The ended instance whose back-off was told of by an event.
    pub(super) told: HashMap<String, ContainerId>,
    /// Containers were killed because the pod's cgroup was gone; done once.
    had_lost_cgroup: bool,
    /// What was last told of the network's state: asked each second, told once.
    told_network: Option<String>,
    seen_at: Instant,
    has_run: bool,
}

/// What came of a turn.
enum Turn {
    /// Nothing to do until something happens, at the latest after this.
    Settled(Duration),
    /// Something was done: look again as soon as the cache shows it.
    Again,
    /// The pod ended by itself.
    Ended,
}

impl Worker {
    pub fn new(context: Arc<Context>, pod: Pod) -> (Self, Mailbox, watch::Receiver<Phase>) {
        let mailbox = Mailbox::default();
        let (phase, phase_rx) = watch::channel(Phase::Syncing);
        let longest = context.settings.max_restart_backoff;
        let since = context
            .pleg
            .cache()
            .complete_at()
            .unwrap_or_else(Instant::now);
        let worker = Self {
            context,
            pod,
            mailbox: mailbox.clone(),
            phase,
            // What the cache has is new enough for a worker that has done nothing yet.
            since,
            backoff: CrashLoop::new(longest),
            waiting: HashMap::new(),
            told: HashMap::new(),
            had_lost_cgroup: false,
            told_network: None,
            seen_at: Instant::now(),
            has_run: false,
        };
        (worker, mailbox, phase_rx)
    }

    /// Runs until the pod is gone, or until `stop`: then it ends after the step in hand and leaves
    /// everything as it is. Returns its uid, and whether the pod is gone.
    pub async fn run(mut self, stop: CancellationToken) -> (PodUid, bool) {
        let started = Instant::now();
        metrics::POD_WORKER_START_DURATION.record((started - self.seen_at).as_secs_f64(), &[]);
        loop {
            let phase = *self.phase.borrow();
            if phase == Phase::Finished {
                break;
            }
            let operation: &'static str = match phase {
                Phase::Syncing => "sync",
                Phase::Terminating { .. } => "kill",
                Phase::Cleaning { .. } | Phase::Ended | Phase::Finished => "terminated",
            };
            let began = Instant::now();
            let next = self.turn(phase, &stop).await;
            metrics::POD_WORKER_DURATION.record(
                began.elapsed().as_secs_f64(),
                &[("operation_type", operation)],
            );
            if stop.is_cancelled() {
                return (self.pod.uid().clone(), false);
            }
            let Some(next) = next else { continue };
            let next = next.map(|wait| Instant::now() + wait);
            let report = Report {
                uid: self.pod.uid().clone(),
                next,
            };
            if self.context.reports.send(report).await.is_err() {
                break; // the sync loop has ended
            }
            tokio::select! {
                () = stop.cancelled() => return (self.pod.uid().clone(), false),
                letters = self.mailbox.take() => self.read_letters(letters.desired, letters.kick),
            }
        }
        (self.pod.uid().clone(), true)
    }

    /// One turn in the phase. None: go on at once; `Some(None)`: wait for a letter;
    /// `Some(Some(d))`: wait for a letter, at most `d`.
    async fn turn(&mut self, phase: Phase, stop: &CancellationToken) -> Option<Option<Duration>> {
        match phase {
            Phase::Syncing => {
                let turn = tokio::select! {
                    biased;
                    turn = self.sync() => turn,
                    // The runtime is not answering and the agent is to end: the pod stays as it is.
                    () = patience(stop, STEP_PATIENCE) => return Some(None),
                };
                match turn {
                    Turn::Settled(wait) => Some(Some(wait)),
                    Turn::Again => {
                        self.read_waiting_letters();
                        None
                    }
                    Turn::Ended => {
                        self.go(Input::EndedByItself);
                        None
                    }
                }
            }
            // What must be stopped cannot be now; the sync loop calls when the runtime is back.
            Phase::Terminating { .. } if self.context.runtime_state.borrow().is_some() => {
                Some(Some(self.resync_period()))
            }
            Phase::Terminating { stop: order, .. } => {
                let grace = kill::grace(&self.pod, order.grace);
                let stopped = tokio::select! {
                    biased;
                    stopped = self.terminate(grace) => stopped,
                    // Its containers have their signal and may take their grace; the next start
                    // finds what is left.
                    () = patience(stop, STOP_PATIENCE) => return Some(None),
                };
                match stopped {
                    Ok(()) => {
                        self.go(Input::Stopped);
                        None
                    }
                    Err(message) => {
                        self.event(Level::Warning, event::FAILED_KILL_POD, message);
                        Some(Some(RETRY_TERMINATION))
                    }
                }
            }
            Phase::Cleaning { .. } => match self.clean_up().await {
                Ok(()) => {
                    self.go(Input::Cleaned);
                    None
                }
                Err(error) => {
                    tracing::warn!(pod = %self.pod.key(), %error, "A pod could not be cleaned up");
                    Some(Some(RETRY_TERMINATION))
                }
            },
            Phase::Ended | Phase::Finished => Some(None),
        }
    }

    fn read_letters(&mut self, desired: Option<Desired>, kick: Option<Kick>) {
        match desired {
            Some(Desired::Run(pod)) => self.pod = pod,
            Some(Desired::Stop(order)) => self.go(Input::Stop(order)),
            None => {}
        }
        if let Some(at) = kick.and_then(|kick| kick.kernel_at) {
            metrics::EVENT_TO_SYNC.record(Mono::now().since(at).as_secs_f64(), &[]);
        }
    }

    /// Takes what has come while a step was under way, without waiting.
    fn read_waiting_letters(&mut self) {
        if let Some(letters) = futures::FutureExt::now_or_never(self.mailbox.take()) {
            self.read_letters(letters.desired, letters.kick);
        }
    }

    fn go(&mut self, input: Input) {
        self.phase.send_modify(|phase| *phase = phase.next(input));
    }

    /// The pod as it was after this worker's last step, or later.
    async fn observe(&self) -> Result<SharedRuntimePod, String> {
        let observed = self.context.pleg.fresh(self.pod.uid(), self.since).await?;
        Ok(pleg::with_early_messages(observed).await)
    }

    /// WORK-02: what runs is compared with what is wanted, and one step is taken.
    async fn sync(&mut self) -> Turn {
        let observed = match self.observe().await {
            Ok(observed) => observed,
            Err(error) => {
                let message = format!("error determining status: {error}");
                self.event(Level::Warning, event::FAILED_SYNC, message);
                return Turn::Settled(RETRY);
            }
        };
        let status = self.publish(&observed, false);
        if matches!(status.as_deref(), Some("Succeeded" | "Failed")) {
            return Turn::Ended;
        }
        let plan = plan::next(&self.pod, &observed);
        if self.context.runtime_state.borrow().is_some() {
            // Nothing can be done now; the sync loop calls when the runtime answers again.
            return Turn::Settled(self.resync_period());
        }
        if plan.is_empty() {
            return Turn::Settled(self.resync_period());
        }
        tracing::debug!(pod = %self.pod.key(), ?plan, "Plan");
        if !self.pod.is_host_network()
            && let Some(why) = self.context.network.borrow().clone()
        {
            if self.told_network.as_ref() != Some(&why) {
                let message = format!("network is not ready: {why}");
                self.event(Level::Warning, event::NETWORK_NOT_READY, message);
                self.told_network = Some(why);
            }
            return Turn::Settled(RETRY_NETWORK);
        }
        self.told_network = None;
        match self.ensure_cgroup(&observed).await {
            Ok(true) => {}
            Ok(false) => return Turn::Again,
            Err(error) => {
                let message = format!("unable to ensure pod container exists: {error}");
                self.event(Level::Warning, event::FAILED_CREATE_POD_CONTAINER, message);
                return Turn::Settled(RETRY);
            }
        }
        if let Err(error) = self.context.volumes.set_up(&self.pod).await {
            self.event(Level::Warning, event::FAILED_MOUNT, error.to_string());
            return Turn::Settled(RETRY);
        }
        let done = steps::carry_out(self, plan, &observed).await;
        if done.has_acted {
            self.since = Instant::now();
        }
        if done.has_acted && done.retry_in.is_none() {
            return Turn::Again;
        }
        if done.has_acted {
            // Some container waits (back-off, a failed pull); the rest is news for the status.
            match self.observe().await {
                Ok(observed) => drop(self.publish(&observed, false)),
                Err(error) => tracing::debug!(%error, "The runtime could not be read after a step"),
            }
        } else {
            self.publish(&observed, false);
        }
        Turn::Settled(done.retry_in.unwrap_or(RETRY).min(self.resync_period()))
    }

    /// The longest time between two syncs: the period and up to half of it more, spread by uid so
    /// that pods of one batch do not come together again.
    fn resync_period(&self) -> Duration {
        let period = self.context.settings.sync_period;
        let spread = self.pod.uid().as_str().bytes().fold(0_u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        }) % 512;
        period + period * spread / 1024
    }

    /// Makes the pod's cgroup. False: it was missing under running containers, which were killed;
    /// everything is to be looked at again (CGRP-23).
    async fn ensure_cgroup(&mut self, observed: &RuntimePod) -> Result<bool, String> {
        let cgroups = &self.context.cgroups;
        let exists = cgroups
            .exists(&self.pod)
            .await
            .map_err(|error| chain(&error).to_string())?;
        if !exists && plan::alive(observed).next().is_some() && !self.had_lost_cgroup {
            self.had_lost_cgroup = true;
            let grace = kill::grace(&self.pod, None);
            kill::kill_pod(&self.context, &self.pod, observed, grace)
                .await
                .map_err(|error| error.to_string())?;
            self.since = Instant::now();
            return Ok(false);
        }
        if !exists {
            cgroups
                .ensure_pod(&self.pod)
                .await
                .map_err(|error| chain(&error).to_string())?;
        }
        Ok(true)
    }

    /// WORK-03.
    async fn terminate(&mut self, grace: Duration) -> Result<(), String> {
        let observed = self.observe().await?;
        self.publish(&observed, true);
        if observed.is_running() || plan::alive(&observed).next().is_some() {
            kill::kill_pod(&self.context, &self.pod, &observed, grace)
                .await
                .map_err(|error| format!("error killing pod: {error}"))?;
            self.since = Instant::now();
            let observed = self.observe().await?;
            let alive: Vec<&str> = plan::alive(&observed)
                .map(|container| container.name.as_str())
                .collect();
            if !alive.is_empty() {
                return Err(format!(
                    "error killing pod: detected running containers after a successful KillPod: \
                     {}",
                    alive.join(", ")
                ));
            }
            self.publish(&observed, true);
        }
        Ok(())
    }

    /// WORK-04.
    async fn clean_up(&mut self) -> Result<(), String> {
        if let Some(record) = self.context.statuses.get(self.pod.uid()) {
            // No container is left without an end.
            let status = status::finish(&self.pod, &record.status);
            self.context.statuses.publish(PodRecord {
                status,
                ..(*record).clone()
            });
        }
        self.context
            .volumes
            .tear_down(self.pod.uid())
            .await
            .map_err(|error| error.to_string())?;
        self.context
            .cgroups
            .remove_pod(self.pod.uid())
            .await
            .map_err(|error| error.to_string())
    }

    /// Computes and publishes the status; returns its phase.
    pub(super) fn publish(&mut self, observed: &RuntimePod, is_stopped: bool) -> Option<String> {
        let previous = self.context.statuses.get(self.pod.uid());
        let phase = *self.phase.borrow();
        let status = status::compute(&StatusInput {
            pod: &self.pod,
            runtime: observed,
            previous: previous.as_ref().map(|record| &record.status),
            waiting: &self.waiting,
            node_ips: &self.context.facts.node_ips,
            is_terminal: is_stopped && plan::alive(observed).next().is_none(),
            is_terminating: matches!(
                phase,
                Phase::Terminating {
                    wanted: super::machine::Wanted::No,
                    ..
                }
            ),
            runtime_name: &self.context.runtime_name,
            now: clock::wall_now(),
        });
        let text = status.phase.clone();
        if !self.has_run && text.as_deref() == Some("Running") {
            self.has_run = true;
            metrics::POD_START_DURATION.record(self.seen_at.elapsed().as_secs_f64(), &[]);
        }
        self.context.statuses.publish(PodRecord {
            pod: self.pod.clone(),
            status,
            is_terminating: phase.is_terminating() && phase != Phase::Ended,
        });
        text
    }

    fn event(&self, level: Level, reason: &str, message: impl Into<String>) {
        self.context.event(&self.pod, None, level, reason, message);
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn pod(&self) -> &Pod {
        &self.pod
    }
}

async fn patience(stop: &CancellationToken, wait: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(wait).await;
}
