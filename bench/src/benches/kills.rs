//! Single kills of running containers, which `exit-detect` and `crash-restart` read.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::{
    clock::{self, Jitter, Nanos},
    pods::MAIN,
    process::Victim,
    turn::Turn,
    watch::Kind,
};

/// What has not come by then is lost.
pub const LIMIT: Duration = Duration::from_secs(15);
/// The longest period of any subject's listing.
pub const PERIOD: Duration = Duration::from_secs(1);

/// After pods were made.
const SETTLE: Duration = Duration::from_secs(2);

/// One kill, and when each stage came; none where it did not within [`LIMIT`].
#[derive(Clone, Debug)]
pub struct Kill {
    /// Right before the signal was sent.
    pub killed: Nanos,
    /// The process is gone.
    pub kernel: Option<Nanos>,
    /// The runtime's CONTAINER_STOPPED.
    pub runtime: Option<Nanos>,
    /// The agent's pod event. None for the floor.
    pub known: Option<Nanos>,
    /// The runtime's CONTAINER_STARTED of the replacement.
    pub restarted: Option<Nanos>,
    /// How many times more than once the agent told of it.
    pub doubled: u64,
}

impl Kill {
    /// Milliseconds from the kill.
    pub fn after(&self, stage: Option<Nanos>) -> Option<f64> {
        stage.map(|at| clock::ms_between(self.killed, at))
    }
}

/// How many kills there are, and with how many pods.
pub fn sizes(turn: &Turn) -> (usize, usize) {
    turn.size.pick((8, 20), (20, 100), (100, 110))
}

/// Kills the containers of fresh pods one after the other, spread over the agents' period.
pub async fn make(turn: &mut Turn) -> Result<Vec<Kill>> {
    let (count, pods) = sizes(turn);
    turn.grow_to(pods).await?;
    if turn.fresh().len() < count {
        turn.refresh().await?;
    }
    sleep(SETTLE).await;
    let waits = Jitter::new(u64::from(turn.round)).spread(count, PERIOD);
    let fresh = turn.fresh();
    let mut kills = Vec::with_capacity(count);
    for (pod, wait) in fresh.iter().zip(waits) {
        sleep(wait).await;
        kills.push(one(turn, pod).await?);
        turn.mark_killed(pod);
    }
    Ok(kills)
}

async fn one(turn: &mut Turn, pod: &str) -> Result<Kill> {
    let container = turn.watch.running(pod, MAIN);
    let container = container.with_context(|| format!("{pod} does not run"))?;
    let victim = Victim::open(turn.node.cri.main_pid(&container).await?)?;
    let mark = turn.watch.mark();
    let killed = victim.kill()?;
    let kernel = victim.gone(LIMIT).await?;
    if let Some(floor) = turn.running.floor() {
        floor.replace(pod).await?;
    }
    let runtime = turn
        .watch
        .event(mark, LIMIT, Kind::Stopped, &container)
        .await?;
    let restarted = turn.watch.start(mark, LIMIT, pod, MAIN).await?;
    let (mut known, mut doubled) = (None, 0);
    if let Some(agent) = turn.running.agent_mut() {
        let deaths = agent.log.deaths(&[&container], LIMIT).await?;
        known = deaths.into_iter().next().flatten();
        doubled = agent.log.doubled_deaths(&[&container])?;
    }
    Ok(Kill {
        killed,
        kernel,
        runtime,
        known,
        restarted: restarted.map(|event| event.at),
        doubled,
    })
}
