//! The kernel's side of the PLEG: the source itself, and what its news mean.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::{Cause, Done, ListCause, Task};
use crate::{
    cri,
    host::{bpf, hierarchy::Found},
    metrics,
    pleg::index::Place,
    types::{
        clock::{self, Mono},
        id::{ContainerId, PodUid},
        kernel::{Gap, GapPlace, KernelEvent, KernelFact, KernelNews, MemoryNews},
        reason::event,
        runtime::RuntimePod,
        timeline::{Entry, Level},
    },
};

/// An open source: the attached programs, their news, and the cgroups that a walk found after they
/// were attached.
#[derive(Debug)]
pub struct KernelSource {
    pub programs: bpf::Programs,
    pub news: mpsc::Receiver<KernelNews>,
    /// The directory that all pods' cgroups are below.
    pub pods_root: PathBuf,
    pub found: Vec<Found>,
    /// Ends when the reader's thread has ended.
    pub reader: tokio::task::JoinHandle<()>,
    pub stop: tokio_util::sync::CancellationToken,
}

/// Opens the source, or says in one line what is missing.
pub type KernelOpener = Arc<dyn Fn() -> Result<KernelSource, String> + Send + Sync>;

/// Between two attempts to open the source again after it failed, first and longest: an attempt
/// costs a load of the programs, and what a machine lacks it seldom gets while it runs.
const RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// The same for the question which process is a container's main one: without the answer its end is
/// known only once its cgroup is empty.
const LEARN_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The source while it is open, or why it is not.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    source: Option<KernelSource>,
    is_opening: bool,
    /// Why there is no source, for the health page.
    pub(super) missing: Option<String>,
    retry_at: Option<Instant>,
    /// The wait before the last attempt.
    waited: Option<Duration>,
}

impl Kernel {
    pub(super) fn is_open(&self) -> bool {
        self.source.is_some()
    }

    /// Whether there is a source is known in a moment.
    pub(super) fn is_opening(&self) -> bool {
        self.is_opening
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Some news; 0 once the source has ended. Never returns while there is no source.
    pub(super) async fn receive(&mut self, news: &mut Vec<KernelNews>, most: usize) -> usize {
        match &mut self.source {
            Some(source) => source.news.recv_many(news, most).await,
            None => std::future::pending().await,
        }
    }

    fn retry_later(&mut self) {
        let (first, longest) = RETRY;
        let wait = self.waited.map_or(first, |wait| (wait * 2).min(longest));
        self.waited = Some(wait);
        self.retry_at = Some(Instant::now() + wait);
    }

    async fn close(&mut self) {
        if let Some(source) = self.source.take() {
            source.stop.cancel();
            // A reader that panicked has said so; there is nothing to add at the end.
            source.reader.await.ok();
        }
    }
}

impl Task {
    /// Opens the kernel source where the settings want it, beside the loop: the kernel takes some
    /// 0.2 s to check and attach the programs. [`Self::on_opened`] follows.
    pub(super) fn open_kernel(&mut self) {
        self.kernel.retry_at = None;
        if self.settings.best_mode != crate::config::PlegMode::Kernel {
            self.kernel.missing = Some("not wanted (--pleg-mode)".to_owned());
            return;
        }
        self.kernel.is_opening = true;
        let open = self.deps.open_kernel.clone();
        self.reads
            .spawn_blocking(move || Done::Kernel(Box::new(open())));
    }

    pub(super) fn on_opened(&mut self, opened: Result<KernelSource, String>) {
        self.kernel.is_opening = false;
        let is_start = self.mode.is_none();
        match opened {
            Ok(source) => {
                self.index.clear();
                for found in &source.found {
                    self.index.made(found.id, found.parent, &found.name);
                }
                self.kernel.source = Some(source);
                self.kernel.missing = None;
                self.kernel.waited = None;
            }
            Err(why) => {
                if self.kernel.missing.as_ref() != Some(&why) {
                    tracing::warn!(%why, "The kernel's events cannot be had");
                }
                self.kernel.missing = Some(why);
                self.kernel.retry_later();
            }
        }
        if is_start {
            self.choose_mode("start");
            if self.kernel.is_open() {
                // What happened between the first listing and the attaching came by no event.
                self.list(ListCause::Mode);
            }
        } else {
            self.choose_mode("the kernel's events are back");
        }
    }

    /// A source that is being opened while the agent ends is closed like any other.
    pub(super) async fn close_kernel(&mut self) {
        self.reads.abort_all();
        while let Some(done) = self.reads.join_next().await {
            if let Ok(Done::Kernel(opened)) = done {
                self.kernel.source = opened.ok();
            }
        }
        self.kernel.close().await;
    }

    pub(super) fn on_kernel(&mut self, count: usize, news: &mut Vec<KernelNews>) {
        if count == 0 {
            self.kernel.source = None;
            self.kernel.missing = Some("the reader of the kernel's events ended".to_owned());
            self.kernel.retry_later();
            self.choose_mode("the kernel's events ended");
            return;
        }
        // Pods whose picture the kernel's word may have changed, with the earliest event behind it.
        let mut touched: HashMap<PodUid, Mono> = HashMap::new();
        for item in news.drain(..) {
            match item {
                KernelNews::Gap(gap) => self.on_gap(gap),
                KernelNews::Event(event) => {
                    let at = event.at;
                    if let Some(uid) = self.on_fact(event) {
                        touched
                            .entry(uid)
                            .and_modify(|first| *first = at.min(*first))
                            .or_insert(at);
                    }
                }
            }
        }
        for (uid, at) in touched {
            self.apply_kernel(&uid, at);
        }
    }

    /// Notes the fact; returns the pod whose picture it may have changed.
    fn on_fact(&mut self, event: KernelEvent) -> Option<PodUid> {
        if let KernelFact::Made { parent, name } = &event.what {
            if let Some(Place::Container { uid, id }) = self.index.made(event.cgroup, *parent, name)
            {
                let news = MemoryNews::Made {
                    cgroup: event.cgroup,
                    uid: uid.clone(),
                    container: id.clone(),
                };
                self.send_memory_news(news);
            }
            return None;
        }
        let place = self.index.place(event.cgroup)?.clone();
        let Place::Container { uid, id } = place else {
            if event.what == KernelFact::Removed {
                self.index.removed(event.cgroup);
            }
            return None;
        };
        match event.what {
            KernelFact::Made { .. } | KernelFact::Attached { .. } => None,
            KernelFact::Started { pid, is_init, .. } => {
                let death = self.deaths.entry(&id);
                death.has_run = true;
                if is_init {
                    death.main_pid = Some(pid);
                }
                let by = Instant::now() + super::CHECK_START_AFTER;
                self.started.insert(id, (uid, by));
                None
            }
            KernelFact::Exited {
                pid,
                is_main,
                is_init,
                exit,
                ..
            } => {
                if !is_main {
                    return None;
                }
                let death = self.deaths.entry(&id);
                if is_init || death.main_pid == Some(pid) {
                    death.exit = Some((exit, event.at));
                }
                self.await_record(&uid, &id);
                self.deaths.is_proven(&id).then_some(uid)
            }
            KernelFact::OomVictim { pid, is_main, comm } => {
                let death = self.deaths.entry(&id);
                death.oom_seen = true;
                death.is_oom |= is_main;
                self.send_memory_news(MemoryNews::Killed {
                    at: event.at,
                    cgroup: event.cgroup,
                    uid,
                    container: id,
                    pid,
                    comm,
                    is_main,
                });
                None
            }
            KernelFact::Emptied => {
                let death = self.deaths.entry(&id);
                death.emptied_at = Some(event.at);
                if death.exit.is_some() {
                    return Some(uid);
                }
                // Empty without an exit that we saw: the runtime must tell.
                if self.is_running(&uid, &id) {
                    self.await_record(&uid, &id);
                }
                None
            }
            KernelFact::Removed => {
                self.index.removed(event.cgroup);
                self.started.remove(&id);
                self.send_memory_news(MemoryNews::Removed {
                    cgroup: event.cgroup,
                });
                None
            }
        }
    }

    fn send_memory_news(&self, news: MemoryNews) {
        // A full queue loses the name of the limit that was hit, never the kill itself.
        if self.deps.memory_news.try_send(news).is_err() {
            tracing::debug!("A memory kill's limit will not be told: the queue is full");
        }
    }

    /// Waits for the runtime's record of an end that the kernel has shown.
    fn await_record(&mut self, uid: &PodUid, id: &ContainerId) {
        let known = self.cache.get(uid);
        let is_sandbox = known
            .as_ref()
            .is_some_and(|pod| pod.sandboxes.iter().any(|s| s.id.as_str() == id.as_str()));
        let is_container = known
            .as_ref()
            .is_some_and(|pod| pod.container(id).is_some());
        if is_sandbox || is_container {
            let has_stream = self.stream.is_up();
            let (wall, now) = (clock::wall_now(), Instant::now());
            self.awaiting
                .add(id, uid, is_sandbox, has_stream, wall, now);
        }
        // Unknown to the cache: whoever starts it reads it afterwards, and the kernel's word is laid
        // over that reading.
    }

    fn is_running(&self, uid: &PodUid, id: &ContainerId) -> bool {
        self.cache
            .get(uid)
            .and_then(|pod| {
                pod.container(id)
                    .map(|container| container.state.is_running())
            })
            .unwrap_or(false)
    }

    /// Losing events is no loss of state: everything is read again, now and a little later, since
    /// the runtime may be behind the kernel at the first look.
    pub(super) fn on_gap(&mut self, gap: Gap) {
        let place: &'static str = gap.place.into();
        metrics::PLEG_GAPS.add(1, &[("place", place)]);
        tracing::warn!(
            place,
            lost = gap.lost,
            "Events were lost: reading everything again"
        );
        let message = match gap.lost {
            0 => format!("events were lost ({place}): everything is read again"),
            lost => format!("{lost} events were lost ({place}): everything is read again"),
        };
        self.deps.recorder.record(Entry {
            kernel_at: Some(gap.at.to_wall()),
            ..Entry::now(Level::Warning, event::GAP, message)
        });
        if gap.place == GapPlace::KernelRing || gap.place == GapPlace::Queue {
            // The lost events may have made cgroups: the walk finds what is there now.
            self.walk_again();
        }
        let now = Instant::now();
        self.follow_ups = super::FOLLOW_UPS
            .map(|seconds| now + Duration::from_secs(seconds))
            .into();
        self.list(ListCause::Gap);
    }

    fn walk_again(&mut self) {
        let Some(source) = &self.kernel.source else {
            return;
        };
        match source.programs.follow(&source.pods_root) {
            Ok(found) => {
                for found in &found {
                    self.index.made(found.id, found.parent, &found.name);
                }
                // What is not there any more stays known for a while: its last events may still be
                // in the queue.
                self.index
                    .walked(&found.iter().map(|found| found.id).collect());
            }
            Err(error) => tracing::warn!(%error, "The pods' cgroups could not be walked"),
        }
    }

    /// Cgroups whose removal was among the lost events.
    pub(super) fn forget_lost_cgroups(&mut self) {
        for (cgroup, place) in self.index.forget_lost() {
            if let Place::Container { id, .. } = place {
                self.started.remove(&id);
                self.send_memory_news(MemoryNews::Removed { cgroup });
            }
        }
    }

    /// Running containers whose main process is not certain: those that ran before the programs were
    /// attached, and those in a pid namespace that they share. Only the runtime can tell.
    pub(super) fn learn_main_processes(&mut self, pod: &RuntimePod) {
        if !self.kernel.is_open() {
            return;
        }
        for container in pod.containers.iter().filter(|c| c.state.is_running()) {
            let id = &container.id;
            let is_known = self
                .deaths
                .get(id)
                .is_some_and(|death| death.main_pid.is_some());
            if !is_known && self.index.cgroup_of(id).is_some() && !self.unlearned.contains(id) {
                self.unlearned.push_back(id.clone());
            }
        }
    }

    pub(super) fn on_pid(&mut self, id: &ContainerId, result: Result<Option<u32>, cri::Error>) {
        let retry = self.relearn.remove(id);
        let Some(cgroup) = self.index.cgroup_of(id) else {
            return;
        };
        match result {
            Ok(Some(pid)) => {
                let death = self.deaths.entry(id);
                death.main_pid = Some(pid);
                // It runs: its program was started.
                death.has_run = true;
                if let Some(source) = &mut self.kernel.source
                    && let Err(error) = source.programs.set_main(cgroup, pid)
                {
                    tracing::debug!(%id, %error, "A main process could not be handed to the kernel");
                }
            }
            // It ended meanwhile; its record is awaited like that of any other.
            Ok(None) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::debug!(%id, %error, "The main process is not known yet");
                let (first, longest) = LEARN_RETRY;
                let wait = retry.map_or(first, |(_, wait)| (wait * 2).min(longest));
                self.relearn
                    .insert(id.clone(), (Instant::now() + wait, wait));
            }
        }
    }

    /// Questions for main processes that failed and whose time has come again.
    pub(super) fn learn_again(&mut self, now: Instant) {
        for (id, (at, wait)) in &mut self.relearn {
            if *at <= now {
                // The answer settles it before that.
                *at = now + *wait;
                if !self.unlearned.contains(id) {
                    self.unlearned.push_back(id.clone());
                }
            }
        }
    }

    /// The kernel's word for a pod, laid over what is known of it.
    fn apply_kernel(&mut self, uid: &PodUid, at: Mono) {
        match self.cache.get(uid) {
            Some(known) => self.publish((*known).clone(), None, Some(at)),
            None => self.want(uid, Cause::Kernel),
        }
    }
}
