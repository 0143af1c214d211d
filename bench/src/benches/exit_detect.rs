//! `exit-detect`: how soon the end of a container nobody asked to end is known.
//!
//! Containers are killed (SIGKILL) one after the other, each for the first time, at moments spread
//! over a second. Measures, in ms: `kernel` (kill to process gone), `runtime` (kill to the runtime's
//! CONTAINER_STOPPED), `runtime_lag` (process gone to CONTAINER_STOPPED), and for agents `known`
//! (kill to the pod event in the agent's log).

use anyhow::Result;
use serde_json::json;

use super::kills::{self, Kill};
use crate::{
    clock::ms_between,
    record::Bench,
    turn::{Group, Turn},
};

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let kills = kills::make(turn).await?;
    let params = json!({"pods": turn.pod_count(), "how": "kill"});
    let each = |stage: fn(&Kill) -> Option<f64>| kills.iter().map(stage).collect::<Vec<_>>();
    let mut groups = vec![
        ("kernel", each(|kill| kill.after(kill.kernel)), 0),
        ("runtime", each(|kill| kill.after(kill.runtime)), 0),
        (
            "runtime_lag",
            each(|kill| Some(ms_between(kill.kernel?, kill.runtime?))),
            0,
        ),
    ];
    if turn.running.agent().is_some() {
        let doubled = kills.iter().map(|kill| kill.doubled).sum();
        groups.push(("known", each(|kill| kill.after(kill.known)), doubled));
    }
    for (measure, samples, doubled) in groups {
        let group = Group::with_lost(Bench::ExitDetect, measure, "ms", &samples);
        turn.record(group.params(params.clone()).doubled(doubled))?;
    }
    turn.kills = Some(kills);
    Ok(())
}
