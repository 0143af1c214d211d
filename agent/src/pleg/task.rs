//! The PLEG's loop: kernel news, the runtime's events, wishes and time in; the cache and pod events
//! out.

mod kernel;
mod listing;
mod mode;
mod publish;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::kernel::{KernelOpener, KernelSource};
use self::{kernel::Kernel, listing::Full, stream::StreamNews};
use super::{
    Cache, Command, Handle, Listing, PodEvent, awaiting::Awaiting, deaths::Deaths, index::Index,
    read, suspects::Suspects,
};
use crate::{
    config::{PlegMode, PlegSettings},
    cri::{self, ListedPod},
    health::Board,
    metrics, timeline,
    types::{
        id::{ContainerId, PodUid, SandboxId},
        kernel::MemoryNews,
        runtime::{Container, ContainerState, RuntimePod},
    },
};

/// What the PLEG works with.
pub struct Deps {
    pub client: cri::Client,
    pub recorder: timeline::Recorder,
    pub board: Board,
    /// Loads and attaches the programs; called at start and again after the source has failed.
    pub open_kernel: KernelOpener,
    pub memory_news: mpsc::Sender<MemoryNews>,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deps")
    }
}

/// Readings of the runtime in flight, over all pods: a storm must not choke it with questions.
const MAX_READS: usize = 8;
/// A reading that takes longer has failed and is tried again: one that hangs must not hold its place.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The same for a listing of everything.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// How long a reading may stand on what a listing showed of the pod.
const LISTED_FOR: Duration = Duration::from_secs(1);
/// A listing does not wait for a pod whose reading takes longer.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
/// Upstream's capacity (PLEG-04). What does not fit is counted and sent later.
const EVENTS: usize = 1000;
/// Kernel news taken in one turn, so that a burst becomes one event a pod.
const BATCH: usize = 256;
/// First and longest wait before a failed reading is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long after an exec in a new container the cache must know that it runs: its starter reads it
/// in that time; a container that others started is read then.
const CHECK_START_AFTER: Duration = Duration::from_secs(2);
/// After a gap everything is listed at once, and again after so many seconds.
const FOLLOW_UPS: [u64; 3] = [2, 10, 30];
/// Whoever removes a container reads its pod afterwards; what the cache still has after this time
/// was removed by others.
const CHECK_REMOVAL_AFTER: Duration = Duration::from_millis(500);
/// An exit without a record from the runtime after this time is told without its times.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// Between two looks at the PLEG's own health.
const HEALTH_PERIOD: Duration = Duration::from_secs(10);

/// Why a pod is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum Cause {
    Kernel,
    Stream,
    Asked,
    Listing,
}

/// Why everything is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum ListCause {
    Start,
    Mode,
    Safety,
    Gap,
    Forced,
    Period,
}

enum Done {
    Pod {
        uid: PodUid,
        began: Instant,
        result: Result<RuntimePod, cri::Error>,
    },
    Container {
        uid: PodUid,
        id: ContainerId,
        result: Box<Result<Option<Container>, cri::Error>>,
    },
    All {
        began: Instant,
        result: Result<Vec<ListedPod>, cri::Error>,
    },
    Pid {
        id: ContainerId,
        result: Result<Option<u32>, cri::Error>,
    },
    Kernel(Box<Result<KernelSource, String>>),
}

/// Owns what the PLEG knows. Build it with [`Task::new`], then run it.
pub struct Task {
    deps: Deps,
    settings: PlegSettings,
    /// Asks for single pods and containers.
    reader: cri::Client,
    cache: Cache,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<PodEvent>,
    /// Events that the full queue did not take; sent before new ones.
    unsent: VecDeque<PodEvent>,

    kernel: Kernel,
    stream_news: mpsc::Receiver<StreamNews>,
    stream_tx: mpsc::Sender<StreamNews>,
    stream: stream::State,
    mode: Option<PlegMode>,
    mode_view: watch::Sender<Option<PlegMode>>,

    index: Index,
    deaths: Deaths,
    awaiting: Awaiting,
    suspects: Suspects,

    reads: JoinSet<Done>,
    queue: VecDeque<PodUid>,
    wanted: HashMap<PodUid, Cause>,
    /// Pods being read, since when.
    in_flight: HashMap<PodUid, Instant>,
    /// Pods whose reading failed: when to try again, and the wait after that.
    failed: HashMap<PodUid, (Instant, Duration)>,
    /// Running containers whose main process the runtime is to be asked for.
    unlearned: VecDeque<ContainerId>,
    /// Those whose answer was an error: when to ask again, and the wait after that.
    relearn: HashMap<ContainerId, (Instant, Duration)>,
    /// Containers that the runtime removed: when to look whether the cache knows it.
    removed: HashMap<ContainerId, (PodUid, Instant)>,
    /// Containers seen to call exec: by when the cache must know them running.
    started: HashMap<ContainerId, (PodUid, Instant)>,

    full: Option<Full>,
    /// Listings that were asked for while another was under way, each cause once.
    next_full: VecDeque<ListCause>,
    list_at: Option<Instant>,
    /// Listings that follow a gap: what the runtime was behind with at the first one.
    follow_ups: VecDeque<Instant>,
    forced: Vec<oneshot::Sender<Result<Listing, String>>>,
    last_list_began: Option<Instant>,
    last_forced: Option<Listing>,

    last_proof: Option<Instant>,
    is_gauge_stale: bool,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Task {
    pub fn new(settings: PlegSettings, deps: Deps) -> (Handle, Self, mpsc::Receiver<PodEvent>) {
        let (handle, commands) = Handle::new();
        let (events, events_rx) = mpsc::channel(EVENTS);
        // The stream's task waits while this one is busy; the runtime buffers for it.
        let (stream_tx, stream_news) = mpsc::channel(64);
        let task = Self {
            reader: deps.client.with_timeout(READ_WITHIN),
            cache: handle.cache().clone(),
            deps,
            settings,
            commands,
            events,
            unsent: VecDeque::new(),
            kernel: Kernel::default(),
            stream_news,
            stream_tx,
            stream: stream::State::default(),
            mode: None,
            mode_view: handle.mode.clone(),
            index: Index::default(),
            deaths: Deaths::default(),
            awaiting: Awaiting::default(),
            suspects: Suspects::default(),
            reads: JoinSet::new(),
            queue: VecDeque::new(),
            wanted: HashMap::new(),
            in_flight: HashMap::new(),
            failed: HashMap::new(),
            unlearned: VecDeque::new(),
            relearn: HashMap::new(),
            removed: HashMap::new(),
            started: HashMap::new(),
            full: None,
            next_full: VecDeque::new(),
            list_at: None,
            follow_ups: VecDeque::new(),
            forced: Vec::new(),
            last_list_began: None,
            last_forced: None,
            last_proof: None,
            is_gauge_stale: true,
        };
        (handle, task, events_rx)
    }

    /// Runs until `stop`. The runtime is listed while the programs are attached, so that a start
    /// knows its pods soon; then the cgroups are walked, and it is listed again: nothing that happens
    /// in between can be missed.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        // What must stay 0 is shown as 0: a series that is not there can't be watched.
        metrics::PLEG_MISSED.add(0, &[]);
        for field in ["code", "signal"] {
            metrics::EXIT_MISMATCH.add(0, &[("field", field)]);
        }
        self.open_kernel();
        self.spawn_stream(&stop);
        self.choose_mode("start");
        self.list(ListCause::Start);
        let mut health = tokio::time::interval(HEALTH_PERIOD);
        health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut news = Vec::with_capacity(BATCH);
        let events = self.events.clone();
        loop {
            self.start_reads();
            self.refresh_gauges();
            let deadline = self.next_deadline();
            // Stop first, then what the kernel says, then answers, wishes and time. Every arm is
            // cancel-safe: receives, joins and timers.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                count = self.kernel.receive(&mut news, BATCH) => self.on_kernel(count, &mut news),
                Some(done) = self.reads.join_next() => match done {
                    Ok(done) => self.on_done(done),
                    Err(error) => anyhow::bail!("a reading of the runtime failed to end: {error}"),
                },
                Some(news) = self.stream_news.recv() => self.on_stream(news),
                Some(command) = self.commands.recv() => self.on_command(command),
                permit = events.reserve(), if !self.unsent.is_empty() => {
                    if let (Ok(permit), Some(event)) = (permit, self.unsent.pop_front()) {
                        permit.send(event);
                    }
                }
                () = sleep_until(deadline) => self.on_time(),
                _ = health.tick() => self.on_health(),
            }
        }
        self.close_kernel().await;
        Ok(())
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Read(uid) => self.want(&uid, Cause::Asked),
            Command::Relist(reply) => {
                self.forced.push(reply);
                self.list(ListCause::Forced);
            }
            Command::RuntimeAnswered => {
                // Where listings are the source of news, only they prove that it works.
                if matches!(self.mode, Some(PlegMode::Kernel | PlegMode::Stream)) {
                    self.proved();
                }
            }
            Command::RuntimeReturned => {
                self.failed.clear();
                self.list(ListCause::Gap);
            }
        }
    }

    /// Puts the pod on the list of those to read; a reading under way does not count, since it
    /// began before.
    fn want(&mut self, uid: &PodUid, cause: Cause) {
        if self.wanted.insert(uid.clone(), cause).is_none() {
            self.queue.push_back(uid.clone());
        }
    }

    /// Starts as many readings as the bound allows: awaited ends first, then pods in the order of
    /// their wishes.
    fn start_reads(&mut self) {
        let free = MAX_READS.saturating_sub(self.reads.len());
        let now = Instant::now();
        for (id, end) in self.awaiting.take_due(free, now) {
            if end.is_sandbox {
                self.awaiting.answered(&id);
                self.want(&end.uid, Cause::Kernel);
            } else {
                let Some(sandbox) = self.sandbox_of(&end.uid, &id) else {
                    self.awaiting.answered(&id);
                    self.want(&end.uid, Cause::Kernel);
                    continue;
                };
                let client = self.reader.clone();
                self.reads.spawn(async move {
                    let result = Box::new(read::container(&client, &id, &sandbox).await);
                    Done::Container {
                        uid: end.uid,
                        id,
                        result,
                    }
                });
            }
        }
        let mut postponed = Vec::new();
        let mut doubtful = self
            .in_flight
            .keys()
            .filter(|uid| self.failed.contains_key(*uid))
            .count();
        while self.reads.len() < MAX_READS {
            let Some(uid) = self.queue.pop_front() else {
                break;
            };
            // Readings that failed before may hang again: half the places are kept from them.
            let is_doubtful = self.failed.contains_key(&uid);
            if self.in_flight.contains_key(&uid) || is_doubtful && doubtful >= MAX_READS / 2 {
                postponed.push(uid);
                continue;
            }
            doubtful += usize::from(is_doubtful);
            let Some(cause) = self.wanted.remove(&uid) else {
                continue;
            };
            metrics::PLEG_REREADS.add(1, &[("cause", cause.into())]);
            let now = Instant::now();
            self.in_flight.insert(uid.clone(), now);
            let client = self.reader.clone();
            let known = self.cache.get(&uid);
            let listed = self.take_listed(&uid, cause);
            self.reads.spawn(async move {
                let (began, result) = match listed {
                    Some((pod, began)) => (
                        began,
                        read::of_listed(&client, &pod, known.as_deref()).await,
                    ),
                    None => (now, read::pod(&client, &uid, known.as_deref()).await),
                };
                metrics::PLEG_POD_RELIST_DURATION.record(now.elapsed().as_secs_f64(), &[]);
                Done::Pod { uid, began, result }
            });
        }
        self.queue.extend(postponed);
        while self.reads.len() < MAX_READS {
            let Some(id) = self.unlearned.pop_front() else {
                break;
            };
            let client = self.reader.clone();
            self.reads.spawn(async move {
                let result = client.container_pid(&id).await;
                Done::Pid { id, result }
            });
        }
    }

    fn sandbox_of(&self, uid: &PodUid, id: &ContainerId) -> Option<SandboxId> {
        self.cache
            .get(uid)?
            .container(id)
            .map(|container| container.sandbox.clone())
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Pod { uid, began, result } => {
                self.in_flight.remove(&uid);
                match result {
                    Ok(reading) => {
                        self.failed.remove(&uid);
                        self.proved();
                        self.on_pod(reading, began);
                    }
                    Err(error) => self.on_failed(&uid, began, &error),
                }
                self.on_full_progress(&uid);
                // The reading may have explained the last difference.
                self.answer_forced();
            }
            Done::Container { uid, id, result } => {
                self.awaiting.answered(&id);
                match *result {
                    Ok(Some(container)) => {
                        self.proved();
                        self.on_container(&uid, container);
                    }
                    Ok(None) => self.want(&uid, Cause::Kernel),
                    // Asked again at its next, longer wait.
                    Err(error) => {
                        tracing::debug!(%id, %error, "The runtime did not tell of an end");
                    }
                }
            }
            Done::All { began, result } => self.on_listed(began, result),
            Done::Pid { id, result } => self.on_pid(&id, result),
            Done::Kernel(opened) => self.on_opened(*opened),
        }
    }

    fn on_failed(&mut self, uid: &PodUid, began: Instant, error: &cri::Error) {
        tracing::warn!(%uid, %error, "A pod could not be read from the runtime");
        self.cache.store_error(uid, began, error.to_string());
        let (first, longest) = RETRY;
        let wait = self
            .failed
            .get(uid)
            .map_or(first, |(_, wait)| (*wait * 2).min(longest));
        self.failed
            .insert(uid.clone(), (Instant::now() + wait, wait));
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        self.give_up_readings(now);
        let due: Vec<PodUid> = self
            .failed
            .iter_mut()
            .filter(|(_, (at, _))| *at <= now)
            .map(|(uid, (at, wait))| {
                *at = now + *wait;
                uid.clone()
            })
            .collect();
        for uid in due {
            self.want(&uid, Cause::Asked);
        }
        let late: Vec<(ContainerId, PodUid)> = self
            .started
            .iter()
            .filter(|(_, (_, by))| *by <= now)
            .map(|(id, (uid, _))| (id.clone(), uid.clone()))
            .collect();
        for (id, uid) in late {
            self.started.remove(&id);
            let is_known = self.cache.get(&uid).is_some_and(|pod| {
                pod.container(&id)
                    .is_some_and(|container| container.state != ContainerState::Created)
            });
            let is_sandbox = self
                .cache
                .get(&uid)
                .is_some_and(|pod| pod.sandboxes.iter().any(|s| s.id.as_str() == id.as_str()));
            if !is_known && !is_sandbox {
                self.want(&uid, Cause::Kernel);
            }
        }
        self.learn_again(now);
        self.check_removed(now);
        for (id, end) in self.awaiting.take_untold(TELL_AFTER, now) {
            if end.is_sandbox || self.deaths.has_ended(&id) {
                self.tell_untold(&id, &end);
            } else {
                // What ended was taken for its main process and was not: the runtime still says
                // that it runs, and its cgroup is not empty.
                self.awaiting.done(&id);
            }
        }
        let missed = self.suspects.take_missed(now);
        if !missed.is_empty() {
            self.on_missed(&missed);
        }
        self.answer_forced();
        if self.list_at.is_some_and(|at| at <= now) {
            self.list_at = None;
            let cause = match self.mode {
                Some(PlegMode::Listing) | None => ListCause::Period,
                Some(PlegMode::Kernel | PlegMode::Stream) => ListCause::Safety,
            };
            self.list(cause);
        }
        if self.follow_ups.front().is_some_and(|at| *at <= now) {
            self.follow_ups.pop_front();
            self.list(ListCause::Gap);
        }
        if self.kernel.retry_at().is_some_and(|at| at <= now) {
            self.open_kernel();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let untold = (self.awaiting.len() > 0).then(|| Instant::now() + Duration::from_secs(1));
        let is_full = self.reads.len() >= MAX_READS;
        [
            // With every place taken, the next look comes when one is free.
            self.awaiting.next_at().filter(|_| !is_full),
            self.failed.values().map(|(at, _)| *at).min(),
            self.started.values().map(|(_, by)| *by).min(),
            self.relearn.values().map(|(at, _)| *at).min(),
            self.removed.values().map(|(_, at)| *at).min(),
            self.suspects.next_at(),
            self.give_up_at(),
            self.list_at,
            self.follow_ups.front().copied(),
            self.kernel.retry_at(),
            untold,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The runtime answered: together with a living source of events that is the proof that the
    /// PLEG works.
    fn proved(&mut self) {
        self.last_proof = Some(Instant::now());
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Shared by the parts of the task that log a pod.
fn described(pod: Option<&Arc<RuntimePod>>) -> String {
    pod.map_or_else(String::new, |pod| pod.key.to_string())
}

#[cfg(test)]
mod tests;
