//! `crash-restart`: how soon a container that ended by itself runs again, the first time, when no
//! back-off holds it back.
//!
//! Reads the kills of `exit-detect` when that ran in the same turn, else makes its own. Measure, in
//! ms: `restarted` (kill to the runtime's CONTAINER_STARTED of the replacement).

use anyhow::Result;
use serde_json::json;

use super::kills;
use crate::{
    record::Bench,
    turn::{Group, Turn},
};

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let kills = match turn.kills.take() {
        Some(kills) => kills,
        None => kills::make(turn).await?,
    };
    let samples: Vec<_> = kills
        .iter()
        .map(|kill| kill.after(kill.restarted))
        .collect();
    let params = json!({"pods": turn.pod_count(), "how": "kill"});
    let group = Group::with_lost(Bench::CrashRestart, "restarted", "ms", &samples);
    turn.record(group.params(params))
}
