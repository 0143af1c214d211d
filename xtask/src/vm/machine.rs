//! Runs the machine: the emulator as a child that ends with this task, the serial line as its
//! output, and what each job printed.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::kernel::Unpacked;
use crate::command;

/// What the machine is to run.
pub(super) struct Job {
    pub(super) name: String,
    /// A line of shell.
    pub(super) command: String,
}

/// What the init prints before a job.
pub(super) fn begin(job: &str) -> String {
    format!("init: {job} begins")
}

/// And after it, followed by its exit status.
pub(super) fn end(job: &str) -> String {
    format!("init: {job} ended with ")
}

/// How a job went.
#[derive(Debug)]
pub(super) struct Run {
    name: String,
    pub(super) output: String,
    /// With status 0.
    pub(super) ended_well: bool,
    pub(super) time: Duration,
}

/// How the machine went.
#[derive(Debug)]
pub(super) struct Ended {
    /// Everything from its serial line.
    pub(super) output: String,
    pub(super) time: Duration,
    runs: Vec<Run>,
}

impl Ended {
    /// None for a job that did not begin.
    pub(super) fn of(&self, job: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.name == job)
    }
}

/// Boots it and waits for its end, at most `limit`. Each line goes to `each` as it comes.
pub(super) fn run(
    kernel: &Unpacked,
    image: File,
    limit: Duration,
    mut each: impl FnMut(&str),
) -> Result<Ended> {
    let started = Instant::now();
    // The emulator is killed when this task ends, in whatever way.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        // Several processors, each emulated by a thread of its own, are less reliable.
        .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max"])
        .args(["-smp", "1", "-m", "2G"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "file:/dev/stdout"])
        .arg("-kernel")
        .arg(&kernel.image)
        .args(["-initrd", "/dev/stdin"])
        // Less than errors, of which a memory kill prints a page; a panic ends the machine.
        .args([
            "-append",
            "console=ttyS0 loglevel=3 panic=-1 mitigations=off",
        ])
        .stdin(image)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", command::line(&command)))?;
    let out = child.stdout.take().context("the serial line")?;
    // A full queue holds the machine back until its lines are taken.
    let (lines_tx, lines) = mpsc::sync_channel(1024);
    let mut journal = Journal::default();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for line in BufReader::new(out).split(b'\n') {
                let Ok(line) = line else { return };
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if lines_tx.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match lines.recv_timeout(limit.saturating_sub(started.elapsed())) {
                Ok(line) => {
                    each(&line);
                    journal.add(line, started.elapsed());
                }
                Err(RecvTimeoutError::Timeout) => {
                    child.kill().context("killing the emulator")?;
                    let line = format!("killed after {} s", limit.as_secs());
                    each(&line);
                    journal.add(line, started.elapsed());
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        drop(lines);
        child.wait().context("waiting for the emulator")
    })?;
    Ok(journal.finish(started.elapsed()))
}

/// The serial line's text, by job.
#[derive(Debug, Default)]
struct Journal {
    output: String,
    runs: Vec<Run>,
    /// When the job began that runs.
    running: Option<Duration>,
}

impl Journal {
    fn add(&mut self, line: String, at: Duration) {
        self.output.push_str(&line);
        self.output.push('\n');
        let word = line.strip_prefix("init: ");
        if let Some(name) = word.and_then(|rest| rest.strip_suffix(" begins")) {
            self.running = Some(at);
            self.runs.push(Run {
                name: name.to_owned(),
                output: String::new(),
                ended_well: false,
                time: Duration::ZERO,
            });
            return;
        }
        let (Some(began), Some(run)) = (self.running, self.runs.last_mut()) else {
            return;
        };
        run.time = at.saturating_sub(began);
        if let Some(status) = line.strip_prefix(&end(&run.name)) {
            run.ended_well = status == "0";
            self.running = None;
            return;
        }
        run.output.push_str(&line);
        run.output.push('\n');
    }

    fn finish(self, time: Duration) -> Ended {
        Ended {
            output: self.output,
            time,
            runs: self.runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(lines: &[&str]) -> Ended {
        let mut journal = Journal::default();
        for (at, line) in (0..).zip(lines) {
            journal.add((*line).to_owned(), Duration::from_secs(at));
        }
        journal.finish(Duration::from_secs(99))
    }

    #[test]
    fn what_a_job_printed_is_told_apart_from_the_rest() {
        let ended = ended(&[
            "init: user space after 2 s",
            "init: kernel begins",
            "test result: ok",
            "init: kernel ended with 0",
            "init: vm begins",
            "test result: FAILED",
            "init: vm ended with 101",
            "init: ends after 9 s",
        ]);
        let kernel = ended.of("kernel").expect("it ran");
        assert_eq!(kernel.output, "test result: ok\n");
        assert!(kernel.ended_well);
        assert_eq!(kernel.time, Duration::from_secs(2));
        let vm = ended.of("vm").expect("it ran");
        assert_eq!(vm.output, "test result: FAILED\n");
        assert!(!vm.ended_well);
    }

    #[test]
    fn a_job_whose_machine_died_has_not_ended_well() {
        let ended = ended(&["init: vm begins", "test result: ok", "Kernel panic"]);
        let vm = ended.of("vm").expect("it began");
        assert!(!vm.ended_well);
        assert_eq!(vm.output, "test result: ok\nKernel panic\n");
        assert!(ended.of("kernel").is_none());
    }
}
