//! What nobody wants any more: pods in the runtime, folders, cgroups, dead containers (LOOP-13).
//!
//! Reads the PLEG's cache instead of listing the runtime. Nothing is destroyed before every source
//! has been read once (SRC-08).

use std::{collections::HashSet, time::Duration};

use tokio::time::{Instant, sleep};

use super::{FULL_HOUSEKEEPING, Job, Task};
use crate::{
    gc,
    host::heap,
    metrics,
    telemetry::chain,
    types::{
        clock,
        id::{ContainerId, PodUid},
        pod::Pod,
        runtime::SharedRuntimePod,
    },
    worker::{Context, kill_orphan, machine::Phase},
};

/// How often the end of `down` looks at what the runtime still has, and the pause between two looks.
const SWEEPS: u32 = 10;
const SWEEP_AGAIN: Duration = Duration::from_millis(500);

impl Task {
    pub(super) fn housekeeping(&mut self) {
        let is_full = self.last_full.elapsed() >= FULL_HOUSEKEEPING;
        if !self.is_dirty && std::mem::take(&mut self.is_heap_used) {
            // What the last pods' starts and ends took is free now.
            heap::trim();
        }
        if !(self.is_dirty || is_full) || !self.are_sources_ready() {
            return;
        }
        self.is_heap_used |= self.is_dirty;
        self.is_dirty = false;
        if is_full {
            self.last_full = Instant::now();
        }
        self.set_gauges();
        let running = self.deps.context.pleg.cache().all();
        self.kill_orphans(&running);
        self.collect(running);
        self.clean(is_full);
    }

    /// Pods that run and that neither a source wants nor a worker has.
    fn kill_orphans(&mut self, running: &[SharedRuntimePod]) {
        for pod in running.iter().filter(|pod| pod.is_running()) {
            if self.workers.has(&pod.uid)
                || self.pods.contains_key(&pod.uid)
                || !self.killing.insert(pod.uid.clone())
            {
                continue;
            }
            metrics::ORPHANED_RUNTIME_PODS.add(1, &[]);
            tracing::info!(pod = %pod.key, uid = %pod.uid, "Stopping a pod that nobody wants");
            let (context, pod) = (self.deps.context.clone(), pod.clone());
            self.jobs.spawn(async move {
                if let Err(error) = kill_orphan(&context.runtime, &pod).await {
                    tracing::warn!(pod = %pod.key, %error, "An unknown pod could not be stopped");
                }
                // Whether it is gone is for the next look to see; an error here is told by it too.
                drop(context.pleg.fresh(&pod.uid, Instant::now()).await);
                Job::OrphanKilled(pod.uid.clone())
            });
        }
    }

    /// Dead containers of one pod beyond what is kept, when one of its containers has died (PLEG-09,
    /// GC-11).
    pub(super) fn collect_dead(&mut self, uid: &PodUid, died: &[ContainerId]) {
        let Some(pod) = self.deps.context.pleg.cache().get(uid) else {
            return;
        };
        let is_finished = self.finished().contains(uid);
        let mut removals: Vec<gc::Removal> = Vec::new();
        for id in died {
            for removal in self.deps.collector.plan_after_death(&pod, id, is_finished) {
                if !removals.contains(&removal) {
                    removals.push(removal);
                }
            }
        }
        if removals.is_empty() {
            return;
        }
        let (collector, context) = (self.deps.collector.clone(), self.deps.context.clone());
        let uid = uid.clone();
        self.jobs.spawn(async move {
            let (removed, errors) = collector.remove_all(removals).await;
            report(&errors);
            if !removed.is_empty() {
                read_again(&context, &uid).await;
            }
            Job::DeadRemoved
        });
    }

    /// Everything dead beyond what is kept, with its logs (GC-01..03).
    fn collect(&mut self, pods: Vec<SharedRuntimePod>) {
        if std::mem::replace(&mut self.is_collecting, true) {
            return;
        }
        let (collector, context) = (self.deps.collector.clone(), self.deps.context.clone());
        let (known, finished) = (self.known(), self.finished());
        let are_sources_ready = self.are_sources_ready();
        self.jobs.spawn(async move {
            let has_come = |uid: &PodUid| has_status(&context, uid);
            let of = gc::Pods {
                known: &known,
                finished: &finished,
                are_sources_ready,
            };
            let (changed, errors) = collector
                .collect(&pods, &of, &has_come, clock::wall_now())
                .await;
            report(&errors);
            for uid in changed {
                read_again(&context, &uid).await;
            }
            Job::Collected
        });
    }

    /// Everything of every pod, once no worker is left: also of pods that had none, because their
    /// manifests went while no agent ran. What stays all the same is told.
    pub(super) fn sweep(&mut self) {
        let (collector, context) = (self.deps.collector.clone(), self.deps.context.clone());
        self.jobs.spawn(async move {
            let mut faults = sweep_once(&collector, &context).await;
            for _ in 1..SWEEPS {
                if context.pleg.cache().all().is_empty() {
                    break;
                }
                // A runtime that is behind, or was busy.
                sleep(SWEEP_AGAIN).await;
                faults = sweep_once(&collector, &context).await;
            }
            clean_unknown(&context, &HashSet::new()).await;
            let left = context.pleg.cache().all();
            if left.is_empty() {
                // What failed on the way was done by another job, or by a later look.
                for fault in faults.drain(..) {
                    tracing::warn!(fault, "Something failed while everything was stopped");
                }
            }
            for pod in left {
                faults.push(format!("the runtime still has pod {}", pod.key));
            }
            Job::Swept(faults)
        });
    }

    /// Pods whose workers are done and that are wanted no more.
    fn finished(&self) -> HashSet<PodUid> {
        self.workers
            .uids()
            .into_iter()
            .filter(|uid| !self.pods.contains_key(uid))
            .filter(|uid| {
                matches!(
                    self.workers.phase(uid),
                    Some(Phase::Cleaning { .. } | Phase::Ended | Phase::Finished)
                )
            })
            .collect()
    }

    /// Folders and cgroups of pods that are neither wanted nor worked on nor running.
    fn clean(&mut self, is_full: bool) {
        if std::mem::replace(&mut self.is_cleaning, true) {
            return;
        }
        let context = self.deps.context.clone();
        let mut known = self.known();
        known.extend(
            context
                .pleg
                .cache()
                .all()
                .iter()
                .filter(|pod| pod.is_running())
                .map(|p| p.uid.clone()),
        );
        let active: Vec<Pod> = self.workers.active().collect();
        self.jobs.spawn(async move {
            clean_unknown(&context, &known).await;
            // CGRP-10: refused while pods use more; tried again at the next whole pass.
            if is_full && let Err(error) = context.cgroups.enforce_allocatable().await {
                tracing::warn!(error = %chain(&error), "The limits of all pods stay as they are");
            }
            // CGRP-08.
            if let Err(error) = context.cgroups.update_qos(&active).await {
                tracing::warn!(error = %chain(&error), "The classes' cgroups stay as they are");
            }
            Job::Cleaned
        });
    }

    /// Wanted, or in the hands of a worker.
    fn known(&self) -> HashSet<PodUid> {
        self.pods
            .keys()
            .cloned()
            .chain(self.workers.uids())
            .collect()
    }

    fn set_gauges(&self) {
        let name = |is_static| if is_static { "true" } else { "" };
        for is_static in [true, false] {
            let labels = &[("static", name(is_static))];
            let wanted = self
                .pods
                .values()
                .filter(|pod| pod.is_static() == is_static)
                .count();
            let phases = || {
                self.workers
                    .phases()
                    .filter(move |(_, of)| *of == is_static)
            };
            let active = phases()
                .filter(|(phase, _)| !phase.is_terminating())
                .count();
            metrics::DESIRED_PODS.set(count(wanted), labels);
            metrics::ACTIVE_PODS.set(count(active), labels);
            for lifecycle in ["sync", "terminating", "terminated"] {
                let of = phases()
                    .filter(|(phase, _)| <&'static str>::from(*phase) == lifecycle)
                    .count();
                metrics::WORKING_PODS.set(
                    count(of),
                    &[
                        ("lifecycle", lifecycle),
                        ("config", "desired"),
                        ("static", name(is_static)),
                    ],
                );
            }
        }
    }
}

/// The pod has a worker by now, although it had none when the job began: a worker publishes a
/// status before it makes anything of the pod.
fn has_status(context: &Context, uid: &PodUid) -> bool {
    context.statuses.get(uid).is_some()
}

#[expect(clippy::cast_precision_loss, reason = "numbers of pods")]
fn count(of: usize) -> f64 {
    of as f64
}

fn report(errors: &[gc::Error]) {
    for error in errors {
        tracing::warn!(error = %chain(error), "Something dead could not be removed");
    }
}

/// Folders and cgroups of all pods but the known ones.
async fn clean_unknown(context: &Context, known: &HashSet<PodUid>) {
    let mut failed = 0;
    let orphans = context
        .volumes
        .orphans(known.clone())
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "The pods' folders cannot be read");
            Vec::new()
        });
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    metrics::ORPHAN_POD_CLEANED.set(orphans.len() as f64, &[]);
    for uid in orphans {
        if has_status(context, &uid) {
            continue;
        }
        if let Err(error) = context.volumes.tear_down(&uid).await {
            failed += 1;
            tracing::warn!(%uid, %error, "A folder of an unknown pod could not be removed");
        }
    }
    metrics::ORPHAN_POD_CLEANED_ERRORS.set(f64::from(failed), &[]);
    match context.cgroups.pod_uids().await {
        Ok(uids) => {
            for uid in uids.iter().filter(|uid| !known.contains(*uid)) {
                // With the cgroup its processes would go.
                if has_status(context, uid) {
                    continue;
                }
                if let Err(error) = context.cgroups.remove_pod(uid).await {
                    let error = chain(&error);
                    tracing::warn!(%uid, %error, "A cgroup of an unknown pod stays");
                }
            }
        }
        Err(error) => tracing::warn!(error = %chain(&error), "Cgroups cannot be read"),
    }
}

/// Stops and removes everything that the runtime has, and reads what it has then. What failed, for
/// users to read.
async fn sweep_once(collector: &gc::Collector, context: &Context) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in context.pleg.cache().all() {
        if pod.is_running()
            && let Err(error) = kill_orphan(&context.runtime, &pod).await
        {
            faults.push(format!("stop pod {}: {error}", pod.key));
        }
        // Also of those that do not run: an end that only the kernel has told keeps a container.
        read_again(context, &pod.uid).await;
    }
    let (changed, errors) = collector
        .collect_everything(&context.pleg.cache().all())
        .await;
    faults.extend(errors.iter().map(|error| chain(error).to_string()));
    for uid in changed {
        read_again(context, &uid).await;
    }
    faults
}

/// After a removal: what the runtime has of the pod is less now.
async fn read_again(context: &Context, uid: &PodUid) {
    if let Err(error) = context.pleg.fresh(uid, Instant::now()).await {
        tracing::debug!(%uid, %error, "A pod could not be read after a removal");
    }
}
