//! The machine's clock: what the runtime and the agents stamp their events with, so that all times
//! of a turn can be compared.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970.
pub type Nanos = i64;

pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Milliseconds from one to the other.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
pub fn ms_between(from: Nanos, to: Nanos) -> f64 {
    (to - from) as f64 / 1e6
}

/// Numbers that look random and are the same for the same seed: where in the agents' periods a
/// kill falls must not depend on the agent.
#[derive(Debug)]
pub struct Jitter(u64);

impl Jitter {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `n` waits, one in each n-th part of `span`, in mixed order: with few samples, all phases of a
    /// period are met alike.
    pub fn spread(&mut self, n: usize, span: Duration) -> Vec<Duration> {
        let parts = u32::try_from(n.max(1)).unwrap_or(u32::MAX);
        let part = span / parts;
        let mut waits: Vec<_> = (0..parts)
            .map(|place| {
                let within = u32::try_from(self.next() % 1000).unwrap_or(0);
                part * place + part * within / 1000
            })
            .take(n)
            .collect();
        for place in (1..waits.len()).rev() {
            let other = usize::try_from(self.next() % (place as u64 + 1)).unwrap_or(0);
            waits.swap(place, other);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_meet_every_part_of_the_span_once() {
        let span = Duration::from_secs(1);
        let waits = Jitter::new(7).spread(20, span);
        let mut parts: Vec<_> = waits.iter().map(|wait| wait.as_millis() / 50).collect();
        assert_ne!(parts, (0..20).collect::<Vec<_>>(), "in mixed order");
        parts.sort_unstable();
        assert_eq!(parts, (0..20).collect::<Vec<_>>());
        assert_eq!(waits, Jitter::new(7).spread(20, span), "the same each time");
        assert_eq!(Jitter::new(7).spread(0, span), Vec::<Duration>::new());
    }
}
