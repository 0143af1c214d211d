//! `cargo xtask profile`: where the idle agent's CPU time and memory go, with no pods and with many.
//!
//! The released agent runs in a box, on a containerd that it starts itself. For each number of pods
//! there are three windows, one after the other, so that no tool is in another's figures: one that
//! only reads counters, one with perf, one with strace. Then the agent is started anew on what runs
//! (its start time, and what it holds without a history), and once more under heaptrack.
//!
//! Out: a table, and in the folder a flame graph of CPU time and one of the bytes that are held at
//! the window's end, with the texts they are drawn from.

mod agent;
mod counters;
mod draw;
mod memory;

use std::{
    env, fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use self::{agent::Agent, counters::Counters, memory::Memory};
use crate::{
    boxed::{Boxes, Machine},
    command, setup, up,
};

/// After a change, until the agent is at rest: what a start leaves behind has then run out (tokio
/// keeps a thread for blocking work 10 s).
const SETTLE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Numbers of pods, rising.
    #[arg(long, value_delimiter = ',', default_value = "0,100")]
    pods: Vec<usize>,
    /// Seconds of each window; the agent has jobs that come once a minute.
    #[arg(long, default_value_t = 60)]
    window: u64,
    /// Only the windows that read counters: no perf, strace, heaptrack.
    #[arg(long)]
    counters_only: bool,
    /// Where the results go.
    #[arg(long, value_name = "DIR", default_value = "bench/profiles")]
    out: PathBuf,
    /// Another program instead of the one that is built: to compare.
    #[arg(long, value_name = "FILE")]
    skep: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Boxed {
    #[command(flatten)]
    options: Options,
}

/// Builds what is needed and runs [`run_boxed`] in a box.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.pods.is_sorted(),
        "--pods: each number must be at least the one before"
    );
    if !options.counters_only {
        setup::ensure_profile()?;
    }
    let boxes = Boxes::prepare()?;
    let skep = match &options.skep {
        Some(skep) => std::path::absolute(skep).context("the program")?,
        None => up::build(true)?,
    };
    let out = command::workspace().join(&options.out);
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let mut args = vec![
        "profile-boxed".to_owned(),
        format!("--skep={}", skep.display()),
        format!("--out={}", out.display()),
        format!("--window={}", options.window),
    ];
    args.extend(options.pods.iter().map(|pods| format!("--pods={pods}")));
    if options.counters_only {
        args.push("--counters-only".to_owned());
    }
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let longest = options.pods.last().copied().unwrap_or_default() as u64;
    let limit =
        Duration::from_secs(options.pods.len() as u64 * (4 * options.window + 300) + 10 * longest);
    let before = Machine::look()?;
    let this = env::current_exe().context("this program")?;
    let ended = boxes.run(&this, &args, command::workspace(), limit, |line| {
        println!("{line}");
    })?;
    for line in boxes.clean(&before)? {
        println!("left behind: {line}");
    }
    ensure!(ended.success, "the profile did not end well");
    println!("in {}", out.display());
    Ok(())
}

/// One column of the table.
struct Column {
    pods: usize,
    window: Counters,
    memory: Memory,
    restart: Duration,
    restarted: Memory,
}

/// What runs in the box.
pub(crate) fn run_boxed(boxed: &Boxed) -> Result<()> {
    let options = &boxed.options;
    let skep = options.skep.as_deref().context("--skep is missing")?;
    let window = Duration::from_secs(options.window);
    let mut columns = Vec::new();
    let mut agent = Agent::start(skep, None)?;
    for &pods in &options.pods {
        let file = |name: &str| options.out.join(format!("{name}-{pods}"));
        println!("profile: {pods} pods");
        agent.until_running(pods)?;
        thread::sleep(SETTLE);
        let before = agent.counters()?;
        thread::sleep(window);
        let counters = agent.counters()?.since(&before, window);
        let memory = Memory::of(agent.pid())?;
        fs::write(file("smaps"), memory::smaps(agent.pid())?)
            .with_context(|| format!("writing {}", file("smaps").display()))?;
        if !options.counters_only {
            draw::cpu(agent.pid(), window, &file("cpu"))?;
            draw::calls(agent.pid(), window, &file("calls"))?;
        }
        // The pods stay; the next agent takes them over.
        agent.stop()?;
        agent = Agent::start(skep, None)?;
        let restart = agent.until_all_run(pods)?;
        thread::sleep(SETTLE);
        let restarted = Memory::of(agent.pid())?;
        if !options.counters_only {
            agent.stop()?;
            agent = Agent::start(skep, Some(&file("heap")))?;
            agent.until_all_run(pods)?;
            thread::sleep(SETTLE);
            agent.kill()?;
            draw::heap(&file("heap"))?;
            agent = Agent::start(skep, None)?;
            agent.until_all_run(pods)?;
        }
        columns.push(Column {
            pods,
            window: counters,
            memory,
            restart,
            restarted,
        });
    }
    agent.down()?;
    let table = table(&columns, fs::metadata(skep).map_or(0, |file| file.len()));
    println!("{table}");
    let file = options.out.join("table.txt");
    fs::write(&file, table).with_context(|| format!("writing {}", file.display()))
}

/// The table that people read.
fn table(columns: &[Column], program_bytes: u64) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &dyn Fn(&Column) -> String| {
        text.push_str(&format!("{name:<34}"));
        for column in columns {
            text.push_str(&format!(" {:>12}", value(column)));
        }
        text.push('\n');
    };
    row("pods", &|c| c.pods.to_string());
    row("CPU, millicores", &|c| {
        format!("{:.3}", c.window.millicores)
    });
    row("voluntary switches a second", &|c| {
        format!("{:.2}", c.window.switches)
    });
    row("threads", &|c| c.window.threads().to_string());
    let mut names: Vec<_> = columns
        .iter()
        .flat_map(|column| column.window.runtime_calls.keys())
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        row(&format!("runtime calls a minute: {name}"), &|c| {
            let calls = c.window.runtime_calls.get(name).copied().unwrap_or(0.0);
            format!("{calls:.1}")
        });
    }
    for (name, part) in Memory::PARTS {
        row(&format!("{name}, KiB"), &|c| part(&c.memory).to_string());
    }
    for (name, part) in Memory::PARTS {
        row(&format!("restarted: {name}, KiB"), &|c| {
            part(&c.restarted).to_string()
        });
    }
    row("restart to all pods known, ms", &|c| {
        format!("{:.0}", c.restart.as_secs_f64() * 1000.0)
    });
    if let [first, .., last] = columns {
        let pods = (last.pods - first.pods) as f64;
        let more = last.window.millicores - first.window.millicores;
        text.push_str(&format!("\nCPU a pod: {:.4} millicores\n", more / pods));
    }
    text.push_str(&format!("program: {} KiB\n", program_bytes / 1024));
    text
}

/// Asks again until it is so.
fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so()? {
        ensure!(
            Instant::now() < deadline,
            "{what}: not within {} s",
            limit.as_secs()
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn read(file: impl AsRef<Path>) -> Result<String> {
    let file = file.as_ref();
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}
