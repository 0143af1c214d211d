//! The sync loop: one select over updates, pod events and ticks.
