//! `cargo xtask test`: every check and every test, those that need root in boxes, and a last line
//! with how many passed. A test that was skipped has failed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{
    boxed::{Boxes, Machine},
    build_ebpf::{self, Checked},
    cache, command, vm,
};

/// One test program, all its tests together.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// The program of the long runs, which are `cargo xtask accept`.
pub(crate) const ACCEPT: &str = "accept";

/// How a function of a test program is marked that is a part other tests have the program play.
const PART: &str = "ignored, a part that other tests";

/// What one step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

/// One check that held, and one that did not.
const PASSED: Count = Count {
    passed: 1,
    failed: 0,
};
const FAILED: Count = Count {
    passed: 0,
    failed: 1,
};

impl Count {
    /// From what a test program printed: its result lines, and lines that begin with "SKIPPED",
    /// each of which is a test that said it passed and did nothing. What is ignored has failed too,
    /// unless it is no test ([`PART`]). A program that printed no result has failed.
    pub(crate) fn of_tests(output: &str, ended_well: bool) -> Self {
        let mut count = Self::default();
        let mut has_result = false;
        for line in output.lines() {
            if let Some(result) = line.trim().strip_prefix("test result: ") {
                has_result = true;
                count.passed += number_before(result, " passed");
                count.failed +=
                    number_before(result, " failed") + number_before(result, " ignored");
            }
        }
        let lines = |is: fn(&str) -> bool| output.lines().filter(|line| is(line)).count();
        let skipped = lines(|line| line.starts_with("SKIPPED"));
        let parts = lines(|line| line.contains(PART));
        count.failed = count.failed.saturating_sub(parts);
        count.passed = count.passed.saturating_sub(skipped);
        count.failed += skipped;
        if !has_result || (!ended_well && count.failed == 0) {
            count.failed += 1;
        }
        count
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The number that stands right before the word.
fn number_before(text: &str, word: &str) -> usize {
    text.find(word)
        .and_then(|at| text[..at].rsplit(' ').next()?.parse().ok())
        .unwrap_or(0)
}

/// All steps, their times and counts.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<(String, Count, Duration)>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &str, count: Count, time: Duration) {
        println!(
            "== {name}: {} passed, {} failed ({:.0} s)",
            count.passed,
            count.failed,
            time.as_secs_f64()
        );
        self.rows.push((name.to_owned(), count, time));
    }

    /// A step that passes or fails as a whole.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let started = Instant::now();
        let result = check();
        if let Err(error) = &result {
            println!("{name}: {error:#}");
        }
        let count = if result.is_ok() { PASSED } else { FAILED };
        self.add(name, count, started.elapsed());
    }

    /// Prints the table and the summary line.
    pub(crate) fn finish(&self) -> ExitCode {
        let mut total = Count::default();
        println!(
            "\n{:<34} {:>7} {:>7} {:>8}",
            "step", "passed", "failed", "time"
        );
        for (name, count, time) in &self.rows {
            total.add(*count);
            println!(
                "{name:<34} {:>7} {:>7} {:>6.0} s",
                count.passed,
                count.failed,
                time.as_secs_f64()
            );
        }
        println!("\n{} passed, {} failed", total.passed, total.failed);
        if total.failed == 0 && total.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run() -> Result<ExitCode> {
    let mut report = Report::default();
    let started = Instant::now();
    let boxes = Boxes::prepare();
    if let Err(error) = &boxes {
        println!("set-up: {error:#}");
    }
    let count = if boxes.is_ok() { PASSED } else { FAILED };
    report.add("set-up", count, started.elapsed());
    report.check("format", || {
        command::run(cargo().args(["fmt", "--all", "--", "--check"]))
    });
    report.check("lints", || {
        command::run(
            cargo()
                .args(["clippy", "--quiet", "--workspace", "--all-targets", "--"])
                .args(["-D", "warnings"]),
        )
    });
    kernel_programs(&mut report);
    if command::find("cargo-deny").is_some() {
        // Advisories would need the network.
        report.check("dependencies", || {
            command::run(cargo().args(["deny", "check", "bans", "licenses", "sources"]))
        });
    } else {
        println!("== dependencies: not checked, cargo-deny is not installed");
    }
    unit_tests(&mut report)?;
    test_folders(boxes.as_ref().ok(), &mut report)?;
    Ok(report.finish())
}

fn kernel_programs(report: &mut Report) {
    let started = Instant::now();
    let (name, count) = match build_ebpf::check() {
        Ok(Checked::Compared) => ("kernel programs", PASSED),
        Ok(Checked::NotCompared(missing)) => {
            println!("kernel programs: not built from their sources: {missing}");
            // The table tells it too: it is less.
            ("kernel programs, sources alone", PASSED)
        }
        Err(error) => {
            println!("kernel programs: {error:#}");
            ("kernel programs", FAILED)
        }
    };
    report.add(name, count, started.elapsed());
}

fn cargo() -> Command {
    let mut command = command::cargo();
    command.envs(build_ebpf::object_to_test());
    command
}

fn unit_tests(report: &mut Report) -> Result<()> {
    let started = Instant::now();
    let output = cargo()
        .args(["test", "--workspace", "--lib", "--bins", "--no-fail-fast"])
        .args(["--", "--show-output"])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = Count::of_tests(&text, output.status.success());
    keep("unit", &text, count)?;
    report.add("unit tests", count, started.elapsed());
    Ok(())
}

/// The test programs of the packages' `tests` folders: the agent's as root, in a box each, and then
/// a look at what they left; the others' as they are.
fn test_folders(boxes: Option<&Boxes>, report: &mut Report) -> Result<()> {
    let started = Instant::now();
    // Of the whole workspace, as the unit tests were: another choice of packages has other features,
    // and would build the dependencies again.
    let programs = match test_programs("*") {
        Ok(programs) => programs,
        Err(error) => {
            println!("building the tests: {error:#}");
            report.add("building the tests", FAILED, started.elapsed());
            return Ok(());
        }
    };
    let agent = command::workspace().join("agent");
    let before = Machine::look()?;
    let is_elsewhere = |program: &&Program| [ACCEPT, vm::VM].contains(&program.name.as_str());
    for program in programs.iter().filter(|program| !is_elsewhere(program)) {
        let name = format!("{}/{}", program.package(), program.name);
        println!("== {name} ...");
        let started = Instant::now();
        let (output, success) = if program.dir == agent {
            // Without boxes nothing of this can run, and that was counted.
            let Some(boxes) = boxes else { continue };
            let ended = boxes.run(
                &program.file,
                &["--show-output"],
                &program.dir,
                LIMIT,
                |line| {
                    if line.starts_with("test ") && !line.starts_with("test result") {
                        println!("   {line}");
                    }
                },
            )?;
            (ended.output, ended.success)
        } else {
            let output = Command::new(&program.file)
                .arg("--show-output")
                .current_dir(&program.dir)
                .env("RUST_BACKTRACE", "0")
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("starting {}", program.file.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (text, output.status.success())
        };
        let count = Count::of_tests(&output, success);
        keep(&name.replace('/', "-"), &output, count)?;
        report.add(&name, count, started.elapsed());
    }
    let Some(boxes) = boxes else { return Ok(()) };
    let started = Instant::now();
    let left = boxes.clean(&before)?;
    for line in &left {
        println!("left behind: {line}");
    }
    let count = if left.is_empty() { PASSED } else { FAILED };
    report.add("nothing left behind", count, started.elapsed());
    let started = Instant::now();
    if let Err(error) = vm::short(boxes, &programs, report) {
        println!("vm: {error:#}");
        report.add("vm", FAILED, started.elapsed());
    }
    Ok(())
}

/// The whole output goes to a file; the part about failures is shown.
pub(crate) fn keep(name: &str, output: &str, count: Count) -> Result<()> {
    let dir = cache::dir()?.join("test-output");
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let file = dir.join(format!("{name}.txt"));
    fs::write(&file, output).with_context(|| format!("writing {}", file.display()))?;
    if count.failed == 0 {
        return Ok(());
    }
    for line in output.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
    match output.find("\nfailures:\n") {
        Some(at) => println!("{}", &output[at..]),
        None => {
            let lines: Vec<_> = output.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
    println!("all of it: {}", file.display());
    Ok(())
}

/// A built test program.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// The package's folder, where tests run.
    pub(crate) dir: PathBuf,
}

impl Program {
    fn package(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Builds the test programs of that name (a pattern) in the whole workspace.
pub(crate) fn test_programs(name: &str) -> Result<Vec<Program>> {
    let messages = command::read_with_errors(
        cargo()
            .args(["test", "--workspace", "--no-run", "--test", name])
            .args(["--message-format", "json-render-diagnostics"]),
    )?;
    let mut programs: Vec<_> = messages.lines().filter_map(program_in).collect();
    programs.sort_by(|one, other| (&one.dir, &one.name).cmp(&(&other.dir, &other.name)));
    Ok(programs)
}

/// The test program that a message of cargo's tells of.
fn program_in(message: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let kinds = message.pointer("/target/kind")?.as_array()?;
    kinds.iter().any(|kind| kind == "test").then_some(())?;
    Some(Program {
        name: message.pointer("/target/name")?.as_str()?.to_owned(),
        file: message.get("executable")?.as_str()?.into(),
        dir: Path::new(message.get("manifest_path")?.as_str()?)
            .parent()?
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(passed: usize, failed: usize) -> Count {
        Count { passed, failed }
    }

    #[test]
    fn results_of_all_programs_are_added() {
        let output = "running 2 tests\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n\
                      test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(Count::of_tests(output, false), count(5, 1));
    }

    #[test]
    fn a_skipped_or_ignored_test_has_failed() {
        let output = "---- a stdout ----\nSKIPPED a: needs root\n\n\
                      test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n";
        assert_eq!(Count::of_tests(output, true), count(1, 2));
    }

    #[test]
    fn a_part_that_other_tests_play_is_no_test() {
        let output = "test helper ... ignored, a part that other tests have this binary play\n\
                      test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n";
        assert_eq!(Count::of_tests(output, true), count(2, 0));
    }

    #[test]
    fn a_program_that_died_has_failed() {
        assert_eq!(Count::of_tests("", true), count(0, 1));
        let output = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(Count::of_tests(output, false), count(2, 1));
    }

    #[test]
    fn the_program_of_a_test_is_found_in_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml",
            "target":{"kind":["test"],"name":"supervise"},"executable":"/t/supervise-1"}"#;
        let program = program_in(message).unwrap();
        assert_eq!(program.name, "supervise");
        assert_eq!(program.file, Path::new("/t/supervise-1"));
        assert_eq!(program.dir, Path::new("/w/agent"));
        assert!(program_in(r#"{"reason":"build-finished"}"#).is_none());
    }
}
