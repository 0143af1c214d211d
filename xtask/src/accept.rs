//! `cargo xtask accept [NAME]`: the long runs, one box each. Their bodies are the tests of
//! `agent/tests/accept`: one module a run, named as the run is (with "_" for "-"), whose tests are
//! ignored unless asked for.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    boxed::{Boxes, Machine},
    test::{self, Count, Report},
};

/// One run; the longest has a minute's stop of the runtime, 200 kills or 20 restarts of the agent.
const LIMIT: Duration = Duration::from_secs(45 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Run {
    /// 200 main processes killed from the host, over 20 pods.
    Kills,
    /// 250 one-shot containers that all end while the agent is stopped.
    Storm,
    /// 200 memory kills, and a killed child.
    Oom,
    /// The agent killed 20 times while pods run, start and end.
    AgentKills,
    /// The runtime stopped for a minute.
    RuntimeStop,
    /// The runtime paused for a minute.
    Pause,
    /// All shims and sandboxes gone, folders kept.
    Reboot,
    /// The same behaviour in each of the PLEG's modes.
    Modes,
}

const ALL: [Run; 8] = [
    Run::Kills,
    Run::Storm,
    Run::Oom,
    Run::AgentKills,
    Run::RuntimeStop,
    Run::Pause,
    Run::Reboot,
    Run::Modes,
];

/// The named runs; all where none is named.
pub(crate) fn run(runs: &[Run]) -> Result<ExitCode> {
    let runs = if runs.is_empty() { &ALL } else { runs };
    let boxes = Boxes::prepare()?;
    let programs = test::test_programs(test::ACCEPT)?;
    let program = programs
        .first()
        .context("cargo built no acceptance tests")?;
    let mut report = Report::default();
    for run in runs {
        let name = name(*run)?;
        let before = Machine::look()?;
        println!("== {name} ...");
        let filter = filter(&name);
        // A filter is found anywhere in a test's name: that of "kills" in "agent_kills" too.
        let others = ALL
            .iter()
            .map(|other| Ok(self::filter(&self::name(*other)?)))
            .collect::<Result<Vec<_>>>()?;
        let mut args = vec!["--ignored", "--nocapture", "--test-threads=1", &filter];
        for other in others.iter().filter(|other| !filter.contains(*other)) {
            args.extend(["--skip", other]);
        }
        let ended = boxes.run(&program.file, &args, &program.dir, LIMIT, |line| {
            println!("   {line}")
        })?;
        let mut count = Count::of_tests(&ended.output, ended.success);
        if count == Count::default() {
            println!("there is no acceptance test named {filter}");
            count.failed = 1;
        }
        for line in boxes.clean(&before)? {
            println!("left behind: {line}");
            count.failed += 1;
        }
        test::keep(&format!("accept-{name}"), &ended.output, count)?;
        report.add(&name, count, ended.time);
    }
    Ok(report.finish())
}

fn name(run: Run) -> Result<String> {
    let value = clap::ValueEnum::to_possible_value(&run).context("every run has a name")?;
    Ok(value.get_name().to_owned())
}

/// What the names of a run's tests begin with.
fn filter(name: &str) -> String {
    format!("{}::", name.replace('-', "_"))
}
