//! Ends that the kernel has shown and the runtime does not have on record yet: when to look again.
//!
//! The runtime's own event for the container is the best wake-up; where there is none, or as a
//! second line, it is asked after 1, 2, 4 ... 100 ms, then ever more rarely. Pure: time comes in.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::types::id::{ContainerId, PodUid};

/// First waits, where the runtime sends no events.
const FIRST: Duration = Duration::from_millis(1);
/// With the runtime's stream alive its event comes first; asking is the second line.
const FIRST_WITH_STREAM: Duration = Duration::from_millis(250);
const QUICK_LIMIT: Duration = Duration::from_millis(100);
/// From here on the wait doubles up to this: the slow path.
const SLOW_AFTER: Duration = Duration::from_secs(10);
const SLOW_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) uid: PodUid,
    /// The pause container of a sandbox: it is the sandbox's state that is awaited.
    pub(super) is_sandbox: bool,
    /// When the agent knew of the end, for the timeline.
    pub(super) known_at: Timestamp,
    /// The timeline has an entry already, without the runtime's times.
    pub(super) is_told: bool,
    since: Instant,
    delay: Duration,
    next_at: Instant,
    /// A question is under way: a second one would only take another place.
    is_asked: bool,
}

#[derive(Debug, Default)]
pub(super) struct Awaiting {
    ends: HashMap<ContainerId, Awaited>,
}

impl Awaiting {
    /// Begins to wait; no effect on a wait that is under way.
    pub(super) fn add(
        &mut self,
        id: &ContainerId,
        uid: &PodUid,
        is_sandbox: bool,
        has_stream: bool,
        known_at: Timestamp,
        now: Instant,
    ) {
        let delay = if has_stream { FIRST_WITH_STREAM } else { FIRST };
        self.ends.entry(id.clone()).or_insert_with(|| Awaited {
            uid: uid.clone(),
            is_sandbox,
            known_at,
            is_told: false,
            since: now,
            delay,
            next_at: now + delay,
            is_asked: false,
        });
    }

    pub(super) fn done(&mut self, id: &ContainerId) -> Option<Awaited> {
        self.ends.remove(id)
    }

    pub(super) fn is_waiting(&self, id: &ContainerId) -> bool {
        self.ends.contains_key(id)
    }

    pub(super) fn has_pod(&self, uid: &PodUid) -> bool {
        self.ends.values().any(|end| end.uid == *uid)
    }

    /// The runtime spoke of this container: look at once.
    pub(super) fn hurry(&mut self, id: &ContainerId, now: Instant) {
        if let Some(end) = self.ends.get_mut(id) {
            end.next_at = now;
        }
    }

    /// The question of [`Self::take_due`] came to its end and did not bring the record.
    pub(super) fn answered(&mut self, id: &ContainerId) {
        if let Some(end) = self.ends.get_mut(id) {
            end.is_asked = false;
        }
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.ends
            .values()
            .filter(|end| !end.is_asked)
            .map(|end| end.next_at)
            .min()
    }

    /// At most `most` ends whose time has come, oldest wait first; each is due again after its next,
    /// longer wait, once it is [`Self::answered`].
    pub(super) fn take_due(&mut self, most: usize, now: Instant) -> Vec<(ContainerId, Awaited)> {
        let mut due: Vec<_> = self
            .ends
            .iter()
            .filter(|(_, end)| !end.is_asked && end.next_at <= now)
            .collect();
        due.sort_by_key(|(_, end)| end.since);
        let due: Vec<ContainerId> = due
            .into_iter()
            .take(most)
            .map(|(id, _)| id.clone())
            .collect();
        due.into_iter()
            .filter_map(|id| {
                let end = self.ends.get_mut(&id)?;
                let limit = if now - end.since < SLOW_AFTER {
                    QUICK_LIMIT
                } else {
                    SLOW_LIMIT
                };
                end.delay = (end.delay * 2).min(limit.max(end.delay));
                end.next_at = now + end.delay;
                end.is_asked = true;
                Some((id, end.clone()))
            })
            .collect()
    }

    /// Ends known for `patience` and not told of yet; marks them told.
    pub(super) fn take_untold(
        &mut self,
        patience: Duration,
        now: Instant,
    ) -> Vec<(ContainerId, Awaited)> {
        self.ends
            .iter_mut()
            .filter(|(_, end)| !end.is_told && now - end.since >= patience)
            .map(|(id, end)| {
                end.is_told = true;
                (id.clone(), end.clone())
            })
            .collect()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&ContainerId, &Awaited) -> bool) {
        self.ends.retain(|id, end| keep(id, end));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::clock;

    fn waiting(has_stream: bool) -> (Awaiting, ContainerId, Instant) {
        let (mut awaiting, id, now) = (Awaiting::default(), ContainerId::from("c"), Instant::now());
        awaiting.add(
            &id,
            &PodUid::from("u"),
            false,
            has_stream,
            clock::wall_now(),
            now,
        );
        (awaiting, id, now)
    }

    #[test]
    fn looks_again_after_1_2_4_milliseconds_and_so_on_up_to_100() {
        let (mut awaiting, _, start) = waiting(false);
        let mut waits = Vec::new();
        let mut last = start;
        for _ in 0..9 {
            let at = awaiting.next_at().expect("one waits");
            let due = awaiting.take_due(8, at);
            assert_eq!(due.len(), 1);
            awaiting.answered(&due[0].0);
            waits.push((at - last).as_millis());
            last = at;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    }

    #[test]
    fn a_runtime_event_cuts_the_wait_short() {
        let (mut awaiting, id, start) = waiting(true);
        assert!(
            awaiting
                .take_due(8, start + Duration::from_millis(5))
                .is_empty()
        );
        awaiting.hurry(&id, start + Duration::from_millis(5));
        assert_eq!(
            awaiting.take_due(8, start + Duration::from_millis(5)).len(),
            1
        );
    }

    #[test]
    fn a_question_without_an_answer_is_not_asked_a_second_time() {
        let (mut awaiting, id, start) = waiting(false);
        let later = start + Duration::from_secs(60);
        assert_eq!(awaiting.take_due(8, later).len(), 1);
        assert_eq!(awaiting.next_at(), None);
        assert!(
            awaiting
                .take_due(8, later + Duration::from_secs(60))
                .is_empty()
        );
        awaiting.answered(&id);
        assert_eq!(
            awaiting.take_due(8, later + Duration::from_secs(60)).len(),
            1
        );
    }

    #[test]
    fn no_more_than_the_bound_are_due_at_once() {
        let (mut awaiting, now) = (Awaiting::default(), Instant::now());
        for n in 0..20 {
            let id = ContainerId::from(format!("c{n}"));
            awaiting.add(
                &id,
                &PodUid::from("u"),
                false,
                false,
                clock::wall_now(),
                now,
            );
        }
        assert_eq!(
            awaiting.take_due(8, now + Duration::from_millis(2)).len(),
            8
        );
        assert_eq!(
            awaiting.take_due(20, now + Duration::from_millis(2)).len(),
            12
        );
    }
}
