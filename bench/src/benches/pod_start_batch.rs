//! `pod-start-batch`: so many pods of one pause container at once, on a node without pods.
//!
//! Measures: `running` (ms, right before each manifest's rename to CONTAINER_STARTED), `rate` (pods
//! a second, from the first rename to the last start), `runtime_cpu_per_pod` (CPU ms) and for agents
//! `agent_cpu_per_pod`, both until a second after the last start. `spacing_ms` lies between two
//! renames. The floor makes as many at a time as this runtime is fastest with.

use std::{collections::HashMap, time::Duration};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    clock::{Nanos, ms_between},
    pods::{MAIN, Pod},
    record::Bench,
    turn::{FLOOR_CONCURRENCY, GROWTH, Group, Turn},
    watch::Kind,
};

/// After the last pod's end, and after the last start.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let counts: &[usize] = turn.size.pick(&[10], &[35, 90], &[35, 90, 110]);
    let spacings: &[u64] = turn.size.pick(&[0], &[0], &[0, 100, 300]);
    for &count in counts {
        for &spacing in spacings {
            turn.clear().await?;
            sleep(SETTLE).await;
            one(turn, count, Duration::from_millis(spacing)).await?;
        }
    }
    Ok(())
}

async fn one(turn: &mut Turn, count: usize, spacing: Duration) -> Result<()> {
    let names: Vec<_> = (0..count).map(|_| turn.name("batch")).collect();
    let cgroups = &turn.node.cgroups;
    let (agent, runtime) = (cgroups.agent.cpu_ns()?, cgroups.runtime.cpu_ns()?);
    let mark = turn.watch.mark();
    let running = &turn.running;
    let placed: Vec<Nanos> = futures::stream::iter(&names)
        .then(async |name| {
            if !spacing.is_zero() {
                sleep(spacing).await;
            }
            name
        })
        .map(async |name| running.place(&Pod::pause(name)).await)
        .buffered(FLOOR_CONCURRENCY)
        .try_collect()
        .await?;
    let waited: Vec<_> = names.iter().map(String::as_str).collect();
    turn.watch.all_started(mark, GROWTH, &waited, MAIN).await?;
    sleep(SETTLE).await;
    let cpu = [
        ("agent_cpu_per_pod", cgroups.agent.cpu_ns()? - agent),
        ("runtime_cpu_per_pod", cgroups.runtime.cpu_ns()? - runtime),
    ];

    let started: HashMap<_, _> = turn
        .watch
        .since(mark)
        .into_iter()
        .filter(|event| event.kind == Kind::Started && event.name == MAIN)
        .map(|event| (event.pod, event.at))
        .collect();
    let pods = names.iter().zip(&placed);
    let times: Vec<_> = pods
        .map(|(name, &placed)| Some(ms_between(placed, *started.get(name)?)))
        .collect();
    let first = placed.iter().min().copied().unwrap_or(0);
    let last = started.values().max().copied().unwrap_or(0);
    let params = json!({"pods": count, "spacing_ms": spacing.as_millis()});
    let group = Group::with_lost(Bench::PodStartBatch, "running", "ms", &times);
    turn.record(group.params(params.clone()))?;
    let rate = super::rate(count, first, last);
    let group = Group::new(Bench::PodStartBatch, "rate", "/s", vec![rate]);
    turn.record(group.params(params.clone()))?;
    let has_agent = turn.running.agent().is_some();
    for (measure, ns) in cpu {
        if measure == "agent_cpu_per_pod" && !has_agent {
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let ms = ns as f64 / 1e6 / count as f64;
        let group = Group::new(Bench::PodStartBatch, measure, "ms", vec![ms]);
        turn.record(group.params(params.clone()))?;
    }
    turn.adopt(names);
    Ok(())
}
