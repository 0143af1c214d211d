//! The benches, one module each, and the order in which a turn runs them.

mod agent_restart;
mod bpf_overhead;
mod crash_restart;
mod cri_floor;
mod exit_detect;
mod exit_storm;
mod footprint;
mod idle_cost;
mod init_chain;
pub mod kills;
mod oom_detect;
mod pod_start_batch;
mod pod_start_seq;
mod spawn;

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::{
    clock::{Nanos, ms_between},
    pods::Network,
    record::{Bench, Subject},
    turn::{Size, Turn},
};

/// What wants a node without pods first, what leaves the agent or its pods in disorder last.
pub const ORDER: [Bench; 12] = [
    Bench::CriFloor,
    Bench::BpfOverhead,
    Bench::IdleCost,
    Bench::PodStartSeq,
    Bench::ExitDetect,
    Bench::CrashRestart,
    Bench::InitChain,
    Bench::OomDetect,
    Bench::ExitStorm,
    Bench::AgentRestart,
    Bench::PodStartBatch,
    Bench::Footprint,
];

/// Agents look at the runtime's network each five seconds.
const NETWORK: Duration = Duration::from_secs(12);

/// Why the bench says nothing about the subject; none where it does.
pub fn compute_missing(bench: Bench, subject: Subject) -> Option<&'static str> {
    let is_floor = subject == Subject::Floor;
    match bench {
        Bench::CriFloor => (!is_floor).then_some("it measures the bare runtime"),
        Bench::BpfOverhead => {
            let is_missing = subject != Subject::SkepKernel;
            is_missing.then_some("it has no kernel programs")
        }
        Bench::OomDetect | Bench::AgentRestart | Bench::Footprint => {
            is_floor.then_some("the floor has no agent")
        }
        Bench::IdleCost
        | Bench::ExitDetect
        | Bench::CrashRestart
        | Bench::InitChain
        | Bench::ExitStorm
        | Bench::PodStartSeq
        | Bench::PodStartBatch => None,
    }
}

/// Measures, and records what it measured.
pub async fn run(bench: Bench, turn: &mut Turn) -> Result<()> {
    if let Some(why) = compute_missing(bench, turn.subject) {
        eprintln!("{:?}: no {bench:?}: {why}", turn.subject);
        return Ok(());
    }
    match bench {
        Bench::CriFloor => cri_floor::run(turn).await,
        Bench::IdleCost => idle_cost::run(turn).await,
        Bench::ExitDetect => exit_detect::run(turn).await,
        Bench::CrashRestart => crash_restart::run(turn).await,
        Bench::InitChain => init_chain::run(turn).await,
        Bench::OomDetect => oom_detect::run(turn).await,
        Bench::ExitStorm => exit_storm::run(turn).await,
        Bench::PodStartSeq => pod_start_seq::run(turn).await,
        Bench::PodStartBatch => pod_start_batch::run(turn).await,
        Bench::AgentRestart => agent_restart::run(turn).await,
        Bench::BpfOverhead => bpf_overhead::run(turn).await,
        Bench::Footprint => footprint::run(turn).await,
    }
}

/// The networks that pod starts are measured with at this size.
async fn networks(turn: &Turn) -> Result<&'static [Network]> {
    match turn.size {
        Size::Quick | Size::Pleg => Ok(&[Network::Host]),
        Size::Full => {
            turn.node.add_bridge()?;
            sleep(NETWORK).await;
            Ok(&[Network::Host, Network::Bridge])
        }
    }
}

/// How many a second.
#[expect(clippy::cast_precision_loss, reason = "some hundreds")]
fn rate(count: usize, from: Nanos, to: Nanos) -> f64 {
    count as f64 * 1e3 / ms_between(from, to)
}
