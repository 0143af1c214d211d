//! `idle-cost`: what it costs when nothing happens, with so many pods that do nothing.
//!
//! Measures, for `pods` idle pods over one window: `agent_cpu`, `runtime_cpu` (containerd with its
//! shims), `bpf_cpu` (kernel programs, whoever ran them), `sum_cpu` of the three (mcores);
//! `agent_rss`, `agent_pss`, `agent_private` (dirty), `runtime_rss` (containerd alone) (MiB);
//! `cri_calls`, `list_calls` (a minute); `wakeups` (voluntary context switches of the agent a
//! second); `threads`.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    cost::{Memory, Reading},
    record::Bench,
    turn::{Group, Turn},
};

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let counts: &[usize] = turn.size.pick(&[0, 20], &[0, 20, 100], &[0, 30, 110, 250]);
    let (settle, window) = turn.size.pick((3, 10), (5, 30), (60, 60));
    for &count in counts {
        turn.grow_to(count).await?;
        sleep(Duration::from_secs(settle)).await;
        let before = Reading::begin(&turn.node, turn.running.agent(), &turn.bpf).await?;
        sleep(Duration::from_secs(window)).await;
        let after = Reading::end(&turn.node, turn.running.agent(), &turn.bpf).await?;
        let cost = before.until(&after);
        let runtime = Memory::of(turn.node.containerd_pid())?;
        let sum = cost.agent_cpu + cost.runtime_cpu + cost.bpf_cpu;
        let mut measures = vec![
            ("runtime_cpu", "mcores", cost.runtime_cpu),
            ("sum_cpu", "mcores", sum),
            ("runtime_rss", "MiB", runtime.rss),
            ("cri_calls", "/min", cost.calls),
            ("list_calls", "/min", cost.list_calls),
        ];
        if let Some(agent) = turn.running.agent() {
            let memory = Memory::of(agent.pid())?;
            #[expect(clippy::cast_precision_loss, reason = "some tens")]
            let threads = memory.threads as f64;
            measures.extend([
                ("agent_cpu", "mcores", cost.agent_cpu),
                ("bpf_cpu", "mcores", cost.bpf_cpu),
                ("agent_rss", "MiB", memory.rss),
                ("agent_pss", "MiB", memory.pss),
                ("agent_private", "MiB", memory.private),
                ("threads", "count", threads),
            ]);
            measures.extend(cost.wakeups.map(|wakeups| ("wakeups", "/s", wakeups)));
        }
        let params = json!({"pods": count, "window_s": window});
        for (measure, unit, value) in measures {
            let group = Group::new(Bench::IdleCost, measure, unit, vec![value]);
            turn.record(group.params(params.clone()))?;
        }
    }
    Ok(())
}
