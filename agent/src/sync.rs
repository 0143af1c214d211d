//! The sync loop: one `select!` over pod updates, pod events, workers' reports and time, as
//! upstream's syncLoop (LOOP-01..10). Probe results join with the probes.
//!
//! Owner of: which pods are wanted (by source), and the workers. It decides who works on what; the
//! workers do the work. Nothing here waits for the runtime.

mod admission;
mod housekeeping;
pub mod runtime;
mod workers;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use indexmap::IndexMap;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::{
    sync::CancellationToken,
    time::{DelayQueue, delay_queue},
};

use self::workers::Workers;
use crate::{
    gc,
    health::{Board, Grade, Part},
    metrics,
    pleg::{Change, PodEvent},
    source::{Op, PodUpdate},
    status::PodRecord,
    telemetry,
    types::{
        clock,
        id::{ContainerId, PodKey, PodUid},
        pod::{Pod, SourceKind},
    },
    worker::{Context, Kick, Report, Stop},
};

/// Between two looks at what nobody wants any more (LOOP-10); nothing is done while nothing changed.
const HOUSEKEEPING: Duration = Duration::from_secs(2);
/// Even without news the folders and cgroups are compared after this time.
const FULL_HOUSEKEEPING: Duration = Duration::from_secs(60);

/// How far `down` has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Pods that still have workers.
    pub pods: Vec<PodKey>,
    /// What could not be stopped or removed, once no pod is left.
    pub faults: Vec<String>,
}

/// Orders from the local socket.
#[derive(Debug)]
pub enum Order {
    /// Stop every pod; the view tells what is left, and is empty in the end.
    StopAll {
        progress: watch::Sender<Option<Remaining>>,
    },
}

#[derive(Debug)]
pub struct Deps {
    pub context: Arc<Context>,
    pub updates: mpsc::Receiver<PodUpdate>,
    pub sources: Vec<SourceKind>,
    pub events: mpsc::Receiver<PodEvent>,
    pub reports: mpsc::Receiver<Report>,
    pub orders: mpsc::Receiver<Order>,
    /// Why syncs cannot succeed now (the runtime is down); none while they can.
    pub runtime: watch::Receiver<Option<String>>,
    pub board: Board,
    pub collector: gc::Collector,
    /// `maxPods`.
    pub max_pods: u32,
}

/// The loop's state; run it with [`Task::run`].
#[derive(Debug)]
pub struct Task {
    deps: Deps,
    /// Pods that are wanted, by uid.
    pods: IndexMap<PodUid, Pod>,
    seen: HashSet<SourceKind>,
    workers: Workers,
    retries: DelayQueue<PodUid>,
    retry_keys: HashMap<PodUid, delay_queue::Key>,
    /// Something changed since the last housekeeping.
    is_dirty: bool,
    /// There was work since the heap was trimmed.
    is_heap_used: bool,
    last_full: Instant,
    jobs: JoinSet<Job>,
    killing: HashSet<PodUid>,
    is_collecting: bool,
    is_cleaning: bool,
    /// Pods that the node did not take.
    rejected: HashSet<PodUid>,
    stopping: Option<watch::Sender<Option<Remaining>>>,
    sweep: Sweep,
}

/// The removal of all records at the end of `down`.
#[derive(Clone, Debug)]
enum Sweep {
    ToCome,
    UnderWay,
    /// With what could not be removed.
    Done(Vec<String>),
}

/// Work of the housekeeping that takes time, done beside the loop.
#[derive(Debug)]
enum Job {
    OrphanKilled(PodUid),
    DeadRemoved,
    Collected,
    Cleaned,
    Swept(Vec<String>),
}

impl Task {
    pub fn new(deps: Deps, stop: CancellationToken) -> Self {
        let workers = Workers::new(deps.context.clone(), stop);
        Self {
            deps,
            pods: IndexMap::new(),
            seen: HashSet::new(),
            workers,
            retries: DelayQueue::new(),
            retry_keys: HashMap::new(),
            is_dirty: true,
            is_heap_used: true,
            last_full: Instant::now(),
            jobs: JoinSet::new(),
            killing: HashSet::new(),
            is_collecting: false,
            is_cleaning: false,
            rejected: HashSet::new(),
            stopping: None,
            sweep: Sweep::ToCome,
        }
    }

    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        // Nothing is decided before everything is known once.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.deps.context.pleg.cache().wait_complete() => {}
        }
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.deps.board.set(Part::Sync, Grade::Good, self.summary());
            // Every arm is cancel-safe: receives, joins and timers. No arm waits for the runtime.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                update = self.deps.updates.recv() => match update {
                    Some(update) => self.on_update(update),
                    None => anyhow::bail!("the pod sources ended"),
                },
                event = self.deps.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => anyhow::bail!("the PLEG ended"),
                },
                Some(report) = self.deps.reports.recv() => self.on_report(report),
                Some(ended) = self.workers.join_next() => self.on_worker_ended(ended),
                Some(expired) = self.retries.next(), if !self.retries.is_empty() => {
                    let uid = expired.into_inner();
                    self.retry_keys.remove(&uid);
                    self.workers.kick(&uid, Kick::default());
                }
                Some(order) = self.deps.orders.recv() => self.on_order(order),
                Ok(()) = self.deps.runtime.changed() => self.on_runtime(),
                Some(job) = self.jobs.join_next() => self.on_job(job),
                _ = housekeeping.tick() => self.housekeeping(),
            }
        }
        // The pods stay as they are; each worker ends after the step in hand.
        self.workers.end().await;
        Ok(())
    }

    fn summary(&self) -> String {
        format!(
            "{} pods wanted, {} workers",
            self.pods.len(),
            self.workers.len()
        )
    }

    fn on_update(&mut self, update: PodUpdate) {
        self.is_dirty = true;
        let source: &'static str = update.source.into();
        for pod in &update.pods {
            tracing::info!(op = ?update.op, pod = %pod.key(), uid = %pod.uid(), source, "Pod update");
        }
        match update.op {
            Op::Add => {
                for pod in update.pods {
                    #[expect(clippy::cast_precision_loss, reason = "a handful")]
                    metrics::CONTAINERS_PER_POD.set(pod.regular_containers().count() as f64, &[]);
                    self.pods.insert(pod.uid().clone(), pod.clone());
                    self.assign(pod);
                }
            }
            Op::Update | Op::Delete | Op::Reconcile => {
                for pod in update.pods {
                    self.pods.insert(pod.uid().clone(), pod.clone());
                    self.assign(pod);
                }
            }
            Op::Remove => {
                for pod in update.pods {
                    self.pods.shift_remove(pod.uid());
                    self.workers.stop(pod.uid(), Stop { grace: None });
                    if self.rejected.remove(pod.uid()) {
                        self.deps.context.statuses.remove(pod.uid());
                    }
                }
            }
        }
        self.seen.insert(update.source);
    }

    /// Gives the pod to its worker, if the node takes it.
    fn assign(&mut self, pod: Pod) {
        if self.stopping.is_some() || self.rejected.contains(pod.uid()) {
            return;
        }
        if !self.workers.has(pod.uid())
            && let Some(message) =
                admission::refusal(self.workers.active().count(), self.deps.max_pods)
        {
            tracing::warn!(pod = %pod.key(), %message, "A pod is not taken");
            self.rejected.insert(pod.uid().clone());
            let status = admission::rejected(&pod, message, clock::wall_now());
            self.deps.context.statuses.publish(PodRecord {
                pod,
                status,
                is_terminating: false,
            });
            return;
        }
        self.workers.assign(pod);
    }

    fn are_sources_ready(&self) -> bool {
        self.deps
            .sources
            .iter()
            .all(|source| self.seen.contains(source))
    }

    fn on_event(&mut self, event: PodEvent) {
        self.is_dirty = true;
        if let Some(pod) = self.pods.get(&event.uid) {
            for change in &event.changes {
                let name: &'static str = change.into();
                let container = change.container().map(ContainerId::as_str);
                tracing::info!(
                    target: telemetry::PLEG_EVENTS,
                    pod = %pod.key(), event = name, container, "PLEG event",
                );
            }
        }
        self.workers.kick(
            &event.uid,
            Kick {
                kernel_at: event.kernel_at,
            },
        );
        let died: Vec<ContainerId> = event
            .changes
            .into_iter()
            .filter_map(|change| match change {
                Change::ContainerDied(id) => Some(id),
                Change::ContainerStarted(_)
                | Change::ContainerRemoved(_)
                | Change::ContainerChanged(_)
                | Change::PodSync => None,
            })
            .collect();
        if !died.is_empty() {
            self.collect_dead(&event.uid, &died);
        }
    }

    fn on_report(&mut self, report: Report) {
        if let Some(key) = self.retry_keys.remove(&report.uid) {
            self.retries.remove(&key);
        }
        if let Some(at) = report.next {
            let key = self.retries.insert_at(report.uid.clone(), at);
            self.retry_keys.insert(report.uid, key);
        }
        self.tell_progress();
    }

    fn on_worker_ended(&mut self, ended: workers::Ended) {
        self.is_dirty = true;
        if let Some(uid) = self.workers.on_ended(ended) {
            if let Some(key) = self.retry_keys.remove(&uid) {
                self.retries.remove(&key);
            }
            self.deps.context.statuses.remove(&uid);
            // The same uid is wanted again (a manifest with a uid of its own was put back).
            if let Some(pod) = self.pods.get(&uid).cloned() {
                metrics::RESTARTED_PODS
                    .add(1, &[("static", if pod.is_static() { "true" } else { "" })]);
                self.assign(pod);
            }
        }
        self.tell_progress();
    }

    fn on_order(&mut self, order: Order) {
        match order {
            Order::StopAll { progress } => {
                self.stopping = Some(progress);
                for uid in self.workers.uids() {
                    self.workers.stop(&uid, Stop { grace: None });
                }
                self.tell_progress();
            }
        }
    }

    /// Tells how far `down` has come. It is done when the pods' records are gone from the runtime
    /// too: the next start begins anew.
    fn tell_progress(&mut self) {
        let Some(progress) = &self.stopping else {
            return;
        };
        let pods = self.workers.keys();
        let mut faults = Vec::new();
        if pods.is_empty() {
            match &self.sweep {
                Sweep::ToCome => {
                    self.sweep = Sweep::UnderWay;
                    self.pods.clear();
                    return self.sweep();
                }
                Sweep::UnderWay => return,
                Sweep::Done(told) => faults.clone_from(told),
            }
        }
        progress.send_replace(Some(Remaining { pods, faults }));
    }

    /// The runtime came or went: once it is there, everyone looks again.
    fn on_runtime(&mut self) {
        if self.deps.runtime.borrow_and_update().is_none() {
            for uid in self.workers.uids() {
                self.workers.kick(&uid, Kick::default());
            }
        }
    }

    fn on_job(&mut self, job: Result<Job, tokio::task::JoinError>) {
        let job = match job {
            Ok(job) => job,
            Err(error) => {
                // A bug in one job must not end the agent: all of them may begin anew.
                tracing::error!(%error, "A housekeeping job ended badly");
                (self.is_collecting, self.is_cleaning, self.is_dirty) = (false, false, true);
                self.killing.clear();
                if matches!(self.sweep, Sweep::UnderWay) {
                    self.sweep = Sweep::Done(vec![error.to_string()]);
                    self.tell_progress();
                }
                return;
            }
        };
        match job {
            Job::OrphanKilled(uid) => {
                self.killing.remove(&uid);
            }
            Job::DeadRemoved => {}
            Job::Collected => self.is_collecting = false,
            Job::Cleaned => self.is_cleaning = false,
            Job::Swept(faults) => {
                self.sweep = Sweep::Done(faults);
                self.tell_progress();
            }
        }
    }
}
