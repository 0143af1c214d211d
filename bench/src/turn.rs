//! One turn: one subject, one round, the asked benches in the fixed order of
//! [`crate::benches::ORDER`], on one containerd and one growing set of pods. Runs in a box.
//!
//! A bench that fails says so on stderr and leaves no records; the others go on, and the turn ends
//! with an error.

use std::{
    fs::File,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::{
    benches::{self, kills::Kill},
    cost::BpfStats,
    node::{self, Node},
    pods::{self, Pod},
    record::{Bench, Host, Record, Subject, Versions},
    stats::quantile,
    subject::{self, Programs, Running},
    watch::Watch,
};

/// Pods of this many are started in less on a busy machine.
pub const GROWTH: Duration = Duration::from_secs(120);
/// How many pods the floor makes at a time, when they are only to be there: as fast as this runtime
/// goes.
pub const FLOOR_CONCURRENCY: usize = 4;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Size {
    /// A small version, in minutes.
    Quick,
    /// What the comparison of the PLEGs needs.
    Pleg,
    /// The sizes of a published result.
    Full,
}

impl Size {
    /// One value for each size.
    pub fn pick<T>(self, quick: T, pleg: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Pleg => pleg,
            Self::Full => full,
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The run that this turn belongs to.
    #[arg(long)]
    run: String,
    /// From 1.
    #[arg(long)]
    round: u32,
    #[arg(long, value_enum)]
    subject: Subject,
    /// Which benches, joined by commas, in any order.
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    bench: Vec<Bench>,
    #[arg(long, value_enum)]
    size: Size,
    /// Records are appended to this file.
    #[arg(long)]
    out: PathBuf,
    /// Upstream's kubelet, for the subjects that need it.
    #[arg(long)]
    kubelet: Option<PathBuf>,
    /// The agent's release binary, for the subjects that need it.
    #[arg(long)]
    skep: Option<PathBuf>,
}

/// Everything that a bench has at hand.
#[derive(Debug)]
pub struct Turn {
    pub subject: Subject,
    pub size: Size,
    pub round: u32,
    pub node: Node,
    pub running: Running,
    pub watch: Watch,
    pub bpf: BpfStats,
    /// The programs, for benches that start one themselves.
    pub programs: Programs,
    /// The idle pods that are there, of one pause container, with the number of kills of each.
    pods: Vec<(String, u32)>,
    /// How many pods were ever named.
    named: usize,
    /// What `exit-detect` killed, for `crash-restart` to read: one kill tells both.
    pub kills: Option<Vec<Kill>>,
    sink: Sink,
}

/// One group of samples on its way to the file.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    pub bench: Bench,
    pub measure: &'a str,
    pub unit: &'a str,
    /// In the order taken.
    pub samples: Vec<f64>,
    pub lost: u64,
    pub doubled: u64,
    pub params: serde_json::Value,
}

impl<'a> Group<'a> {
    pub fn new(bench: Bench, measure: &'a str, unit: &'a str, samples: Vec<f64>) -> Self {
        Self {
            bench,
            measure,
            unit,
            samples,
            lost: 0,
            doubled: 0,
            params: json!({}),
        }
    }

    /// Some of what was to be measured never came: those count as lost.
    pub fn with_lost(bench: Bench, measure: &'a str, unit: &'a str, all: &[Option<f64>]) -> Self {
        let samples: Vec<_> = all.iter().copied().flatten().collect();
        Self {
            lost: (all.len() - samples.len()) as u64,
            ..Self::new(bench, measure, unit, samples)
        }
    }

    /// An object.
    pub fn params(self, params: serde_json::Value) -> Self {
        Self { params, ..self }
    }

    pub fn doubled(self, doubled: u64) -> Self {
        Self { doubled, ..self }
    }
}

/// Where records go, and what all of a turn share.
#[derive(Debug)]
struct Sink {
    file: File,
    /// Of the bench that runs: a bench that fails has none, so that it is done again.
    lines: Vec<u8>,
    run: String,
    host: Host,
    versions: Versions,
}

/// Carries out a turn.
pub async fn run(args: Args) -> Result<()> {
    // Before anything of the turn's own runs.
    let host = node::host()?;
    let file = File::options().create(true).append(true).open(&args.out);
    let file = file.with_context(|| format!("opening {}", args.out.display()))?;
    let programs = Programs {
        kubelet: args.kubelet,
        skep: args.skep,
    };
    let bpf = BpfStats::enable();
    let node = Node::start().await?;
    let started = start(args.subject, &programs, &node).await;
    let (watch, running, versions) = match started {
        Ok(started) => started,
        Err(error) => {
            eprintln!("the end of containerd's log:\n{}", node.log_end());
            node.stop().await?;
            return Err(error);
        }
    };
    let mut turn = Turn {
        subject: args.subject,
        size: args.size,
        round: args.round,
        node,
        running,
        watch,
        bpf,
        programs,
        pods: Vec::new(),
        named: 0,
        kills: None,
        sink: Sink {
            file,
            lines: Vec::new(),
            run: args.run,
            host,
            versions,
        },
    };
    let mut failed = Vec::new();
    for bench in benches::ORDER {
        if !args.bench.contains(&bench) {
            continue;
        }
        eprintln!("{:?} round {}: {bench:?}", args.subject, args.round);
        if let Err(error) = Box::pin(benches::run(bench, &mut turn)).await {
            eprintln!("{:?}: {bench:?} failed: {error:#}", args.subject);
            if let Some(agent) = turn.running.agent() {
                eprintln!("the end of its log:\n{}", agent.log_end());
            }
            failed.push(bench);
            turn.sink.lines.clear();
        }
        turn.sink.keep()?;
    }
    // Its end is no surprise from here on.
    drop(turn.watch);
    let stopped = turn.running.stop().await;
    turn.node.stop().await?;
    stopped?;
    if !failed.is_empty() {
        bail!("failed: {failed:?}");
    }
    Ok(())
}

impl Sink {
    /// Appends what a bench recorded.
    fn keep(&mut self) -> io::Result<()> {
        self.file.write_all(&std::mem::take(&mut self.lines))
    }
}

async fn start(
    subject: Subject,
    programs: &Programs,
    node: &Node,
) -> Result<(Watch, Running, Versions)> {
    let watch = Watch::open(&node.cri, Running::suffix(subject)).await?;
    let running = Running::start(subject, programs, node).await?;
    let versions = subject::versions(subject, programs, node).await?;
    Ok((watch, running, versions))
}

impl Turn {
    /// Adds a record. A group without any sample has zeros, `n` 0 and all of it lost.
    pub fn record(&mut self, group: Group<'_>) -> Result<()> {
        let at = |q| quantile(&group.samples, q).unwrap_or(0.0);
        let record = Record {
            run: self.sink.run.clone(),
            bench: group.bench,
            measure: group.measure.to_owned(),
            subject: self.subject,
            round: self.round,
            params: serde_json::from_value(group.params).context("params are no object")?,
            n: group.samples.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
            unit: group.unit.to_owned(),
            samples: group.samples,
            lost: group.lost,
            doubled: group.doubled,
            host: self.sink.host.clone(),
            versions: self.sink.versions.clone(),
            gates: self
                .running
                .agent()
                .map(|agent| agent.gates().clone())
                .unwrap_or_default(),
        };
        serde_json::to_writer(&mut self.sink.lines, &record)?;
        self.sink.lines.push(b'\n');
        Ok(())
    }

    /// A name that no pod of this turn has had.
    pub fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{:04}", self.named)
    }

    /// Adds idle pods until there are so many, and waits until all have started. What is there
    /// already stays.
    pub async fn grow_to(&mut self, count: usize) -> Result<()> {
        let mark = self.watch.mark();
        let missing = count.saturating_sub(self.pods.len());
        let names: Vec<_> = (0..missing).map(|_| self.name("p")).collect();
        let running = &self.running;
        futures::stream::iter(&names)
            .map(|name| async move { running.place(&Pod::pause(name)).await })
            .buffer_unordered(FLOOR_CONCURRENCY)
            .try_collect::<Vec<_>>()
            .await?;
        let waited: Vec<_> = names.iter().map(String::as_str).collect();
        self.watch
            .all_started(mark, GROWTH, &waited, pods::MAIN)
            .await?;
        self.adopt(names);
        Ok(())
    }

    /// The idle pods' names.
    pub fn pods(&self) -> Vec<String> {
        self.pods.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Takes running pods of one pause container in among the idle ones.
    pub fn adopt(&mut self, names: Vec<String>) {
        self.pods.extend(names.into_iter().map(|name| (name, 0)));
    }

    /// Removes all idle pods.
    pub async fn clear(&mut self) -> Result<()> {
        let names = self.pods();
        self.pods.clear();
        self.remove(&names).await
    }

    /// How many idle pods there are.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Idle pods none of whose containers was ever killed: no back-off is in play.
    pub fn fresh(&self) -> Vec<String> {
        let fresh = self.pods.iter().filter(|(_, kills)| *kills == 0);
        fresh.map(|(name, _)| name.clone()).collect()
    }

    /// Notes that the pod's container was killed.
    pub fn mark_killed(&mut self, pod: &str) {
        for (name, kills) in &mut self.pods {
            if name == pod {
                *kills += 1;
            }
        }
    }

    /// Replaces idle pods whose containers were killed by new ones.
    pub async fn refresh(&mut self) -> Result<()> {
        let count = self.pods.len();
        let (killed, fresh) = std::mem::take(&mut self.pods)
            .into_iter()
            .partition(|(_, kills)| *kills > 0);
        self.pods = fresh;
        let killed: Vec<(String, u32)> = killed;
        let killed: Vec<_> = killed.into_iter().map(|(name, _)| name).collect();
        self.remove(&killed).await?;
        self.grow_to(count).await
    }

    /// Removes pods, and waits until their sandboxes are gone. In a small version until they are
    /// stopped: upstream's kubelet removes them a minute later.
    pub async fn remove(&mut self, names: &[String]) -> Result<()> {
        let running = &self.running;
        futures::stream::iter(names)
            .map(|name| async move { running.remove(name).await })
            .buffer_unordered(FLOOR_CONCURRENCY)
            .try_collect::<Vec<_>>()
            .await?;
        let suffix = Running::suffix(self.subject);
        let deadline = tokio::time::Instant::now() + GROWTH;
        let is_stopped_enough = self.size == Size::Quick;
        loop {
            let left = self.node.cri.sandboxes(is_stopped_enough).await?;
            let is_asked = |left: &String| {
                let name = left.strip_suffix(suffix).unwrap_or(left);
                names.iter().any(|asked| asked == name)
            };
            if !left.iter().any(is_asked) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                bail!("pods are not gone within {GROWTH:?}");
            }
            // Between two measurements, so that a listing disturbs none.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
