//! `pod-start-seq`: pods of one pause container, one after the other, beside idle ones.
//!
//! Measures, in ms: `running` (right before the manifest's rename to CONTAINER_STARTED), and
//! `in_runtime` (how long the three calls of a start took in containerd: the mean of a round, by
//! its own clock). The pods are placed at moments spread over a second. The floor makes each by the bare
//! three calls.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use super::kills::{LIMIT, PERIOD};
use crate::{
    clock::{Jitter, ms_between},
    cost::Starts,
    pods::{MAIN, Network, Pod},
    record::Bench,
    turn::{Group, Turn},
};

const PODS: usize = 10;
/// After each start, for what the agent does behind it.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let background = turn.size.pick(20, 50, 50);
    turn.grow_to(background).await?;
    for &network in super::networks(turn).await? {
        let mut names = Vec::new();
        let mut running = Vec::new();
        let before = Starts::read(&turn.node).await?;
        for wait in Jitter::new(u64::from(turn.round)).spread(PODS, PERIOD) {
            sleep(SETTLE + wait).await;
            let name = turn.name("seq");
            let mark = turn.watch.mark();
            let pod = Pod {
                network,
                ..Pod::pause(&name)
            };
            let placed = turn.running.place(&pod).await?;
            let started = turn.watch.start(mark, LIMIT, &name, MAIN).await?;
            running.push(started.map(|event| ms_between(placed, event.at)));
            names.push(name);
        }
        let in_runtime = before.mean_since(&turn.node, PODS).await?;
        let params = json!({"pods": background, "network": network.name()});
        let group = Group::with_lost(Bench::PodStartSeq, "running", "ms", &running);
        turn.record(group.params(params.clone()))?;
        let group = Group::new(Bench::PodStartSeq, "in_runtime", "ms", vec![in_runtime]);
        turn.record(group.params(params))?;
        match network {
            Network::Host => turn.adopt(names),
            Network::Bridge => turn.remove(&names).await?,
        }
    }
    Ok(())
}
