//! The crash-loop back-off: how long a container that ended waits before its next start.
//!
//! Pure: `now` is an argument and nothing sleeps. Whoever syncs pods owns the one [`CrashLoop`],
//! asks it before each start, and wakes at the instant that it names. Rules: RST-01, RST-02,
//! RST-04; unlike upstream's, an expiry is exact.

use std::{collections::HashMap, hash::Hasher as _, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;

use super::{duration::GoDuration, pod::Pod};

const INITIAL: Duration = Duration::from_secs(10);

/// A container that ran this long after its last counted start begins anew, whatever the longest
/// wait is (RST-02).
const STABLE_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// Identifies a container of a pod for its back-off. The image and the resources are part of it, so
/// that changing either starts anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    pub fn new(pod: &Pod, container: &Container) -> Self {
        let mut hash = fnv::FnvHasher::default();
        let resources = serde_json::to_string(&container.resources).unwrap_or_default();
        for part in [
            &*pod.key().name,
            &*pod.key().namespace,
            pod.uid().as_str(),
            &container.name,
            container.image.as_deref().unwrap_or_default(),
            &resources,
        ] {
            hash.write(part.as_bytes());
            hash.write(b"/");
        }
        Self(hash.finish())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start it; the start has been counted.
    StartNow,
    /// Not before `until`. `current` is the length of the wait, for the message.
    Wait { until: Timestamp, current: Duration },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wait: Duration,
    counted_at: Timestamp,
}

/// The waits of all containers that have ended at least once.
#[derive(Clone, Debug)]
pub struct CrashLoop {
    longest: Duration,
    entries: HashMap<Key, Entry>,
}

impl CrashLoop {
    /// `longest` is `crashLoopBackOff.maxContainerRestartPeriod`.
    pub fn new(longest: Duration) -> Self {
        Self {
            longest,
            entries: HashMap::new(),
        }
    }

    /// May a container whose newest instance finished at `finished_at` start at `now`? `StartNow`
    /// counts as its start: ask once for each start that is meant. A container without a finished
    /// instance starts without asking.
    pub fn check(&mut self, key: &Key, finished_at: Timestamp, now: Timestamp) -> Decision {
        let begun = self
            .entries
            .get(key)
            .filter(|entry| !is_stable(entry, finished_at));
        let wait = match begun {
            None => INITIAL.min(self.longest),
            Some(entry) => {
                if let Some(until) = until(finished_at, entry.wait)
                    && now < until
                {
                    return Decision::Wait {
                        until,
                        current: entry.wait,
                    };
                }
                entry.wait.saturating_mul(2).min(self.longest)
            }
        };
        self.entries.insert(
            key.clone(),
            Entry {
                wait,
                counted_at: now,
            },
        );
        Decision::StartNow
    }

    /// What [`Self::check`] would say, without counting a start.
    pub fn peek(&self, key: &Key, finished_at: Timestamp, now: Timestamp) -> Decision {
        match self.entries.get(key) {
            Some(entry) if !is_stable(entry, finished_at) => match until(finished_at, entry.wait) {
                Some(until) if now < until => Decision::Wait {
                    until,
                    current: entry.wait,
                },
                _ => Decision::StartNow,
            },
            _ => Decision::StartNow,
        }
    }

    /// Forgets containers whose last counted start is so long ago that they would begin anew.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| !is_stable(entry, now));
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn is_stable(entry: &Entry, finished_at: Timestamp) -> bool {
    finished_at.duration_since(entry.counted_at) > STABLE_AFTER
}

fn until(finished_at: Timestamp, wait: Duration) -> Option<Timestamp> {
    finished_at.checked_add(wait).ok()
}

/// The message of a container that waits as CrashLoopBackOff.
pub fn waiting_message(current: Duration, container: &str, pod: &Pod) -> String {
    format!(
        "back-off {} restarting failed container={container} pod={}",
        GoDuration::from(current),
        pod.described()
    )
}

/// The message of the event BackOff.
pub fn event_message(container: &str, pod: &Pod) -> String {
    format!(
        "Back-off restarting failed container {container} in pod {}",
        pod.described()
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::types::pod::SourceKind;

    const MAX: Duration = Duration::from_secs(300);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).expect("in range")
    }

    fn pod() -> Pod {
        let object = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        }))
        .expect("a pod");
        Pod::new(object, SourceKind::File)
    }

    fn key() -> Key {
        let pod = pod();
        Key::new(&pod, &pod.spec().containers[0])
    }

    /// Ends at once after each start; gives the waits between an end and the next start.
    fn waits(longest: Duration, starts: usize) -> Vec<u64> {
        let mut crash_loop = CrashLoop::new(longest);
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..starts {
            let finished = now;
            match crash_loop.check(&key(), finished, now) {
                Decision::StartNow => waits.push(0),
                Decision::Wait { until, .. } => {
                    waits.push(until.duration_since(finished).as_secs().unsigned_abs());
                    assert_eq!(
                        crash_loop.check(&key(), finished, until),
                        Decision::StartNow
                    );
                    now = until;
                }
            }
        }
        waits
    }

    #[test]
    fn a_crash_loop_waits_from_ten_seconds_to_five_minutes() {
        assert_eq!(waits(MAX, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[rstest]
    #[case(5, &[0, 5, 5])]
    #[case(1, &[0, 1, 1])]
    #[case(15, &[0, 10, 15, 15])]
    fn a_shorter_longest_wait_also_shortens_the_first(#[case] longest: u64, #[case] want: &[u64]) {
        assert_eq!(waits(Duration::from_secs(longest), want.len()), want);
    }

    #[test]
    fn the_wait_counts_from_the_finish_and_ends_to_the_nanosecond() {
        let mut crash_loop = CrashLoop::new(MAX);
        crash_loop.check(&key(), at(0), at(0));
        let until = at(15);
        let just_before = until - SignedDuration::from_nanos(1);
        assert_eq!(
            crash_loop.check(&key(), at(5), just_before),
            Decision::Wait {
                until,
                current: Duration::from_secs(10)
            }
        );
        assert_eq!(crash_loop.peek(&key(), at(5), until), Decision::StartNow);
        assert_eq!(crash_loop.check(&key(), at(5), until), Decision::StartNow);
    }

    #[rstest]
    #[case::exactly_ten_minutes_goes_on(600, 20)]
    #[case::longer_begins_anew(601, 10)]
    fn ten_minutes_of_running_begin_anew(#[case] ran: i64, #[case] next_wait: u64) {
        let mut crash_loop = CrashLoop::new(MAX);
        assert_eq!(crash_loop.check(&key(), at(0), at(0)), Decision::StartNow);
        assert_eq!(
            crash_loop.check(&key(), at(ran), at(ran + 10)),
            Decision::StartNow
        );
        let Decision::Wait { current, .. } = crash_loop.check(&key(), at(ran + 10), at(ran + 10))
        else {
            panic!("it ended at once")
        };
        assert_eq!(current, Duration::from_secs(next_wait));
    }

    #[test]
    fn another_image_or_other_resources_start_at_once() {
        let pod = pod();
        let mut crash_loop = CrashLoop::new(MAX);
        crash_loop.check(&key(), at(0), at(0));
        let mut other = pod.spec().containers[0].clone();
        other.image = Some("app:2".into());
        let other = Key::new(&pod, &other);
        assert_ne!(other, key());
        assert_eq!(crash_loop.check(&other, at(0), at(0)), Decision::StartNow);
    }

    #[test]
    fn old_entries_are_forgotten() {
        let mut crash_loop = CrashLoop::new(MAX);
        crash_loop.check(&key(), at(0), at(0));
        crash_loop.forget_old(at(600));
        assert_eq!(crash_loop.len(), 1);
        crash_loop.forget_old(at(601));
        assert!(crash_loop.is_empty());
    }

    #[test]
    fn messages_are_upstreams() {
        assert_eq!(
            waiting_message(Duration::from_secs(80), "app", &pod()),
            "back-off 1m20s restarting failed container=app pod=web_shop(u1)"
        );
        assert_eq!(
            event_message("app", &pod()),
            "Back-off restarting failed container app in pod web_shop(u1)"
        );
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(7, "7ns")]
    #[case(1_500, "1.5µs")]
    #[case(250_000_000, "250ms")]
    #[case(1_500_000_000, "1.5s")]
    #[case(10_000_000_000, "10s")]
    #[case(80_000_000_000, "1m20s")]
    #[case(300_000_000_000, "5m0s")]
    #[case(3_600_000_000_000, "1h0m0s")]
    #[case(90_061_000_000_001, "25h1m1.000000001s")]
    fn durations_read_as_in_go(#[case] nanos: u64, #[case] text: &str) {
        assert_eq!(
            GoDuration::from(Duration::from_nanos(nanos)).to_string(),
            text
        );
    }

    proptest! {
        #[test]
        fn a_wait_is_never_longer_than_the_longest(
            longest in 1_u64..600,
            steps in prop::collection::vec((0_i64..900, 0_i64..900), 1..40),
        ) {
            let longest = Duration::from_secs(longest);
            let mut crash_loop = CrashLoop::new(longest);
            let mut now = at(0);
            for (ran, waited) in steps {
                let finished = now + SignedDuration::from_secs(ran);
                now = finished + SignedDuration::from_secs(waited);
                if let Decision::Wait { until, current } = crash_loop.check(&key(), finished, now) {
                    prop_assert!(current <= longest);
                    prop_assert!(until > now);
                    prop_assert!(until.duration_since(finished).unsigned_abs() <= longest);
                }
            }
        }
    }
}
