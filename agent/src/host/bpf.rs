//! Loads and attaches the eBPF programs; turns their ring buffer into a stream of events.
