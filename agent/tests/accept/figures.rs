//! What a run prints: one figure a line.

use std::time::Duration;

/// Times of one kind, collected over a run.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// One line: how many, the median, the 99th percentile and the longest.
    pub(crate) fn print(&self, what: &str) {
        let mut sorted = self.0.clone();
        sorted.sort();
        let Some(longest) = sorted.last() else {
            println!("{what}: none");
            return;
        };
        let at = |share: usize| ms(sorted[(sorted.len() * share / 100).min(sorted.len() - 1)]);
        println!(
            "{what}: {} times, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
            sorted.len(),
            at(50),
            at(99),
            ms(*longest)
        );
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// From one wall time to a later one; zero where the clocks' grains turn them around.
pub(crate) fn between(earlier: jiff::Timestamp, later: jiff::Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}
