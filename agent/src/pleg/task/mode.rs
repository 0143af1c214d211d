//! Which source of news is in force, and why.

use tokio::time::Instant;

use super::{ListCause, Task};
use crate::{
    config::PlegMode,
    health::{Grade, Part},
    metrics,
    pleg::{HEALTHY_FOR, LISTING_PERIOD},
    types::{
        clock,
        reason::event,
        timeline::{Entry, Level},
    },
};

/// The best mode that can be had within what is wanted. Pure.
fn best(has_kernel: bool, has_stream: bool, wanted: PlegMode) -> PlegMode {
    match wanted {
        PlegMode::Kernel if has_kernel => PlegMode::Kernel,
        PlegMode::Kernel | PlegMode::Stream if has_stream => PlegMode::Stream,
        PlegMode::Kernel | PlegMode::Stream | PlegMode::Listing => PlegMode::Listing,
    }
}

impl Task {
    /// Takes the best mode that can be had; a change reads everything once.
    pub(super) fn choose_mode(&mut self, why: &str) {
        if self.kernel.is_opening() {
            // Chosen when that has come to its end.
            return;
        }
        let mode = best(
            self.kernel.is_open(),
            self.stream.is_up(),
            self.settings.best_mode,
        );
        let before = self.mode.replace(mode);
        self.mode_view.send_replace(self.mode);
        self.report();
        if before == Some(mode) {
            return;
        }
        let name: &'static str = mode.into();
        for other in [PlegMode::Kernel, PlegMode::Stream, PlegMode::Listing] {
            let is_it = if other == mode { 1.0 } else { 0.0 };
            metrics::PLEG_MODE.set(is_it, &[("mode", other.into())]);
        }
        metrics::PLEG_MODE_CHANGES.add(1, &[("mode", name)]);
        let reason = self.mode_reason();
        tracing::info!(mode = name, %why, %reason, "The PLEG's mode");
        let level = if before.is_some_and(|before| mode < before) {
            Level::Warning
        } else {
            Level::Normal
        };
        let message = format!("PLEG mode {name}: {reason}");
        self.deps
            .recorder
            .record(Entry::now(level, event::MODE, message));
        let now = Instant::now();
        self.list_at = Some(now + self.listing_period());
        if before.is_some() {
            self.list(ListCause::Mode);
        }
    }

    pub(super) fn listing_period(&self) -> std::time::Duration {
        match self.mode {
            Some(PlegMode::Kernel | PlegMode::Stream) => self.settings.safety_period,
            Some(PlegMode::Listing) | None => LISTING_PERIOD,
        }
    }

    fn mode_reason(&self) -> String {
        let kernel = if self.kernel.is_opening() {
            "being attached"
        } else {
            self.kernel.missing.as_deref().unwrap_or("attached")
        };
        let stream = match (&self.stream.why, self.stream.is_up()) {
            (_, true) => "connected",
            (Some(why), false) => why,
            (None, false) => "not connected yet",
        };
        format!("kernel events: {kernel}; runtime's event stream: {stream}")
    }

    pub(super) fn on_health(&mut self) {
        self.report();
    }

    /// Says on the health board which mode is in force, and whether the PLEG works (PLEG-08).
    fn report(&mut self) {
        let mode: &'static str = self.mode.map_or("none", Into::into);
        let text = format!("mode {mode}; {}", self.mode_reason());
        let (grade, text) = match (self.last_proof, self.mode) {
            (None, _) => (Grade::Bad, format!("{text}; pleg has yet to be successful")),
            (Some(at), _) if at.elapsed() > HEALTHY_FOR => {
                let ago = at.elapsed().as_secs();
                (
                    Grade::Bad,
                    format!("{text}; pleg was last seen active {ago}s ago; threshold is 3m0s"),
                )
            }
            // Ready is a node that sees everything from now on.
            (Some(_), None) => (Grade::Bad, text),
            (Some(_), mode) if mode < Some(self.settings.best_mode) => (Grade::Degraded, text),
            (Some(_), _) => (Grade::Good, text),
        };
        if let Some(at) = self.last_proof {
            let seen = clock::wall_now().as_second().unsigned_abs() - at.elapsed().as_secs();
            #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
            metrics::PLEG_LAST_SEEN.set(seen as f64, &[]);
        }
        self.deps.board.set(Part::Pleg, grade, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(true, true, PlegMode::Kernel, PlegMode::Kernel)]
    #[case(false, true, PlegMode::Kernel, PlegMode::Stream)]
    #[case(false, false, PlegMode::Kernel, PlegMode::Listing)]
    #[case(true, true, PlegMode::Stream, PlegMode::Stream)]
    #[case(true, false, PlegMode::Stream, PlegMode::Listing)]
    #[case(true, true, PlegMode::Listing, PlegMode::Listing)]
    fn takes_the_best_that_can_be_had(
        #[case] has_kernel: bool,
        #[case] has_stream: bool,
        #[case] wanted: PlegMode,
        #[case] mode: PlegMode,
    ) {
        assert_eq!(best(has_kernel, has_stream, wanted), mode);
    }
}
