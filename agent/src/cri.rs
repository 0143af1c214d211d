//! The container runtime, through the CRI: the only place that knows its messages.
