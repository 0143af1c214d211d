//! The benches, one module each, and the order in which a turn runs them.

mod crash_restart;
mod exit_detect;
mod exit_storm;
mod idle_cost;
mod init_chain;
pub mod kills;

use anyhow::{Result, bail};

use crate::{record::Bench, turn::Turn};

/// What needs an untouched agent first, what leaves the agent or its pods in disorder last.
pub const ORDER: [Bench; 12] = [
    Bench::Footprint,
    Bench::CriFloor,
    Bench::IdleCost,
    Bench::BpfOverhead,
    Bench::PodStartSeq,
    Bench::ExitDetect,
    Bench::CrashRestart,
    Bench::InitChain,
    Bench::OomDetect,
    Bench::ExitStorm,
    Bench::AgentRestart,
    Bench::PodStartBatch,
];

/// Measures, and records what it measured.
pub async fn run(bench: Bench, turn: &mut Turn) -> Result<()> {
    match bench {
        Bench::IdleCost => idle_cost::run(turn).await,
        Bench::ExitDetect => exit_detect::run(turn).await,
        Bench::CrashRestart => crash_restart::run(turn).await,
        Bench::InitChain => init_chain::run(turn).await,
        Bench::ExitStorm => exit_storm::run(turn).await,
        Bench::CriFloor
        | Bench::OomDetect
        | Bench::PodStartSeq
        | Bench::PodStartBatch
        | Bench::AgentRestart
        | Bench::BpfOverhead
        | Bench::Footprint => bail!("is not built yet"),
    }
}
