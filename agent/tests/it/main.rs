//! How a node behaves, seen from outside: the built program on a real containerd, runc, network and
//! kernel. Run by `cargo xtask test`, as root, in a box of namespaces.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

#[expect(dead_code, reason = "the long runs use the rest")]
#[path = "../node/mod.rs"]
mod node;

mod agent_restart;
mod commands;
mod distribution;
mod failures;
mod health;
mod init;
mod logs;
mod modes;
mod oom;
mod pods;
mod removal;
mod restarts;
mod sources;
