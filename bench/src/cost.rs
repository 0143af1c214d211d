//! What a subject costs: CPU time of the agent, of the runtime and its shims, and of kernel
//! programs; memory; calls of the runtime; wake-ups.
//!
//! CPU time comes from a cgroup each; calls are counted by containerd itself, for all subjects
//! alike; kernel programs by the kernel's own statistics, which are on while [`BpfStats`] lives.

use std::{collections::BTreeMap, os::fd::OwnedFd, time::Duration};

use anyhow::{Context as _, Result, bail};
use aya::programs::loaded_programs;
use procfs::process::Process;
use tokio::time::sleep;

use crate::{clock, node::Node, subject::Agent};

/// Its number in the kernel's interface.
const BPF_PROG_TYPE_TRACING: u32 = 26;

/// What asking for the calls makes the runtime do is over by then.
const AFTER_CALLS: Duration = Duration::from_secs(1);

/// How often, and with what pause between, the end of calls is looked for.
const LOOKS: u32 = 100;
const LOOK: Duration = Duration::from_millis(100);

/// The kernel counts the run time of its programs while this lives.
#[derive(Debug)]
pub struct BpfStats {
    /// Programs that were there before the subject.
    known: Vec<u32>,
    /// None where the kernel can't count: it is older than 5.8.
    enabled: Option<OwnedFd>,
}

impl BpfStats {
    /// Call it before the subject starts.
    pub fn enable() -> Self {
        let enabled = aya::sys::enable_stats(aya::sys::Stats::RunTime).ok();
        let known = loaded_programs()
            .filter_map(Result::ok)
            .map(|program| program.id());
        Self {
            known: known.collect(),
            enabled,
        }
    }

    /// Of the tracing programs that came since: runs, and nanoseconds in them. Zero where there are
    /// none; none where the kernel doesn't count.
    pub fn runs(&self) -> Option<BpfRuns> {
        let programs = self.programs()?;
        let mut sum = BpfRuns::default();
        for runs in programs.values() {
            sum.add(*runs);
        }
        Some(sum)
    }

    /// The same by the programs' names.
    pub fn programs(&self) -> Option<BTreeMap<String, BpfRuns>> {
        self.enabled.as_ref()?;
        let mut programs: BTreeMap<_, BpfRuns> = BTreeMap::new();
        for program in loaded_programs().filter_map(Result::ok) {
            let is_tracing = program.program_type() as u32 == BPF_PROG_TYPE_TRACING;
            if is_tracing && !self.known.contains(&program.id()) {
                let name = program.name_as_str().unwrap_or("?").to_owned();
                programs.entry(name).or_default().add(BpfRuns {
                    runs: program.run_count(),
                    ns: u64::try_from(program.run_time().as_nanos()).unwrap_or(u64::MAX),
                });
            }
        }
        Some(programs)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfRuns {
    pub runs: u64,
    pub ns: u64,
}

impl BpfRuns {
    pub fn add(&mut self, more: Self) {
        self.runs += more.runs;
        self.ns += more.ns;
    }
}

/// All counters at one moment; the calls at another, as asking for them makes the runtime work (it
/// gathers its containers' statistics as well).
#[derive(Clone, Debug)]
pub struct Reading {
    at: clock::Nanos,
    calls_at: clock::Nanos,
    agent_ns: u64,
    runtime_ns: u64,
    bpf: BpfRuns,
    calls: Calls,
    /// None for the floor.
    wakeups: Option<Wakeups>,
}

/// Voluntary context switches of each thread that lives.
type Wakeups = BTreeMap<i32, u64>;

/// The runtime's calls by method.
pub type Calls = BTreeMap<String, u64>;

/// From one reading to a later one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Thousandths of a core.
    pub agent_cpu: f64,
    pub runtime_cpu: f64,
    pub bpf_cpu: f64,
    /// A minute.
    pub calls: f64,
    /// Of sandboxes and containers, a minute.
    pub list_calls: f64,
    /// Voluntary context switches of those of the agent's threads that live, a second. None for the
    /// floor.
    pub wakeups: Option<f64>,
}

impl Reading {
    /// For the beginning of a window: once what it makes the runtime do is over.
    pub async fn begin(node: &Node, agent: Option<&Agent>, bpf: &BpfStats) -> Result<Self> {
        let (calls, calls_at) = calls(node).await?;
        sleep(AFTER_CALLS).await;
        Self::take(node, agent, bpf, calls, calls_at)
    }

    /// For the end of one.
    pub async fn end(node: &Node, agent: Option<&Agent>, bpf: &BpfStats) -> Result<Self> {
        let taken = Self::take(node, agent, bpf, Calls::new(), clock::now())?;
        let (calls, calls_at) = calls(node).await?;
        Ok(Self {
            calls,
            calls_at,
            ..taken
        })
    }

    fn take(
        node: &Node,
        agent: Option<&Agent>,
        bpf: &BpfStats,
        calls: Calls,
        calls_at: clock::Nanos,
    ) -> Result<Self> {
        Ok(Self {
            at: clock::now(),
            calls_at,
            agent_ns: node.cgroups.agent.cpu_ns()?,
            runtime_ns: node.cgroups.runtime.cpu_ns()?,
            bpf: bpf.runs().unwrap_or_default(),
            calls,
            wakeups: agent.map(|agent| wakeups(agent.pid())).transpose()?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn until(&self, later: &Self) -> Cost {
        let ns = (later.at - self.at) as f64;
        let mcores = |from: u64, to: u64| to.saturating_sub(from) as f64 / ns * 1e3;
        let calls_ns = (later.calls_at - self.calls_at) as f64;
        let per_minute = |count: u64| count as f64 * 60e9 / calls_ns;
        let wakeups = self.wakeups.as_ref().zip(later.wakeups.as_ref());
        Cost {
            agent_cpu: mcores(self.agent_ns, later.agent_ns),
            runtime_cpu: mcores(self.runtime_ns, later.runtime_ns),
            bpf_cpu: mcores(self.bpf.ns, later.bpf.ns),
            calls: per_minute(count_calls(&self.calls, &later.calls, |_| true)),
            list_calls: per_minute(count_calls(&self.calls, &later.calls, is_listing)),
            wakeups: wakeups.map(|(from, to)| count_wakeups(from, to) as f64 * 1e9 / ns),
        }
    }

    /// Listings of sandboxes and containers since an earlier reading.
    pub fn listings_since(&self, earlier: &Self) -> u64 {
        count_calls(&earlier.calls, &self.calls, is_listing)
    }
}

async fn calls(node: &Node) -> Result<(Calls, clock::Nanos)> {
    let at = clock::now();
    Ok((parse_calls(&node.metrics().await?), at))
}

fn is_listing(method: &str) -> bool {
    // Newer kubelets may stream what they listed before.
    matches!(
        method,
        "ListPodSandbox" | "ListContainers" | "StreamPodSandboxes" | "StreamContainers"
    )
}

fn count_calls(from: &Calls, to: &Calls, counts: impl Fn(&str) -> bool) -> u64 {
    to.iter()
        .filter(|(method, _)| counts(method))
        .map(|(method, now)| now.saturating_sub(from.get(method).copied().unwrap_or(0)))
        .sum()
}

/// Calls of the CRI that were begun, by method.
fn parse_calls(text: &str) -> Calls {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let whole = |value| value as u64;
    let values = parse_by_method(text, "grpc_server_started_total");
    values
        .map(|(method, value)| (method, whole(value)))
        .collect()
}

/// What pods' starts have cost containerd so far, by its own clock. Asking makes the runtime work,
/// as with [`Reading`].
#[derive(Debug, PartialEq)]
pub struct Starts {
    /// How long the calls have taken that a start consists of, waiting for a processor included: what of
    /// a start is not the agent's.
    ms: f64,
    /// Containers that were started.
    count: f64,
}

impl Starts {
    pub async fn read(node: &Node) -> Result<Self> {
        let starts = Self::parse(&node.metrics().await?);
        starts.context("containerd does not tell how long its calls take")
    }

    fn parse(text: &str) -> Option<Self> {
        let sum = |metric: &str, of: &[&str]| {
            parse_by_method(text, metric)
                .filter(|(method, _)| of.contains(&method.as_str()))
                .map(|(_, value)| value)
                .reduce(|one, other| one + other)
        };
        let of = ["RunPodSandbox", "CreateContainer", "StartContainer"];
        Some(Self {
            ms: sum("grpc_server_handling_seconds_sum", &of)? * 1e3,
            // None has returned yet.
            count: sum("grpc_server_handling_seconds_count", &["StartContainer"]).unwrap_or(0.0),
        })
    }

    /// The mean of the `expected` starts since this reading, in ms, once the last of their calls has
    /// returned, which is after its event.
    pub async fn mean_since(&self, node: &Node, expected: usize) -> Result<f64> {
        for _ in 0..LOOKS {
            let now = Self::read(node).await?;
            let count = now.count - self.count;
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            if count >= expected as f64 {
                return Ok((now.ms - self.ms) / count);
            }
            sleep(LOOK).await;
        }
        bail!("containerd has not started {expected} containers");
    }
}

/// A metric's value for each method of the CRI, in Prometheus' text form.
fn parse_by_method<'a>(text: &'a str, metric: &'a str) -> impl Iterator<Item = (String, f64)> + 'a {
    text.lines().filter_map(move |line| {
        let labels = line.strip_prefix(metric)?.strip_prefix('{')?;
        let (labels, value) = labels.rsplit_once("} ")?;
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split('"').next()
        };
        let is_cri = label("grpc_service").is_some_and(|name| name.starts_with("runtime.v1."));
        let method = label("grpc_method").filter(|_| is_cri)?;
        Some((method.to_owned(), value.parse().ok()?))
    })
}

fn wakeups(pid: i32) -> Result<Wakeups> {
    let mut found = Wakeups::new();
    for task in Process::new(pid)?.tasks()?.filter_map(Result::ok) {
        // A thread may end between the two.
        if let Ok(status) = task.status() {
            found.insert(task.tid, status.voluntary_ctxt_switches.unwrap_or(0));
        }
    }
    Ok(found)
}

/// Those of threads that ended on the way are not known.
fn count_wakeups(from: &Wakeups, to: &Wakeups) -> u64 {
    to.iter()
        .map(|(thread, now)| now.saturating_sub(from.get(thread).copied().unwrap_or(0)))
        .sum()
}

/// Memory of one process, in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    pub rss: f64,
    pub pss: f64,
    /// What the process alone has written: private and dirty.
    pub private: f64,
    pub threads: u64,
}

impl Memory {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn of(pid: i32) -> Result<Self> {
        let process = Process::new(pid)?;
        let rollup = process.smaps_rollup().context("reading smaps_rollup")?;
        let maps = rollup.memory_map_rollup.0.into_iter().next();
        let fields = maps.context("smaps_rollup is empty")?.extension.map;
        let mib = |name: &str| -> Result<f64> {
            let bytes = fields.get(name);
            let bytes = bytes.with_context(|| format!("smaps_rollup has no {name}"))?;
            Ok(*bytes as f64 / f64::from(1 << 20))
        };
        Ok(Self {
            rss: mib("Rss")?,
            pss: mib("Pss")?,
            private: mib("Private_Dirty")?,
            threads: process.status()?.threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_cri_are_counted_by_method_and_others_are_not() {
        let text = r#"# TYPE grpc_server_started_total counter
grpc_server_started_total{grpc_method="ListContainers",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 12
grpc_server_started_total{grpc_method="Status",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 3
grpc_server_started_total{grpc_method="ListContainers",grpc_service="containerd.services.containers.v1.Containers",grpc_type="unary"} 7
grpc_server_handled_total{grpc_method="Status",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 3
"#;
        let calls = parse_calls(text);
        let earlier = Calls::from([("ListContainers".to_owned(), 10)]);
        assert_eq!(count_calls(&earlier, &calls, |_| true), 5);
        assert_eq!(count_calls(&earlier, &calls, is_listing), 2);
    }

    #[test]
    fn a_start_takes_the_runtime_what_its_three_calls_take() {
        let text = r#"grpc_server_handling_seconds_sum{grpc_method="RunPodSandbox",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 0.25
grpc_server_handling_seconds_sum{grpc_method="StartContainer",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 0.5
grpc_server_handling_seconds_sum{grpc_method="StopContainer",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 2
grpc_server_handling_seconds_count{grpc_method="RunPodSandbox",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 4
grpc_server_handling_seconds_count{grpc_method="StartContainer",grpc_service="runtime.v1.RuntimeService",grpc_type="unary"} 3
"#;
        let starts = Starts {
            ms: 750.0,
            count: 3.0,
        };
        assert_eq!(Starts::parse(text), Some(starts));
        assert_eq!(Starts::parse(""), None);
    }

    #[test]
    fn a_thread_that_ended_takes_no_wakeups_of_others_away() {
        let from = Wakeups::from([(1, 100), (2, 5000)]);
        let to = Wakeups::from([(1, 130), (3, 7)]);
        assert_eq!(count_wakeups(&from, &to), 37);
    }

    #[test]
    fn this_processs_memory_is_not_nothing() {
        let memory = Memory::of(std::process::id().try_into().unwrap()).unwrap();
        assert!(memory.rss > 0.5 && memory.pss <= memory.rss, "{memory:?}");
        assert!(
            memory.private <= memory.rss && memory.threads > 0,
            "{memory:?}"
        );
    }
}
