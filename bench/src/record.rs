//! The lines of `bench/results/NAME.jsonl`: one for each group of samples, which is what one
//! subject came to in one round of one bench, for one measure under one set of parameters.
//!
//! Written by a turn ([`crate::turn`]) and read by the report, which knows nothing else of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is measured. All are driven as black boxes, on the same containerd.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Upstream's kubelet with its defaults.
    Kubelet,
    /// With the gate `EventedPLEG`.
    KubeletEvented,
    /// Skep as it comes: the kernel's events.
    SkepKernel,
    /// Without eBPF: the runtime's events.
    SkepStream,
    /// Without either: a listing each second.
    SkepListing,
    /// No agent: the bench drives the runtime itself, as fast as that goes.
    Floor,
}

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Bench {
    CriFloor,
    IdleCost,
    ExitDetect,
    CrashRestart,
    InitChain,
    OomDetect,
    ExitStorm,
    PodStartSeq,
    PodStartBatch,
    AgentRestart,
    BpfOverhead,
    Footprint,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Of the whole run, the same in each line of it: the time of its start, and nothing else has it.
    pub run: String,
    pub bench: Bench,
    /// What was measured, `snake_case`: `known`, `restarted`, `agent_cpu`. The benches' modules name
    /// and explain theirs.
    pub measure: String,
    pub subject: Subject,
    /// From 1.
    pub round: u32,
    /// What the measure was taken under: `pods`, `how`, `steps`. Numbers and words.
    #[serde(default)]
    pub params: BTreeMap<String, serde_json::Value>,
    /// How many samples.
    pub n: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
    /// `ms`, `s`, `mcores`, `MiB`, `/min`, `/s`, `count`, `ns`, `ratio`.
    pub unit: String,
    /// All of them, in the order taken (a storm's: by time), for distributions and confidence.
    pub samples: Vec<f64>,
    /// Things that should have been seen and were not.
    #[serde(default)]
    pub lost: u64,
    /// Things seen more often than they happened.
    #[serde(default)]
    pub doubled: u64,
    pub host: Host,
    pub versions: Versions,
    /// The peer's feature gates, where the subject has any.
    #[serde(default)]
    pub gates: BTreeMap<String, bool>,
}

/// The machine, as it was when the turn began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub kernel: String,
    /// `v1`, `v2` or `hybrid`.
    pub cgroup: String,
    pub cores: u32,
    pub memory_mib: u64,
    /// The load average of the last minute before the turn.
    pub load: f64,
    /// CPU pressure (`some avg10`), where the kernel tells it.
    #[serde(default)]
    pub psi: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// What the subject says of itself.
    pub agent: String,
    pub containerd: String,
    pub runc: String,
}

/// A line as the driver keeps it: the turn's record, and how the turn was driven.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Line {
    #[serde(flatten)]
    pub record: Record,
    #[serde(default)]
    pub driven: Option<Driven>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Driven {
    /// Gives the order of turns again.
    pub seed: u64,
    /// `quick`, `pleg` or `full`.
    pub size: String,
    /// Whether a busy machine was accepted.
    pub busy_ok: bool,
    /// Whether the processors were idle when the turn began.
    pub quiet: bool,
}
