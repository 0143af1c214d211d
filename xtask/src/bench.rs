//! `cargo xtask bench [NAME...]`: measures each subject as a black box, in turns. A turn is one
//! subject in one round, in a box of its own, carried out by the program of `bench/`; here are the
//! order of turns, the quiet they need, and the files they fill.
//!
//! Records go to `bench/results/NAME.jsonl`, each turn's when it has ended; then `bench/RESULTS.md`
//! and its plots are made anew from all that lies there. Small versions (`--quick`) go to
//! `bench/results/quick` with a report of their own, so that none replaces a real result.

mod order;
mod quiet;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::{
    order::{Asked, Done, Size, Subject, Turn},
    quiet::Load,
};
use crate::{
    boxed::{Boxes, Machine},
    cache, command,
    upstream::{self, Part},
};

/// How long a turn waits for the machine to calm down after the one before.
const CALM_LIMIT: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// `pleg` (idle-cost, exit-detect, crash-restart, init-chain and exit-storm), or benches by
    /// name; all where none is named.
    #[arg(value_name = "NAME", value_parser = order::parse_asked)]
    names: Vec<Asked>,
    /// A small version, in minutes: fewer pods, one round.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The large version: more pods, more samples, five rounds.
    #[arg(long)]
    full: bool,
    /// Go on with the last run: only what has no records yet.
    #[arg(long)]
    resume: bool,
    /// Only these, joined by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// How often each subject has its turn.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// What the file of records is called; by the benches where it is not given.
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// The order of turns comes from it; another one each time where it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Measure on a busy machine too. The records say so.
    #[arg(long)]
    busy_ok: bool,
}

impl Options {
    fn size(&self) -> Size {
        match (self.quick, self.full) {
            (true, _) => Size::Quick,
            (false, true) => Size::Full,
            (false, false) => Size::Pleg,
        }
    }
}

/// It names a file.
fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
    if text.is_empty() || !text.chars().all(is_plain) {
        return Err("only letters, digits, \"-\", \"_\" and \"+\"".to_owned());
    }
    Ok(text.to_owned())
}

/// Where a run's records and report are.
struct Files {
    records: PathBuf,
    results: PathBuf,
    report: PathBuf,
    plots: PathBuf,
}

impl Files {
    fn new(size: Size, name: &str) -> Self {
        let bench = command::workspace().join("bench");
        let (results, base) = match size {
            Size::Quick => (bench.join("results/quick"), bench.join("results/quick")),
            Size::Pleg | Size::Full => (bench.join("results"), bench),
        };
        Self {
            records: results.join(format!("{name}.jsonl")),
            results,
            report: base.join("RESULTS.md"),
            plots: base.join("plots"),
        }
    }
}

/// The programs that were built for a run.
struct Programs {
    bench: PathBuf,
    skep: PathBuf,
    /// None where no subject needs it.
    kubelet: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let size = options.size();
    let benches = order::compute_benches(&options.names);
    let subjects = if options.subjects.is_empty() {
        order::SUBJECTS.to_vec()
    } else {
        options.subjects.clone()
    };
    let rounds = options.rounds.unwrap_or(size.rounds());
    let name = options
        .name
        .clone()
        .unwrap_or_else(|| order::compute_name(&options.names));
    let files = Files::new(size, &name);
    let last = options
        .resume
        .then(|| last_run(&files.records))
        .transpose()?;

    // Building makes the machine busy: what is busy before that is not ours.
    let is_busy_ok = options.busy_ok;
    refuse_if_busy(is_busy_ok)?;
    let programs = build(&subjects)?;
    let boxes = Boxes::prepare()?;

    let (run, seed, done) = match last {
        Some(last) => (last.run, options.seed.or(last.seed), last.done),
        None => (now_as_id(), options.seed, Vec::new()),
    };
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let turns = order::plan_turns(seed, rounds, &subjects, &benches, &done);
    println!(
        "bench: run {run}, seed {seed}, {} turns, records in {}",
        turns.len(),
        files.records.display()
    );
    let driver = Driver {
        boxes,
        programs,
        files,
        run,
        seed,
        size,
        is_busy_ok,
    };
    let failed = driver.all(&turns)?;
    driver.report()?;
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("bench: {} of {} turns failed:", failed.len(), turns.len());
    for line in failed {
        println!("  {line}");
    }
    Ok(ExitCode::FAILURE)
}

fn now_as_id() -> String {
    jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string()
}

fn refuse_if_busy(is_busy_ok: bool) -> Result<()> {
    let load = Load::look()?;
    let Some(why) = load.compute_refusal() else {
        return Ok(());
    };
    if is_busy_ok {
        println!("bench: {why}; measured all the same, and the records say so");
        return Ok(());
    }
    bail!("{why}; wait until it is quiet, or measure all the same with --busy-ok");
}

/// What an earlier run has left.
struct Last {
    run: String,
    seed: Option<u64>,
    done: Vec<Done>,
}

fn last_run(records: &Path) -> Result<Last> {
    let text = fs::read_to_string(records)
        .with_context(|| format!("no run to go on with: reading {}", records.display()))?;
    let (run, lines) = order::last_run(&text)
        .with_context(|| format!("no run to go on with: {} has no records", records.display()))?;
    let seed = lines
        .iter()
        .find_map(|line| line.pointer("/driven/seed")?.as_u64());
    let done = lines.iter().filter_map(Done::of).collect();
    Ok(Last { run, seed, done })
}

fn build(subjects: &[Subject]) -> Result<Programs> {
    println!("bench: building the agent and the bench");
    let messages = command::read_with_errors(
        command::cargo()
            .args(["build", "--release", "--package", "agent"])
            .args(["--package", "bench", "--bin", "skep", "--bin", "skep-bench"])
            .args(["--message-format", "json-render-diagnostics"]),
    )?;
    let built = |name: &str| {
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message.pointer("/target/name").is_some_and(|it| it == name))
            .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
            .next_back()
            .with_context(|| format!("cargo built no program {name}"))
    };
    let kubelet = subjects
        .iter()
        .any(|subject| subject.is_kubelet())
        .then(|| -> Result<PathBuf> {
            let parts = upstream::ensure(&[Part::Kubelet])?;
            let dir = parts.dir(Part::Kubelet).context("it was asked for")?;
            Ok(dir.join("kubelet"))
        })
        .transpose()?;
    Ok(Programs {
        bench: built("skep-bench")?,
        skep: built("skep")?,
        kubelet,
    })
}

struct Driver {
    boxes: Boxes,
    programs: Programs,
    files: Files,
    run: String,
    seed: u64,
    size: Size,
    is_busy_ok: bool,
}

impl Driver {
    /// Carries out the turns; those that failed, as sentences.
    fn all(&self, turns: &[Turn]) -> Result<Vec<String>> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .context("catching interrupts")?;
        }
        fs::create_dir_all(&self.files.results)
            .with_context(|| format!("making {}", self.files.results.display()))?;
        let mut failed = Vec::new();
        let started = Instant::now();
        for (at, turn) in turns.iter().enumerate() {
            println!("== turn {} of {}: {turn}", at + 1, turns.len());
            let is_quiet = self.calm_down(&interrupted)?;
            let turn_started = Instant::now();
            if let Err(error) = self.turn(turn, is_quiet) {
                println!("   failed: {error:#}");
                failed.push(format!("{turn}: {error:#}"));
            }
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted; --resume goes on from here");
            }
            let left = order::compute_left(started.elapsed(), at + 1, turns.len());
            println!(
                "   {:.0} s; {} turns left, about {:.0} min",
                turn_started.elapsed().as_secs_f64(),
                turns.len() - at - 1,
                left.as_secs_f64() / 60.0
            );
        }
        Ok(failed)
    }

    /// Waits until the processors are idle again; whether they are. The load average is no measure
    /// here: it remembers the turn before for minutes.
    fn calm_down(&self, interrupted: &AtomicBool) -> Result<bool> {
        let until = Instant::now() + CALM_LIMIT;
        loop {
            let load = Load::look()?;
            if load.is_idle() {
                return Ok(true);
            }
            if self.is_busy_ok || interrupted.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if Instant::now() > until {
                println!("   the machine does not calm down: {}", load.busiest());
                return Ok(false);
            }
        }
    }

    fn turn(&self, turn: &Turn, is_quiet: bool) -> Result<()> {
        // A file of its own, so that a turn that is cut off leaves no half of its records.
        let part = cache::dir()?.join(format!("bench-{}.jsonl", std::process::id()));
        remove(&part)?;
        let args = self.args(turn, &part)?;
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let before = Machine::look()?;
        let ended = self.boxes.run(
            &self.programs.bench,
            &args,
            command::workspace(),
            self.size.limit(),
            |line| println!("   {line}"),
        )?;
        for line in self.boxes.clean(&before)? {
            println!("   left behind: {line}");
        }
        let count = self.keep(&part, is_quiet)?;
        remove(&part)?;
        if !ended.success {
            let why = order::reason_in(&ended.output);
            bail!("{why} ({count} records kept)");
        }
        if count == 0 {
            bail!("it wrote no records");
        }
        Ok(())
    }

    fn args(&self, turn: &Turn, out: &Path) -> Result<Vec<String>> {
        let text = |path: &Path| -> Result<String> {
            let text = path.to_str();
            Ok(text.context("a folder's name is no text")?.to_owned())
        };
        let benches: Vec<_> = turn.benches.iter().map(|bench| bench.name()).collect();
        let mut args = vec!["turn".to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("run", self.run.clone());
        add("round", turn.round.to_string());
        add("subject", turn.subject.name());
        add("bench", benches.join(","));
        add("size", self.size.name());
        add("out", text(out)?);
        add("skep", text(&self.programs.skep)?);
        if let Some(kubelet) = &self.programs.kubelet {
            add("kubelet", text(kubelet)?);
        }
        Ok(args)
    }

    /// Moves a turn's records to the run's; how many there were.
    fn keep(&self, part: &Path, is_quiet: bool) -> Result<usize> {
        if !part.exists() {
            return Ok(0);
        }
        let text = fs::read_to_string(part).context("reading the turn's records")?;
        let driven = json!({
            "seed": self.seed,
            "size": self.size.name(),
            "busy_ok": self.is_busy_ok,
            "quiet": is_quiet,
        });
        let lines = order::add_driven(&text, &driven)?;
        let file = &self.files.records;
        let mut out = fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("opening {}", file.display()))?;
        out.write_all(lines.as_bytes())
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(lines.lines().count())
    }

    fn report(&self) -> Result<()> {
        command::run(
            Command::new(&self.programs.bench)
                .arg("report")
                .arg("--results")
                .arg(&self.files.results)
                .arg("--out")
                .arg(&self.files.report)
                .arg("--plots")
                .arg(&self.files.plots),
        )?;
        println!("bench: report in {}", self.files.report.display());
        Ok(())
    }
}

fn remove(file: &Path) -> Result<()> {
    if file.exists() {
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}
