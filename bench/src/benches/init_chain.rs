//! `init-chain`: a pod of ten init containers that each live 10 ms, then its main container.
//!
//! Measures, in ms: `chain` (right before the manifest's rename to the main container's
//! CONTAINER_STARTED) and `dead` (each step's CONTAINER_STOPPED to the next one's
//! CONTAINER_STARTED, by the runtime's own times: negative where the next was started before the
//! runtime told of the end). The floor waits for nothing but the processes' ends.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::kills::LIMIT;
use crate::{
    clock::{Nanos, ms_between},
    pods::{MAIN, Pod},
    record::Bench,
    turn::{Group, Turn},
    watch::{Event, Kind},
};

const STEPS: usize = 10;
/// How long each init container sleeps.
const SECONDS: &str = "0.01";
/// The default kubelet takes ten seconds.
const CHAIN_LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let chains = turn.size.pick(1, 3, 5);
    let (mut whole, mut dead) = (Vec::new(), Vec::new());
    let mut names = Vec::new();
    for _ in 0..chains {
        let name = turn.name("chain");
        let mark = turn.watch.mark();
        let placed = turn
            .running
            .place(&Pod::chain(&name, STEPS, SECONDS))
            .await?;
        let main = turn.watch.start(mark, CHAIN_LIMIT, &name, MAIN).await?;
        whole.push(main.map(|event| ms_between(placed, event.at)));
        // The last step's end may be told after the main container's start.
        let last = format!("i{}", STEPS - 1);
        let events = turn.watch.find(mark, LIMIT, |events| {
            time_of(events, &name, &last, Kind::Stopped).map(|_| events.to_vec())
        });
        let events = events.await?.unwrap_or_default();
        dead.extend(compute_dead(&events, &name));
        names.push(name);
    }
    let params = json!({"pods": turn.pod_count(), "steps": STEPS, "sleep_ms": 10});
    for (measure, samples) in [("chain", whole), ("dead", dead)] {
        let group = Group::with_lost(Bench::InitChain, measure, "ms", &samples);
        turn.record(group.params(params.clone()))?;
    }
    turn.remove(&names).await
}

fn time_of(events: &[Event], pod: &str, name: &str, kind: Kind) -> Option<Nanos> {
    let is_it = |event: &&Event| event.pod == pod && event.name == name && event.kind == kind;
    events.iter().find(is_it).map(|event| event.at)
}

/// One for each step.
fn compute_dead(events: &[Event], pod: &str) -> Vec<Option<f64>> {
    (0..STEPS)
        .map(|step| {
            let next = match step + 1 {
                STEPS => MAIN.to_owned(),
                next => format!("i{next}"),
            };
            let stopped = time_of(events, pod, &format!("i{step}"), Kind::Stopped)?;
            let started = time_of(events, pod, &next, Kind::Started)?;
            Some(ms_between(stopped, started))
        })
        .collect()
}
