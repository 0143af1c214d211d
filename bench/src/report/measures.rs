//! What is known of the measures: what they are called, which way is better, and what Skep is
//! meant to reach. A measure without a line here is reported by its name alone.

use crate::record::{Bench, Subject};

/// A measure's line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    bench: Bench,
    name: &'static str,
    pub(super) title: &'static str,
    /// CPU or memory: what Skep does not do yet makes a difference.
    pub(super) is_cost: bool,
}

const fn time(bench: Bench, name: &'static str, title: &'static str) -> Known {
    Known {
        bench,
        name,
        title,
        is_cost: false,
    }
}

const fn cost(bench: Bench, name: &'static str, title: &'static str) -> Known {
    Known {
        bench,
        name,
        title,
        is_cost: true,
    }
}

/// In the order of the report. Less is better, unless the title says otherwise.
const KNOWN: &[Known] = &[
    cost(Bench::IdleCost, "agent_cpu", "CPU of the agent"),
    cost(
        Bench::IdleCost,
        "runtime_cpu",
        "CPU of containerd with its shims",
    ),
    cost(Bench::IdleCost, "bpf_cpu", "CPU of the kernel programs"),
    cost(
        Bench::IdleCost,
        "sum_cpu",
        "CPU of agent, containerd and kernel programs together",
    ),
    cost(Bench::IdleCost, "agent_rss", "Resident memory of the agent"),
    cost(
        Bench::IdleCost,
        "agent_pss",
        "Proportional memory of the agent (shared pages shared out)",
    ),
    cost(
        Bench::IdleCost,
        "agent_private",
        "Private memory of the agent",
    ),
    cost(
        Bench::IdleCost,
        "runtime_rss",
        "Resident memory of containerd",
    ),
    time(Bench::IdleCost, "cri_calls", "Calls of the runtime"),
    time(
        Bench::IdleCost,
        "list_calls",
        "Listings of sandboxes and containers",
    ),
    time(Bench::IdleCost, "wakeups", "Wake-ups of the agent"),
    time(Bench::IdleCost, "threads", "Threads of the agent"),
    time(Bench::ExitDetect, "known", "Kill to pod event"),
    time(Bench::ExitDetect, "kernel", "Kill to process gone"),
    time(
        Bench::ExitDetect,
        "runtime",
        "Kill to the runtime's CONTAINER_STOPPED",
    ),
    time(
        Bench::ExitDetect,
        "runtime_lag",
        "Process gone to the runtime's CONTAINER_STOPPED",
    ),
    time(
        Bench::CrashRestart,
        "restarted",
        "Kill to new container running",
    ),
    time(
        Bench::InitChain,
        "chain",
        "Manifest in place to main container running",
    ),
    time(
        Bench::InitChain,
        "dead",
        "Each step's CONTAINER_STOPPED to the next one's CONTAINER_STARTED",
    ),
    time(Bench::ExitStorm, "kernel", "Kill to process gone"),
    time(Bench::ExitStorm, "detected", "Kill to pod event"),
    time(
        Bench::ExitStorm,
        "detected_last",
        "Kill to the last pod event",
    ),
    time(
        Bench::ExitStorm,
        "behind",
        "Each process gone to its pod event (below 0: the bench was later)",
    ),
    time(
        Bench::ExitStorm,
        "restarted",
        "Kill to new container running",
    ),
    time(
        Bench::ExitStorm,
        "restarted_last",
        "Kill to the last new container running",
    ),
    time(
        Bench::ExitStorm,
        "list_calls",
        "Listings until all run again",
    ),
    time(Bench::OomDetect, "known", "Memory kill to pod event"),
    time(
        Bench::OomDetect,
        "right",
        "Memory kills told as such (more is better)",
    ),
    time(
        Bench::OomDetect,
        "wrong",
        "Containers of which something else is told",
    ),
    time(
        Bench::OomDetect,
        "runtime_wrong",
        "Memory kills that the runtime gives another reason for",
    ),
    time(
        Bench::PodStartSeq,
        "running",
        "Manifest in place to container running",
    ),
    time(
        Bench::PodStartSeq,
        "in_runtime",
        "The three calls of a start, by the runtime's own clock",
    ),
    time(
        Bench::PodStartBatch,
        "rate",
        "Pods started (more is better)",
    ),
    time(
        Bench::PodStartBatch,
        "running",
        "Manifest in place to container running",
    ),
    cost(
        Bench::PodStartBatch,
        "agent_cpu_per_pod",
        "CPU time of the agent for each pod started",
    ),
    cost(
        Bench::PodStartBatch,
        "runtime_cpu_per_pod",
        "CPU time of containerd with its shims for each pod started",
    ),
    time(
        Bench::AgentRestart,
        "known",
        "Start of the agent to all pods known again",
    ),
    time(
        Bench::AgentRestart,
        "noticed",
        "Start of the agent to a meanwhile ended container told",
    ),
    time(
        Bench::AgentRestart,
        "restarted",
        "Start of the agent to that container running again",
    ),
    time(
        Bench::AgentRestart,
        "touched",
        "Containers that the restart touched",
    ),
    time(
        Bench::BpfOverhead,
        "ratio",
        "Time of processes outside pods, with programs over without",
    ),
    time(
        Bench::BpfOverhead,
        "ns_per_run",
        "One run of a program, by the kernel's statistics",
    ),
    time(
        Bench::BpfOverhead,
        "runs_per_spawn",
        "Runs of a program for each process",
    ),
    time(Bench::BpfOverhead, "spawn", "One process"),
    cost(
        Bench::Footprint,
        "binary",
        "Size of the program, as far as it is loaded",
    ),
    time(Bench::Footprint, "start", "Start to healthy"),
    cost(Bench::Footprint, "rss", "Resident memory"),
    time(Bench::Footprint, "threads", "Threads"),
    time(Bench::CriFloor, "sandbox", "RunPodSandbox"),
    time(Bench::CriFloor, "create", "CreateContainer"),
    time(Bench::CriFloor, "start", "StartContainer"),
    time(Bench::CriFloor, "pod", "The three together"),
    time(
        Bench::CriFloor,
        "start_rate",
        "Pods started (more is better)",
    ),
    time(Bench::CriFloor, "stop", "StopPodSandbox"),
    time(Bench::CriFloor, "remove", "RemovePodSandbox"),
    time(
        Bench::CriFloor,
        "remove_rate",
        "Pods removed (more is better)",
    ),
];

pub(super) fn known(bench: Bench, measure: &str) -> Option<&'static Known> {
    KNOWN
        .iter()
        .find(|known| known.bench == bench && known.name == measure)
}

/// The place in the report; measures that are not known are last.
pub(super) fn place(bench: Bench, measure: &str) -> usize {
    KNOWN
        .iter()
        .position(|known| known.bench == bench && known.name == measure)
        .unwrap_or(KNOWN.len())
}

/// What a bench does, for its heading.
pub(super) fn about(bench: Bench) -> &'static str {
    match bench {
        Bench::CriFloor => "What the runtime itself needs, without any agent.",
        Bench::IdleCost => "What it costs when nothing happens: pods of one pause container each.",
        Bench::ExitDetect => {
            "Main processes killed (SIGKILL) one at a time, at moments spread over a second."
        }
        Bench::CrashRestart => {
            "A killed container's first replacement, before any back-off. The floor creates and \
             starts it as soon as the process is gone."
        }
        Bench::InitChain => {
            "A pod of init containers that end at once, then its main container. The floor waits \
             for the processes only."
        }
        Bench::OomDetect => "Containers that go beyond their memory limit.",
        Bench::ExitStorm => {
            "Many containers killed at once, each for the first time. The floor makes the \
             replacements four at a time."
        }
        Bench::PodStartSeq => "Pods placed one at a time.",
        Bench::PodStartBatch => "Pods placed at once.",
        Bench::AgentRestart => "The agent killed and started again while pods run.",
        Bench::BpfOverhead => "Processes outside pods, with and without the kernel programs.",
        Bench::Footprint => "The agent by itself.",
    }
}

/// What Skep, in one of its modes, is meant to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) bench: Bench,
    pub(super) measure: &'static str,
    pub(super) subject: Subject,
    /// Only with the parameter at one of these values; any where there are none.
    pub(super) only: Option<(&'static str, &'static [f64])>,
    pub(super) limit: Limit,
}

/// At most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Median(f64),
    P99(f64),
    Max(f64),
    /// The median, as a multiple of another subject's.
    Ratio(Subject, f64),
    /// The same; or 1.25 times the floor's median where that is more.
    RatioOrFloor(Subject, f64),
    /// The median, beyond the floor's.
    OverFloor(f64),
    /// The rise with each pod.
    PerPod(f64),
    /// Lost and doubled.
    Wrong(u64),
}

/// What 1.25 times the floor is, in [`Limit::RatioOrFloor`].
pub(super) const OVER_FLOOR: f64 = 1.25;

const fn target(bench: Bench, measure: &'static str, subject: Subject, limit: Limit) -> Target {
    Target {
        bench,
        measure,
        subject,
        only: None,
        limit,
    }
}

const KERNEL: Subject = Subject::SkepKernel;
const STREAM: Subject = Subject::SkepStream;
const DEFAULT: Subject = Subject::Kubelet;
const EVENTED: Subject = Subject::KubeletEvented;

/// In the order of the report.
pub(super) const TARGETS: &[Target] = &[
    target(Bench::ExitDetect, "known", KERNEL, Limit::Median(2.0)),
    target(Bench::ExitDetect, "known", KERNEL, Limit::P99(20.0)),
    target(
        Bench::ExitDetect,
        "known",
        KERNEL,
        Limit::Ratio(DEFAULT, 0.01),
    ),
    target(
        Bench::ExitDetect,
        "known",
        KERNEL,
        Limit::Ratio(EVENTED, 0.1),
    ),
    target(Bench::ExitDetect, "known", KERNEL, Limit::Wrong(0)),
    target(
        Bench::CrashRestart,
        "restarted",
        KERNEL,
        Limit::RatioOrFloor(DEFAULT, 0.2),
    ),
    target(
        Bench::CrashRestart,
        "restarted",
        KERNEL,
        Limit::RatioOrFloor(EVENTED, 0.75),
    ),
    target(
        Bench::InitChain,
        "chain",
        KERNEL,
        Limit::RatioOrFloor(DEFAULT, 0.12),
    ),
    target(
        Bench::InitChain,
        "chain",
        KERNEL,
        Limit::RatioOrFloor(EVENTED, 0.5),
    ),
    target(Bench::ExitStorm, "detected_last", KERNEL, Limit::Max(150.0)),
    target(Bench::ExitStorm, "detected", KERNEL, Limit::Wrong(0)),
    target(Bench::ExitStorm, "restarted", KERNEL, Limit::Wrong(0)),
    target(Bench::IdleCost, "list_calls", KERNEL, Limit::Median(2.0)),
    target(Bench::IdleCost, "agent_cpu", KERNEL, Limit::PerPod(0.02)),
    Target {
        only: Some(("pods", &[0.0, 100.0])),
        ..target(
            Bench::IdleCost,
            "agent_rss",
            KERNEL,
            Limit::Ratio(DEFAULT, 0.25),
        )
    },
    target(
        Bench::ExitDetect,
        "known",
        STREAM,
        Limit::Ratio(EVENTED, 1.0),
    ),
    target(
        Bench::CrashRestart,
        "restarted",
        STREAM,
        Limit::Ratio(EVENTED, 1.0),
    ),
    target(
        Bench::InitChain,
        "chain",
        STREAM,
        Limit::Ratio(EVENTED, 1.0),
    ),
    target(
        Bench::ExitStorm,
        "detected_last",
        STREAM,
        Limit::Ratio(EVENTED, 1.0),
    ),
    target(Bench::OomDetect, "known", KERNEL, Limit::Wrong(0)),
    target(Bench::OomDetect, "wrong", KERNEL, Limit::Wrong(0)),
    target(Bench::OomDetect, "wrong", KERNEL, Limit::Max(0.0)),
    target(
        Bench::PodStartSeq,
        "running",
        KERNEL,
        Limit::OverFloor(20.0),
    ),
    target(
        Bench::AgentRestart,
        "known",
        KERNEL,
        Limit::Ratio(DEFAULT, 0.3),
    ),
    target(Bench::AgentRestart, "touched", KERNEL, Limit::Max(0.0)),
    target(Bench::BpfOverhead, "ratio", KERNEL, Limit::Median(1.02)),
    target(
        Bench::BpfOverhead,
        "ns_per_run",
        KERNEL,
        Limit::Median(1000.0),
    ),
    target(Bench::Footprint, "rss", KERNEL, Limit::Ratio(DEFAULT, 0.25)),
];
