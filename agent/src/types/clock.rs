//! Time: the kernel's monotonic clock beside the wall clock, and how one becomes the other.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of kernel events (`bpf_ktime_get_ns`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mono(pub u64);

impl Mono {
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Self(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The wall time at this monotonic instant, as the wall clock stands now: a clock that was
    /// set in between moves the answer with it.
    pub fn to_wall(self) -> Timestamp {
        let (mono, wall) = (Self::now(), wall_now());
        let ago = i64::try_from(mono.0).unwrap_or(i64::MAX) - i64::try_from(self.0).unwrap_or(0);
        Timestamp::from_nanosecond(wall.as_nanosecond() - i128::from(ago)).unwrap_or(wall)
    }
}

/// The wall clock. The one place that reads it, so that everything else takes `now` as an argument.
pub fn wall_now() -> Timestamp {
    Timestamp::now()
}
