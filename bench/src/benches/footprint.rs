//! `footprint`: what an agent takes before it does anything.
//!
//! Measures: `binary` (MiB of the program that are loaded: without what a debugger reads), `start`
//! (ms from the program's start to its `/healthz` saying yes, on a node without pods), and with 0
//! and with more idle pods `rss` (MiB) and `threads`. The agent is started anew for it.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    clock::ms_between,
    cost::Memory,
    record::Bench,
    turn::{Group, Turn},
};

/// Between two tries to ask an agent that is starting.
const POLL: Duration = Duration::from_millis(2);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    turn.clear().await?;
    let agent = turn.running.agent_mut().context("the floor has no agent")?;
    let binary = loaded_mib(agent.program())?;
    let mut starts = Vec::new();
    for _ in 0..turn.size.pick(3, 5, 10) {
        agent.kill().await?;
        let began = agent.start_again(&turn.node).await?;
        starts.push(ms_between(began, agent.healthy(POLL).await?));
    }
    turn.record(Group::new(Bench::Footprint, "binary", "MiB", vec![binary]))?;
    turn.record(Group::new(Bench::Footprint, "start", "ms", starts))?;
    // Threads that helped to start pods are gone by then.
    let settle = Duration::from_secs(turn.size.pick(15, 30, 60));
    for pods in [0, turn.size.pick(30, 100, 100)] {
        turn.grow_to(pods).await?;
        sleep(settle).await;
        let agent = turn.running.agent().context("the floor has no agent")?;
        let memory = Memory::of(agent.pid())?;
        #[expect(clippy::cast_precision_loss, reason = "some tens")]
        let threads = memory.threads as f64;
        for (measure, unit, value) in [("rss", "MiB", memory.rss), ("threads", "count", threads)] {
            let group = Group::new(Bench::Footprint, measure, unit, vec![value]);
            turn.record(group.params(json!({"pods": pods})))?;
        }
    }
    Ok(())
}

fn loaded_mib(program: &Path) -> Result<f64> {
    let file = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let bytes = compute_loaded(&file);
    let bytes = bytes.with_context(|| format!("{} is no ELF64 program", program.display()))?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(mib)
}

/// The bytes of an ELF64 file (little endian) that are loaded.
fn compute_loaded(file: &[u8]) -> Option<u64> {
    const PT_LOAD: u64 = 1;
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = file.get(at..at.checked_add(len)?)?;
        let digits = bytes.iter().rev();
        Some(digits.fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let first = usize::try_from(number(0x20, 8)?).ok()?;
    let (size, count) = (number(0x36, 2)?, number(0x38, 2)?);
    let mut sum = 0_u64;
    for place in 0..count {
        let header = first.checked_add(usize::try_from(place * size).ok()?)?;
        if number(header, 4)? == PT_LOAD {
            sum = sum.checked_add(number(header.checked_add(0x20)?, 8)?)?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_loaded_without_its_debug_information() {
        let file = super::super::spawn::program("x86_64").unwrap();
        assert_eq!(compute_loaded(&file), Some(file.len() as u64));
        let mut more = file.clone();
        more.extend([0; 1000]);
        assert_eq!(compute_loaded(&more), Some(file.len() as u64));
        assert_eq!(compute_loaded(b"#!/bin/sh\n"), None);
        assert_eq!(compute_loaded(&file[..70]), None);
    }
}
