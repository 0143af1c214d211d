//! Listings of everything: at start, after gaps and changes of mode, each second in the listing
//! mode, and as the slow safety net, which counts what it finds that nothing had told.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

use super::{Cause, Done, ListCause, Task, described};
use crate::{
    config::PlegMode,
    cri::{self, ListedPod},
    metrics,
    pleg::{Listing, read},
    types::id::PodUid,
};

/// A listing under way: it is complete when the pods that it found changed have been read.
#[derive(Debug)]
pub(super) struct Full {
    cause: ListCause,
    began: Instant,
    pub(super) is_listed: bool,
    pub(super) waiting: HashSet<PodUid>,
    /// Pods to be read, as they were listed: they need not be listed a second time.
    listed: HashMap<PodUid, ListedPod>,
}

impl Task {
    /// Begins a listing; one that is asked for while another is under way follows it, since that
    /// one began before.
    pub(super) fn list(&mut self, cause: ListCause) {
        if self.full.is_some() {
            // One cause does not stand for another: a gap's listing reads what differs, a forced
            // one asks whether an event tells of it.
            if !self.next_full.contains(&cause) {
                self.next_full.push_back(cause);
            }
            return;
        }
        metrics::PLEG_LISTINGS.add(1, &[("cause", cause.into())]);
        let began = Instant::now();
        if let Some(last) = self.last_list_began.replace(began) {
            metrics::PLEG_RELIST_INTERVAL.record((began - last).as_secs_f64(), &[]);
        }
        self.full = Some(Full {
            cause,
            began,
            is_listed: false,
            waiting: HashSet::new(),
            listed: HashMap::new(),
        });
        let client = self.deps.client.with_timeout(super::LIST_WITHIN);
        self.reads.spawn(async move {
            let result = client.list_pods().await;
            metrics::PLEG_RELIST_DURATION.record(began.elapsed().as_secs_f64(), &[]);
            Done::All { began, result }
        });
    }

    pub(super) fn on_listed(&mut self, began: Instant, result: Result<Vec<ListedPod>, cri::Error>) {
        let Some(cause) = self.full.as_ref().map(|full| full.cause) else {
            return;
        };
        let listed = match result {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "The runtime could not be listed");
                self.full = None;
                for reply in self.forced.drain(..) {
                    // Whoever asked may have left.
                    drop(reply.send(Err(error.to_string())));
                }
                let soon = super::RETRY.1.min(self.listing_period());
                self.list_at = Some(Instant::now() + soon);
                self.start_next_listing();
                return;
            }
        };
        self.proved();
        // Differences are expected where the listing is itself the source of news.
        let is_check = matches!(cause, ListCause::Safety | ListCause::Forced)
            && matches!(self.mode, Some(PlegMode::Kernel | PlegMode::Stream));
        let by_uid: HashMap<&PodUid, &ListedPod> =
            listed.iter().map(|pod| (&pod.uid, pod)).collect();
        let known = self.cache.all();
        let mut changed: Vec<PodUid> = Vec::new();
        for pod in &listed {
            let known = self.cache.get(&pod.uid);
            if read::agrees(Some(pod), known.as_deref()) {
                self.cache.store_unchanged(&pod.uid, began);
            } else {
                changed.push(pod.uid.clone());
            }
        }
        changed.extend(
            known
                .iter()
                .map(|pod| &pod.uid)
                .filter(|uid| !by_uid.contains_key(uid))
                .cloned(),
        );
        let mut to_read = HashMap::new();
        for uid in &changed {
            // Whoever has asked for it already may need a newer one.
            if !is_check
                && !self.wanted.contains_key(uid)
                && let Some(pod) = by_uid.get(uid)
            {
                to_read.insert(uid.clone(), (*pod).clone());
            }
            if is_check {
                // An event may be under way, or a worker in the middle of its steps.
                if !self.is_being_looked_at(uid) {
                    self.suspects.add(uid.clone(), began, Instant::now());
                }
            } else {
                self.want(uid, Cause::Listing);
            }
        }
        if cause == ListCause::Forced {
            self.last_forced = Some(Listing {
                sandboxes: listed.iter().map(|pod| pod.sandboxes.len()).sum(),
                containers: listed.iter().map(|pod| pod.containers.len()).sum(),
                missed: Vec::new(),
            });
        }
        if let Some(full) = &mut self.full {
            full.is_listed = true;
            full.listed = to_read;
            full.waiting = if is_check {
                HashSet::new()
            } else {
                changed.into_iter().collect()
            };
        }
        self.finish_full();
    }

    fn is_being_looked_at(&self, uid: &PodUid) -> bool {
        self.wanted.contains_key(uid)
            || self.in_flight.contains_key(uid)
            || self.failed.contains_key(uid)
            || self.awaiting.has_pod(uid)
    }

    /// The pod as the listing under way has it, and when that began, where a reading for `cause` may
    /// stand on it.
    pub(super) fn take_listed(
        &mut self,
        uid: &PodUid,
        cause: Cause,
    ) -> Option<(ListedPod, Instant)> {
        let full = self.full.as_mut()?;
        let pod = full.listed.remove(uid)?;
        let is_new = cause == Cause::Listing
            && full.began.elapsed() < super::LISTED_FOR
            && self.cache.newer_than(uid, full.began).is_none();
        is_new.then_some((pod, full.began))
    }

    /// A pod's reading ended, well or badly: the listing need not wait for it any more.
    pub(super) fn on_full_progress(&mut self, uid: &PodUid) {
        if let Some(full) = &mut self.full
            && full.waiting.remove(uid)
        {
            self.finish_full();
        }
    }

    /// When the listing under way has waited long enough for the reading that began first.
    pub(super) fn give_up_at(&self) -> Option<Instant> {
        let full = self.full.as_ref()?;
        let began = full
            .waiting
            .iter()
            .filter_map(|uid| self.in_flight.get(uid));
        began.min().map(|began| *began + super::LISTING_PATIENCE)
    }

    /// Readings that hang do not hold up the listing. What is known of their pods stays, with an
    /// error for whoever needs to know more: an unknown pod must not be taken for one that is not
    /// there.
    pub(super) fn give_up_readings(&mut self, now: Instant) {
        if self.give_up_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(full) = &mut self.full else { return };
        let (in_flight, began) = (&self.in_flight, full.began);
        let hanging: Vec<PodUid> = full
            .waiting
            .extract_if(|uid| {
                in_flight
                    .get(uid)
                    .is_some_and(|began| *began + super::LISTING_PATIENCE <= now)
            })
            .collect();
        for uid in hanging {
            tracing::warn!(%uid, "The runtime is slow to tell of a pod: the others go on");
            let why = "the runtime has not told of the pod yet".to_owned();
            self.cache.store_error(&uid, began, why);
        }
        self.finish_full();
    }

    pub(super) fn finish_full(&mut self) {
        if !self
            .full
            .as_ref()
            .is_some_and(|full| full.is_listed && full.waiting.is_empty())
        {
            return;
        }
        let Some(full) = self.full.take() else { return };
        // After the first of the follow-ups no news from before the gap is left.
        if full.cause == ListCause::Gap && self.follow_ups.len() < super::FOLLOW_UPS.len() {
            self.forget_lost_cgroups();
        }
        self.cache.set_complete(full.began);
        self.cache.forget_gone();
        let cache = self.cache.clone();
        let known: HashSet<_> = cache
            .all()
            .iter()
            .flat_map(|pod| {
                pod.containers
                    .iter()
                    .map(|container| container.id.clone())
                    .chain(pod.sandboxes.iter().map(|s| s.id.as_str().into()))
                    .collect::<Vec<_>>()
            })
            .collect();
        // A container that is being made is in the index and not yet in the cache.
        let index = &self.index;
        self.deaths
            .retain(|id| known.contains(id) || index.cgroup_of(id).is_some());
        self.awaiting.retain(|id, _| known.contains(id));
        self.list_at = Some(Instant::now() + self.listing_period());
        self.is_gauge_stale = true;
        if full.cause == ListCause::Start {
            tracing::info!(pods = cache.all().len(), "The runtime's pods are known");
        }
        if matches!(
            full.cause,
            ListCause::Start | ListCause::Mode | ListCause::Gap
        ) {
            for pod in cache.all() {
                self.learn_main_processes(&pod);
            }
        }
        self.report_after_listing();
        self.answer_forced();
        self.start_next_listing();
    }

    fn start_next_listing(&mut self) {
        if let Some(cause) = self.next_full.pop_front() {
            self.list(cause);
        }
    }

    /// Differences that nobody explained in time: no event told of them.
    pub(super) fn on_missed(&mut self, missed: &[PodUid]) {
        metrics::PLEG_MISSED.add(missed.len() as u64, &[]);
        for uid in missed {
            let pod = self.cache.get(uid);
            tracing::warn!(%uid, pod = described(pod.as_ref()), "No event told of a change");
            self.want(uid, Cause::Listing);
        }
        let told: Vec<String> = missed
            .iter()
            .map(|uid| format!("pod {} ({uid})", described(self.cache.get(uid).as_ref())))
            .collect();
        if let Some(listing) = &mut self.last_forced {
            listing.missed.extend(told);
        }
    }

    /// Answers those who forced a listing, once every difference is explained or counted.
    pub(super) fn answer_forced(&mut self) {
        if self.full.is_some() || !self.suspects.is_empty() {
            return;
        }
        if self.next_full.contains(&ListCause::Forced) {
            return;
        }
        let Some(found) = self.last_forced.take() else {
            return;
        };
        for reply in self.forced.drain(..) {
            drop(reply.send(Ok(found.clone())));
        }
    }
}
