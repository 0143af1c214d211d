//! The windows with tools, and the pictures of what they saw.

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use inferno::{
    collapse::{Collapse as _, perf},
    flamegraph,
};

use super::read;
use crate::command;

/// Samples a second of the agent's own time: an idle agent uses little of it.
const RATE: &str = "20000";

/// A flame graph of CPU time. The software clock is used: virtual machines often have no other.
pub(super) fn cpu(pid: u32, window: Duration, file: &Path) -> Result<()> {
    let data = file.with_extension("data");
    let record = || {
        command::read(
            Command::new("perf")
                .args(["record", "-q", "-e", "cpu-clock", "-F", RATE, "-p"])
                .arg(pid.to_string())
                .args(["--call-graph", "dwarf,16384", "-o"])
                .arg(&data)
                .args(["--", "sleep"])
                .arg(window.as_secs().to_string()),
        )
    };
    // It gives up when one of the threads that it found ends before it is attached.
    record().or_else(|_| record()).or_else(|_| record())?;
    let stacks = file.with_extension("stacks");
    let script = file.with_extension("script");
    let status = Command::new("perf")
        .args(["script", "--no-inline", "-i"])
        .arg(&data)
        .stdout(create(&script)?)
        .stderr(Stdio::null())
        .status()
        .context("starting perf script")?;
    ensure!(status.success(), "perf script ended with {status}");
    perf::Folder::from(perf::Options::default())
        .collapse(open(&script)?, create(&stacks)?)
        .context("folding the stacks")?;
    for file in [&data, &script] {
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
    }
    flame(&stacks, "CPU time of the idle agent", "samples")
}

/// How often each system call was made.
pub(super) fn calls(pid: u32, window: Duration, file: &Path) -> Result<()> {
    let file = file.with_extension("txt");
    let mut strace = Command::new("strace")
        .args(["-c", "-f", "-qq", "-S", "calls", "-o"])
        .arg(&file)
        .arg("-p")
        .arg(pid.to_string())
        .spawn()
        .context("starting strace")?;
    std::thread::sleep(window);
    command::run(Command::new("kill").args(["-INT", &strace.id().to_string()]))?;
    strace.wait().context("waiting for strace")?;
    for line in read(&file)?.lines().take(8) {
        println!("   {line}");
    }
    Ok(())
}

/// A flame graph of the bytes that were held at the end, and the places that hold the most.
pub(super) fn heap(file: &Path) -> Result<()> {
    let recorded = ["zst", "gz"]
        .iter()
        .map(|ending| PathBuf::from(format!("{}.{ending}", file.display())))
        .find(|file| file.exists())
        .context("heaptrack wrote nothing")?;
    let stacks = file.with_extension("stacks");
    let text = file.with_extension("txt");
    let status = Command::new("heaptrack_print")
        .args(["--flamegraph-cost-type", "leaked", "-F"])
        .arg(&stacks)
        .args(["-a0", "-T0", "-p1", "-l1", "-n", "25", "-f"])
        .arg(&recorded)
        .stdout(create(&text)?)
        .stderr(Stdio::null())
        .status()
        .context("starting heaptrack_print")?;
    ensure!(status.success(), "heaptrack_print ended with {status}");
    fs::remove_file(&recorded).with_context(|| format!("removing {}", recorded.display()))?;
    let lines = read(&text)?;
    for line in lines.lines().rev().take(8) {
        println!("   {line}");
    }
    flame(&stacks, "Bytes that the idle agent holds", "bytes")
}

fn flame(stacks: &Path, title: &str, unit: &str) -> Result<()> {
    let mut options = flamegraph::Options::default();
    title.clone_into(&mut options.title);
    unit.clone_into(&mut options.count_name);
    let svg = create(&stacks.with_extension("svg"))?;
    flamegraph::from_reader(&mut options, open(stacks)?, svg)
        .with_context(|| format!("drawing {}", stacks.display()))
}

fn open(file: &Path) -> Result<BufReader<File>> {
    let open = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    Ok(BufReader::new(open))
}

fn create(file: &Path) -> Result<File> {
    File::create(file).with_context(|| format!("making {}", file.display()))
}
