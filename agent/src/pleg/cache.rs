//! The last known state of every pod in the runtime. Written by the PLEG's task alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::watch, time::Instant};

use crate::types::{
    id::{ContainerId, PodKey, PodUid},
    runtime::{RuntimePod, SharedRuntimePod},
};

/// A pod as the cache has it.
#[derive(Clone, Debug)]
pub struct View {
    pub pod: SharedRuntimePod,
    /// When the reading began that this stands on: whatever happened before is in it.
    pub observed_at: Option<Instant>,
    /// The last reading failed; `pod` is from the one before.
    pub error: Option<String>,
}

impl View {
    pub(super) fn pod(self) -> Result<SharedRuntimePod, String> {
        match self.error {
            None => Ok(self.pod),
            Some(error) => Err(error),
        }
    }
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cache {
    pods: Arc<Mutex<HashMap<PodUid, watch::Sender<View>>>>,
    /// When the last reading of everything began: pods that the cache does not have did not exist
    /// then.
    complete_at: watch::Sender<Option<Instant>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            pods: Arc::default(),
            complete_at: watch::channel(None).0,
        }
    }
}

impl Cache {
    pub fn get(&self, uid: &PodUid) -> Option<SharedRuntimePod> {
        self.lock().get(uid).map(|pod| pod.borrow().pod.clone())
    }

    /// Every pod that the runtime has something of.
    pub fn all(&self) -> Vec<SharedRuntimePod> {
        self.lock()
            .values()
            .map(|pod| pod.borrow().pod.clone())
            .filter(|pod| !is_empty(pod))
            .collect()
    }

    /// The view if it stands on a reading begun at `since` or later.
    pub fn newer_than(&self, uid: &PodUid, since: Instant) -> Option<View> {
        let complete_at = *self.complete_at.borrow();
        let mut view = self.lock().get(uid).map(|pod| pod.borrow().clone());
        if view.is_none() && complete_at.is_some() {
            view = Some(View {
                pod: nothing_of(uid),
                observed_at: complete_at,
                error: None,
            });
        }
        view.filter(|view| view.observed_at.is_some_and(|at| at >= since))
    }

    /// Waits until the view stands on a reading begun at `since` or later.
    pub async fn wait_newer_than(&self, uid: &PodUid, since: Instant) -> View {
        let mut pod = self.subscribe(uid);
        let view = pod
            .wait_for(|view| view.observed_at.is_some_and(|at| at >= since))
            .await;
        // The sender lives in the map as long as there is a receiver (see `subscribe`).
        view.map_or_else(
            |_| View {
                pod: nothing_of(uid),
                observed_at: None,
                error: None,
            },
            |view| view.clone(),
        )
    }

    /// Waits until the pod is known with that container in it.
    pub async fn wait_container(&self, uid: &PodUid, id: &ContainerId) -> SharedRuntimePod {
        let mut pod = self.subscribe(uid);
        let view = pod.wait_for(|view| view.pod.container(id).is_some()).await;
        // As above.
        view.map_or_else(|_| nothing_of(uid), |view| view.pod.clone())
    }

    /// Waits until everything has been read once.
    pub async fn wait_complete(&self) {
        let mut complete_at = self.complete_at.subscribe();
        // An error would mean that the cache is gone, and with it whoever waits.
        complete_at.wait_for(Option::is_some).await.ok();
    }

    /// When the last reading of everything began; none before the first.
    pub fn complete_at(&self) -> Option<Instant> {
        *self.complete_at.borrow()
    }

    /// Stores a reading. `None` leaves the time of observation as it is: the kernel's word adds to
    /// a reading and does not replace one.
    pub(super) fn store(&self, pod: RuntimePod, observed_at: Option<Instant>) {
        let uid = pod.uid.clone();
        self.slot(&uid).send_modify(|view| {
            view.pod = Arc::new(pod);
            if observed_at.is_some() {
                view.observed_at = observed_at;
                view.error = None;
            }
        });
    }

    pub(super) fn store_unchanged(&self, uid: &PodUid, observed_at: Instant) {
        self.slot(uid).send_modify(|view| {
            view.observed_at = view.observed_at.max(Some(observed_at));
            view.error = None;
        });
    }

    pub(super) fn store_error(&self, uid: &PodUid, observed_at: Instant, error: String) {
        self.slot(uid).send_modify(|view| {
            view.observed_at = Some(observed_at);
            view.error = Some(error);
        });
    }

    pub(super) fn set_complete(&self, at: Instant) {
        self.complete_at.send_replace(Some(at));
    }

    /// Drops pods of which nothing is left and which nobody waits for. Of one that could not be read
    /// nobody knows what is left.
    pub(super) fn forget_gone(&self) {
        self.lock().retain(|_, pod| {
            let view = pod.borrow();
            pod.receiver_count() > 0 || view.error.is_some() || !is_empty(&view.pod)
        });
    }

    fn slot(&self, uid: &PodUid) -> watch::Sender<View> {
        slot_in(&mut self.lock(), uid).clone()
    }

    /// Under the lock: between the slot and its receiver `forget_gone` would drop the slot, and
    /// whoever waits would be told that the pod is nothing.
    fn subscribe(&self, uid: &PodUid) -> watch::Receiver<View> {
        slot_in(&mut self.lock(), uid).subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, watch::Sender<View>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot_in<'a>(
    pods: &'a mut HashMap<PodUid, watch::Sender<View>>,
    uid: &PodUid,
) -> &'a watch::Sender<View> {
    pods.entry(uid.clone()).or_insert_with(|| {
        watch::channel(View {
            pod: nothing_of(uid),
            observed_at: None,
            error: None,
        })
        .0
    })
}

fn is_empty(pod: &RuntimePod) -> bool {
    pod.sandboxes.is_empty() && pod.containers.is_empty()
}

fn nothing_of(uid: &PodUid) -> SharedRuntimePod {
    Arc::new(RuntimePod::empty(uid.clone(), PodKey::new("", "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_a_reading_begun_after_its_own_time() {
        let cache = Cache::default();
        let uid = PodUid::from("u");
        let before = Instant::now();
        cache.store(
            RuntimePod::empty(uid.clone(), PodKey::new("d", "p")),
            Some(before),
        );
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
        let since = Instant::now();
        assert!(cache.newer_than(&uid, since).is_none());

        let waiting = cache.wait_newer_than(&uid, since);
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        cache.store_unchanged(&uid, since);
        assert_eq!(waiting.await.observed_at, Some(since));
    }

    #[tokio::test]
    async fn a_pod_that_no_listing_showed_is_known_to_be_absent() {
        let cache = Cache::default();
        let uid = PodUid::from("u");
        let start = Instant::now();
        assert!(cache.newer_than(&uid, start).is_none());
        cache.set_complete(start);
        let view = cache
            .newer_than(&uid, start)
            .expect("the listing covers it");
        assert!(view.pod.containers.is_empty());
    }

    #[tokio::test]
    async fn a_failed_reading_reaches_the_reader_as_an_error() {
        let cache = Cache::default();
        let uid = PodUid::from("u");
        let now = Instant::now();
        cache.store_error(&uid, now, "connection refused".into());
        let view = cache.newer_than(&uid, now).expect("it is new enough");
        assert_eq!(view.pod().expect_err("it failed"), "connection refused");
    }
}
