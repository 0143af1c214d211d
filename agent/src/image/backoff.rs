//! When a pull may be tried: the back-off after failures, and the bucket that bounds the rate.
//!
//! Pure: `now` is an argument. Both are owned by `Images`, behind its lock.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::types::id::PodUid;

/// IMG-04.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// A failure this long after the last one is a first one again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2 * LONGEST.as_secs());

/// Failed pulls by pod and image.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    failures: HashMap<(PodUid, String), Failure>,
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    wait: Duration,
    /// Reason and message, for the status while waiting; taken away once a pull is tried again.
    cause: Option<String>,
}

/// The time left of a back-off, and the cause of the last failure.
#[derive(Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) left: Duration,
    pub(super) cause: Option<String>,
}

impl BackOff {
    /// A pull may not be tried yet. If it may, the last failure's cause is forgotten.
    pub(super) fn check(&mut self, uid: &PodUid, image: &str, now: Instant) -> Option<Waiting> {
        let failure = self.failures.get_mut(&(uid.clone(), image.to_owned()))?;
        let since = now.saturating_duration_since(failure.at);
        if since < failure.wait {
            return Some(Waiting {
                left: failure.wait - since,
                cause: failure.cause.clone(),
            });
        }
        failure.cause = None;
        None
    }

    /// Counts a failure and returns the wait until the next try.
    pub(super) fn failed(
        &mut self,
        uid: &PodUid,
        image: &str,
        cause: String,
        now: Instant,
    ) -> Duration {
        // Here too, so that nodes on which nothing is ever pulled do not gather them.
        self.forget_old(now);
        let failure = self
            .failures
            .entry((uid.clone(), image.to_owned()))
            .and_modify(|failure| failure.wait = (failure.wait * 2).min(LONGEST))
            .or_insert(Failure {
                at: now,
                wait: FIRST,
                cause: None,
            });
        failure.at = now;
        failure.cause = Some(cause);
        failure.wait
    }

    /// A success does not end a back-off at once: an image that fails again soon waits longer.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.failures
            .retain(|_, failure| now.saturating_duration_since(failure.at) <= FORGOTTEN_AFTER);
    }
}

/// IMG-06: at most `burst` pulls at once, and `qps` a second in the long run.
#[derive(Debug)]
pub(super) struct Bucket {
    qps: f64,
    burst: f64,
    tokens: f64,
    filled_at: Option<Instant>,
}

impl Bucket {
    /// None where `qps` is 0: no bound.
    pub(super) fn new(qps: u32, burst: u32) -> Option<Self> {
        (qps > 0).then(|| Self {
            qps: qps.into(),
            burst: burst.into(),
            tokens: burst.into(),
            filled_at: None,
        })
    }

    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        if let Some(filled_at) = self.filled_at {
            let since = now.saturating_duration_since(filled_at).as_secs_f64();
            self.tokens = (self.tokens + since * self.qps).min(self.burst);
        }
        self.filled_at = Some(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn waits_double_from_10_s_to_5_min_and_are_forgotten_after_10_more() {
        let uid = PodUid::from("u");
        let mut backoff = BackOff::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..7 {
            let wait = backoff.failed(&uid, "a:1", "why".into(), now);
            waits.push(wait.as_secs());
            let waiting = backoff.check(&uid, "a:1", now + SECOND).unwrap();
            assert_eq!(waiting.left, wait - SECOND);
            assert_eq!(waiting.cause.as_deref(), Some("why"));
            assert_eq!(backoff.check(&uid, "b:1", now), None);
            now += wait;
            assert_eq!(backoff.check(&uid, "a:1", now), None);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        now += FORGOTTEN_AFTER;
        assert_eq!(backoff.failed(&uid, "a:1", "why".into(), now), FIRST);
        assert_eq!(backoff.failures.len(), 1);
    }

    #[tokio::test]
    async fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::new(2, 3).unwrap();
        let now = Instant::now();
        let taken: Vec<_> = (0..4).map(|_| bucket.try_take(now)).collect();
        assert_eq!(taken, [true, true, true, false]);
        assert!(!bucket.try_take(now + SECOND / 4));
        assert!(bucket.try_take(now + SECOND / 2));
        assert!(!bucket.try_take(now + SECOND / 2));
        let later = now + SECOND * 100;
        assert_eq!((0..9).filter(|_| bucket.try_take(later)).count(), 3);
        assert!(Bucket::new(0, 3).is_none());
    }
}
