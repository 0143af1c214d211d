//! What an idle window costs, from the kernel's counters and the agent's own.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use super::read;

/// Totals, or what a window added to them.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) millicores: f64,
    pub(super) switches: f64,
    /// Voluntary switches so far, by thread: they come and go.
    threads: BTreeMap<String, f64>,
    /// By the name of the call; those that were not made are left out.
    pub(super) runtime_calls: BTreeMap<String, f64>,
}

impl Counters {
    /// The totals so far: microseconds of CPU time, switches, calls.
    pub(super) fn read(pid: u32, cgroup: &Path, metrics: &str) -> Result<Self> {
        let used = read(cgroup.join("cpu.stat"))?;
        let used = field(&used, "usage_usec ").context("cpu.stat has no usage_usec")?;
        let dir = format!("/proc/{pid}/task");
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("reading {dir}"))? {
            let entry = entry.context("a thread")?;
            // One that has ended meanwhile is none.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
                continue;
            };
            let switches = field(&status, "voluntary_ctxt_switches:").unwrap_or(0.0);
            threads.insert(entry.file_name().to_string_lossy().into_owned(), switches);
        }
        let mut runtime_calls = BTreeMap::new();
        for line in metrics.lines() {
            if let Some((labels, value)) = line
                .strip_prefix("kubelet_runtime_operations_total{")
                .and_then(|rest| rest.split_once("} "))
                && let Some(name) = labels.split('"').nth(1)
            {
                let value: f64 = value.parse().context("a count of calls")?;
                *runtime_calls.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(Self {
            millicores: used,
            switches: 0.0,
            threads,
            runtime_calls,
        })
    }

    /// From two totals to rates: millicores, switches a second, calls a minute.
    pub(super) fn since(mut self, before: &Self, window: Duration) -> Self {
        let seconds = window.as_secs_f64();
        self.millicores = (self.millicores - before.millicores) / 1e3 / seconds;
        let switches = self.threads.iter().map(|(thread, now)| {
            let before = before.threads.get(thread).copied().unwrap_or(0.0);
            now - before
        });
        self.switches = switches.sum::<f64>() / seconds;
        for (name, calls) in &mut self.runtime_calls {
            *calls -= before.runtime_calls.get(name).copied().unwrap_or(0.0);
            *calls *= 60.0 / seconds;
        }
        self.runtime_calls.retain(|_, calls| *calls > 0.0);
        self
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }
}

/// The number after the line's beginning.
fn field(text: &str, beginning: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix(beginning))
        .and_then(|value| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_in_rates() {
        let total = |scale: f64| Counters {
            millicores: 1e6 * scale,
            switches: 0.0,
            threads: [("1".to_owned(), 100.0 * scale)].into(),
            runtime_calls: [
                ("status".to_owned(), 5.0 * scale),
                ("version".to_owned(), 1.0),
            ]
            .into(),
        };
        let rates = total(2.0).since(&total(1.0), Duration::from_secs(10));
        assert!((rates.millicores - 100.0).abs() < 1e-9);
        assert!((rates.switches - 10.0).abs() < 1e-9);
        assert!((rates.runtime_calls["status"] - 30.0).abs() < 1e-9);
        assert_eq!(rates.runtime_calls.len(), 1);
    }

    #[test]
    fn a_field_is_found_at_a_lines_beginning_only() {
        let text = "nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(text, "voluntary_ctxt_switches:"), Some(5.0));
    }
}
