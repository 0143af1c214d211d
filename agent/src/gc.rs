//! Dead containers, sandboxes and their logs.
