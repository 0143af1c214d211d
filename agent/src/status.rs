//! What the agent says of each pod: computed by the pods' workers, read by everyone else.

mod compute;
mod printed;

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{Pod as PodObject, PodStatus};
use tokio::sync::watch;

use crate::types::{
    id::{PodKey, PodUid},
    pod::Pod,
};

pub use compute::{Phase, StatusInput, Waiting, compute, finish, phase};
pub use printed::{Printed, printed};

/// A pod beside its status.
#[derive(Clone, Debug)]
pub struct PodRecord {
    pub pod: Pod,
    pub status: PodStatus,
    /// The sources no longer want it; it is being stopped.
    pub is_terminating: bool,
}

impl PodRecord {
    /// The object as `/pods` shows it.
    pub fn object(&self) -> PodObject {
        let mut object = self.pod.object().clone();
        object.status = Some(self.status.clone());
        object
    }
}

/// The statuses of all pods. A worker writes its own pod's, everyone reads; cheap to clone.
#[derive(Clone, Debug)]
pub struct Statuses {
    pods: Arc<Mutex<IndexMap<PodUid, Arc<PodRecord>>>>,
    changes: watch::Sender<u64>,
}

impl Default for Statuses {
    fn default() -> Self {
        Self {
            pods: Arc::default(),
            changes: watch::channel(0).0,
        }
    }
}

impl Statuses {
    /// Stores the record; readers are woken if it differs from the last one.
    pub fn publish(&self, record: PodRecord) {
        let uid = record.pod.uid().clone();
        let mut pods = self.lock();
        let is_same = pods.get(&uid).is_some_and(|old| {
            old.status == record.status
                && old.pod == record.pod
                && old.is_terminating == record.is_terminating
        });
        if !is_same {
            pods.insert(uid, Arc::new(record));
            drop(pods);
            self.changes.send_modify(|version| *version += 1);
        }
    }

    pub fn remove(&self, uid: &PodUid) {
        if self.lock().shift_remove(uid).is_some() {
            self.changes.send_modify(|version| *version += 1);
        }
    }

    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodRecord>> {
        self.lock().get(uid).cloned()
    }

    pub fn find(&self, key: &PodKey) -> Option<Arc<PodRecord>> {
        self.lock()
            .values()
            .find(|record| record.pod.key() == key)
            .cloned()
    }

    /// All pods, by namespace and name.
    pub fn list(&self) -> Vec<Arc<PodRecord>> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by(|a, b| a.pod.key().cmp(b.pod.key()));
        all
    }

    /// Wakes at each change; the number only tells one change from another.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, IndexMap<PodUid, Arc<PodRecord>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
