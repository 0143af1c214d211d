//! Skep's node logic. ARCHITECTURE.md has the map; the order below is the order of layers: a module
//! imports only from those above it.

pub mod types;

pub mod config;
pub mod health;
pub mod metrics;
pub mod telemetry;

// The outside world.
pub mod cri;
pub mod host;

// Decisions, and the parts that carry them out.
pub mod gc;
pub mod image;
pub mod logs;
pub mod oom;
pub mod pleg;
pub mod source;
pub mod status;
pub mod timeline;
pub mod volume;
pub mod worker;

pub mod sync;

// What people and machines talk to.
pub mod server;
pub mod supervise;

pub mod app;
pub mod cli;
