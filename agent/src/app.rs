//! The composition root: opens the adapters, builds every part, runs them.
