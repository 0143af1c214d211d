//! `cri-floor`: what the runtime itself takes for a pod of one pause container, so many pods at a
//! time: what the other benches' floors are made of.
//!
//! Measures, in ms for each pod: `sandbox`, `create`, `start` and `pod` (the three together), `stop`
//! (of the sandbox, with its container), `remove`; and `start_rate` and `remove_rate` (pods a
//! second).

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::{
    clock::{Nanos, ms_between, now},
    pods::{Network, Pod},
    record::Bench,
    subject::{Placed, Removed},
    turn::{Group, Turn},
};

const CONCURRENCIES: [usize; 4] = [1, 2, 4, 8];

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    for &network in super::networks(turn).await? {
        for concurrency in CONCURRENCIES {
            one(turn, network, concurrency).await?;
        }
    }
    Ok(())
}

async fn one(turn: &mut Turn, network: Network, concurrency: usize) -> Result<()> {
    let count = turn.size.pick(8, 16, 40);
    let pods: Vec<_> = (0..count)
        .map(|_| Pod {
            network,
            ..Pod::pause(&turn.name("floor"))
        })
        .collect();
    let floor = turn.running.floor().context("an agent is no floor")?;
    let began = now();
    let placed: Vec<Placed> = futures::stream::iter(&pods)
        .map(|pod| floor.place(pod))
        .buffered(concurrency)
        .try_collect()
        .await?;
    let placed_all = now();
    let removed: Vec<Removed> = futures::stream::iter(&pods)
        .map(|pod| floor.remove(&pod.name))
        .buffered(concurrency)
        .try_collect()
        .await?;
    let removed_all = now();

    let each = |step: fn(&Placed) -> (Nanos, Nanos)| times(placed.iter().map(step));
    let each_removed = |step: fn(&Removed) -> (Nanos, Nanos)| times(removed.iter().map(step));
    let measures = [
        ("sandbox", "ms", each(|pod| (pod.began, pod.sandbox))),
        ("create", "ms", each(|pod| (pod.sandbox, pod.created))),
        ("start", "ms", each(|pod| (pod.created, pod.started))),
        ("pod", "ms", each(|pod| (pod.began, pod.started))),
        (
            "start_rate",
            "/s",
            vec![super::rate(count, began, placed_all)],
        ),
        ("stop", "ms", each_removed(|pod| (pod.began, pod.stopped))),
        (
            "remove",
            "ms",
            each_removed(|pod| (pod.stopped, pod.removed)),
        ),
        (
            "remove_rate",
            "/s",
            vec![super::rate(count, placed_all, removed_all)],
        ),
    ];
    let params = json!({"concurrency": concurrency, "network": network.name()});
    for (measure, unit, samples) in measures {
        let group = Group::new(Bench::CriFloor, measure, unit, samples);
        turn.record(group.params(params.clone()))?;
    }
    Ok(())
}

fn times(steps: impl Iterator<Item = (Nanos, Nanos)>) -> Vec<f64> {
    steps.map(|(from, to)| ms_between(from, to)).collect()
}
