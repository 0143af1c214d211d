//! What a listing found otherwise than the cache has it. Most of it is news under way: an event or
//! a worker's own re-read comes a moment later. What nobody explains in time was missed. Pure.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::types::id::PodUid;

/// How long an event or a re-read may still come.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Pod -> (when its listing began, when to judge).
    pods: HashMap<PodUid, (Instant, Instant)>,
}

impl Suspects {
    pub(super) fn add(&mut self, uid: PodUid, began: Instant, now: Instant) {
        self.pods.entry(uid).or_insert((began, now + PATIENCE));
    }

    /// A reading begun after the listing came for another reason: it explains the difference.
    pub(super) fn explain(&mut self, uid: &PodUid, observed_at: Instant) {
        if self
            .pods
            .get(uid)
            .is_some_and(|(began, _)| observed_at >= *began)
        {
            self.pods.remove(uid);
        }
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.pods.values().map(|(_, judge_at)| *judge_at).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Those whose time is over: missed.
    pub(super) fn take_missed(&mut self, now: Instant) -> Vec<PodUid> {
        let missed: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(_, (_, judge_at))| *judge_at <= now)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in &missed {
            self.pods.remove(uid);
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reading_explains_in_time_was_not_missed() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        suspects.add(PodUid::from("a"), now, now);
        suspects.add(PodUid::from("b"), now, now);
        suspects.explain(&PodUid::from("a"), now + Duration::from_millis(3));
        assert_eq!(suspects.take_missed(now + PATIENCE), [PodUid::from("b")]);
        assert!(suspects.is_empty());
    }

    #[test]
    fn an_older_reading_explains_nothing() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        let began = now + Duration::from_millis(10);
        suspects.add(PodUid::from("a"), began, began);
        suspects.explain(&PodUid::from("a"), now);
        assert_eq!(suspects.take_missed(began + PATIENCE).len(), 1);
    }
}
