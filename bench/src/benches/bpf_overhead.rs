//! `bpf-overhead`: what the agent's kernel programs cost processes that are in no pod.
//!
//! The smallest program there is is spawned (fork, exec, exit) in blocks with and without the agent
//! running, in the order without, with, with, without, and again. Measures: `spawn` (ms, for each
//! block its median, `agent` says whether it ran), `ratio` (of the medians with to without, for each
//! four blocks), `ns_per_run` of each kernel `program`, by the kernel's own statistics, and
//! `runs_per_spawn`. Those statistics are on in all blocks and cost the programs some time too.

use std::{
    collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    clock::{ms_between, now},
    cost::BpfRuns,
    record::Bench,
    stats::quantile,
    turn::{Group, Turn},
};

/// After an agent's start and end.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let (spawns, groups) = turn.size.pick((4000, 2), (20_000, 5), (40_000, 10));
    let block = spawns / groups / 4;
    let file = turn.node.dir.join("exit");
    let program = super::spawn::program(std::env::consts::ARCH);
    fs::write(&file, program.context("no program for this architecture")?)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;

    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut programs = BTreeMap::new();
    for _ in 0..groups {
        stop(turn).await?;
        let mut bare = spawn_block(&file, block)?;
        without.extend(quantile(&bare, 0.5));
        start(turn).await?;
        let mut watched = Vec::new();
        let before = runs(turn)?;
        for _ in 0..2 {
            let times = spawn_block(&file, block)?;
            with.extend(quantile(&times, 0.5));
            watched.extend(times);
        }
        add(&mut programs, &before, &runs(turn)?);
        stop(turn).await?;
        let times = spawn_block(&file, block)?;
        without.extend(quantile(&times, 0.5));
        bare.extend(times);
        let medians = quantile(&watched, 0.5).zip(quantile(&bare, 0.5));
        ratios.extend(medians.map(|(watched, bare)| watched / bare));
    }
    start(turn).await?;

    let params = json!({"spawns": spawns});
    let group = Group::new(Bench::BpfOverhead, "ratio", "ratio", ratios);
    turn.record(group.params(params))?;
    for (agent, medians) in [(false, without), (true, with)] {
        let group = Group::new(Bench::BpfOverhead, "spawn", "ms", medians);
        turn.record(group.params(json!({"agent": agent})))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "some ten thousand")]
    let watched = (spawns / 2) as f64;
    for (program, sum) in programs {
        let params = json!({"program": program});
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (runs, ns) = (sum.runs as f64, sum.ns as f64);
        if sum.runs > 0 {
            let group = Group::new(Bench::BpfOverhead, "ns_per_run", "ns", vec![ns / runs]);
            turn.record(group.params(params.clone()))?;
        }
        let samples = vec![runs / watched];
        let group = Group::new(Bench::BpfOverhead, "runs_per_spawn", "count", samples);
        turn.record(group.params(params))?;
    }
    Ok(())
}

/// Milliseconds of each spawn.
fn spawn_block(file: &Path, count: usize) -> Result<Vec<f64>> {
    let mut command = Command::new(file);
    command.env_clear();
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = now();
        let status = command.status()?;
        times.push(ms_between(began, now()));
        if !status.success() {
            bail!("a spawned program ended with {status}");
        }
    }
    Ok(times)
}

async fn stop(turn: &mut Turn) -> Result<()> {
    let agent = turn.running.agent_mut().context("no agent")?;
    agent.kill().await?;
    sleep(SETTLE).await;
    if !runs(turn)?.is_empty() {
        bail!("the agent's kernel programs have outlived it");
    }
    Ok(())
}

async fn start(turn: &mut Turn) -> Result<()> {
    let agent = turn.running.agent_mut().context("no agent")?;
    agent.start_again(&turn.node).await?;
    agent.healthy(Duration::from_millis(50)).await?;
    sleep(SETTLE).await;
    if runs(turn)?.is_empty() {
        bail!("the agent has attached no kernel programs");
    }
    Ok(())
}

fn runs(turn: &Turn) -> Result<BTreeMap<String, BpfRuns>> {
    let programs = turn.bpf.programs();
    programs.context("this kernel keeps no statistics of its programs")
}

fn add(
    sums: &mut BTreeMap<String, BpfRuns>,
    before: &BTreeMap<String, BpfRuns>,
    after: &BTreeMap<String, BpfRuns>,
) {
    for (program, now) in after {
        let earlier = before.get(program).copied().unwrap_or_default();
        sums.entry(program.clone()).or_default().add(BpfRuns {
            runs: now.runs - earlier.runs,
            ns: now.ns - earlier.ns,
        });
    }
}
