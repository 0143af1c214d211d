//! `cargo xtask up`: the example pods on this machine, live, until interrupted; or, with `--once`
//! and where nobody looks, until each has shown what it is there to show.
//!
//! It has a root, cgroups and a containerd of its own, beside whatever the machine runs, and stops
//! what it started.

mod checks;

use std::{
    fs,
    fs::File,
    io::{IsTerminal as _, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use self::checks::{Check, Seen};
use crate::{cache, command, images, setup};

/// Short: containerd's sockets lie below it.
const ROOT: &str = "/var/lib/skep-demo";
const CGROUP: &str = "skep-demo";
/// From the agent's start until every example has shown what it should. The slowest is the second
/// restart of a crashing container: some 35 s.
const LIMIT: Duration = Duration::from_secs(240);
/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// The pods' grace is 5 s.
const DOWN_LIMIT: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// End when each example has shown what it should, as without a terminal.
    #[arg(long)]
    once: bool,
    /// Where the agent keeps everything.
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    root: PathBuf,
    /// Build with optimizations, which takes minutes longer.
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let is_once = options.once || !std::io::stdout().is_terminal();
    let root = std::path::absolute(&options.root).context("the root folder")?;
    setup::ensure_run()?;
    let skep = build(options.release)?;
    let images = images::ensure()?;
    if !command::is_root() {
        println!("up: the agent needs root's rights; sudo may ask for your password");
        command::run(Command::new("sudo").arg("-v"))?;
    }

    // From here on an interrupt means: stop what was started.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("catching interrupts")?;
    }
    let mut demo = Demo::start(skep, root, &images)?;
    let shown = demo.watch(is_once, &interrupted);
    let stopped = demo.stop();
    let all_shown = shown?;
    stopped?;
    Ok(if all_shown || !is_once {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub(crate) fn build(release: bool) -> Result<PathBuf> {
    println!("building skep");
    let started = Instant::now();
    let mut command = command::cargo();
    command
        .args(["build", "--package", "agent", "--bin", "skep"])
        .args(["--message-format", "json-render-diagnostics"]);
    if release {
        command.arg("--release");
    }
    let messages = command::read_with_errors(&mut command)?;
    let skep = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .next_back()
        .context("cargo built no program skep")?;
    println!("built in {:.0} s", started.elapsed().as_secs_f64());
    Ok(skep)
}

/// The agent under way.
struct Demo {
    skep: PathBuf,
    root: PathBuf,
    log: PathBuf,
    agent: Child,
    checks: Vec<Check>,
    started: Instant,
}

impl Demo {
    fn start(skep: PathBuf, root: PathBuf, images: &Path) -> Result<Self> {
        let manifests = command::workspace().join("deploy/examples");
        let log = cache::dir()?.join("up.log");
        let out = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let err = out.try_clone().context("sharing the log")?;
        make_fresh(&skep, &root)?;
        make_cgroup()?;
        let mut command = command::as_root(&skep, &[]);
        command
            .arg("--root")
            .arg(&root)
            .arg("up")
            .arg("--manifests")
            .arg(&manifests)
            .arg("--images")
            .arg(images)
            .args(["--pause-image", images::PAUSE])
            .args(["--cgroup-root", &format!("/{CGROUP}")])
            // The usual ports may be a kubelet's; the demo asks through the socket.
            .args(["--healthz-port", "0", "--read-only-port", "0"])
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // The terminal's Ctrl-C is for this task, which then stops the agent in order.
            .process_group(0);
        println!("up: starting {}", command::line(&command));
        println!("up: its log is {}", log.display());
        let agent = command.spawn().context("starting the agent")?;
        Ok(Self {
            skep,
            root,
            log,
            agent,
            checks: checks::all(),
            started: Instant::now(),
        })
    }

    /// A command of skep's, against the demo's agent.
    fn ask(&self, args: &[&str]) -> Command {
        let mut command = command::as_root(&self.skep, &[]);
        command.arg("--root").arg(&self.root).args(args);
        command
    }

    /// Until interrupted or, `is_once`, until everything was seen or time is up. Whether everything
    /// was seen.
    fn watch(&mut self, is_once: bool, interrupted: &AtomicBool) -> Result<bool> {
        loop {
            if let Some(status) = self.agent.try_wait().context("looking at the agent")? {
                self.explain();
                bail!("the agent ended with {status}");
            }
            self.look();
            let all_seen = self.checks.iter().all(|check| check.seen_after.is_some());
            if !is_once {
                self.paint();
            }
            if interrupted.load(Ordering::Relaxed) {
                println!("up: interrupted");
                return Ok(all_seen);
            }
            if is_once && (all_seen || self.started.elapsed() > LIMIT) {
                self.summary();
                if !all_seen {
                    self.explain();
                }
                return Ok(all_seen);
            }
            std::thread::sleep(PERIOD);
        }
    }

    /// The timeline survives; what an earlier demo did is no part of this one.
    fn since(&self) -> String {
        format!("{}s", self.started.elapsed().as_secs() + 1)
    }

    /// Marks what is to be seen now. An agent that does not answer yet shows nothing.
    fn look(&mut self) {
        let read = |args: &[&str]| command::read(&mut self.ask(args)).ok();
        let pods = read(&["pods", "-o", "json"]).and_then(|text| serde_json::from_str(&text).ok());
        let events = read(&["events", "-o", "json", "--since", &self.since()]).unwrap_or_default();
        let seen = Seen::new(pods.as_ref(), &events);
        let now = self.started.elapsed();
        for check in &mut self.checks {
            if check.seen_after.is_none() && (check.is_met)(&seen) {
                check.seen_after = Some(now);
                println!("  {:>5.1} s  {}", now.as_secs_f64(), check.sentence);
            }
        }
    }

    /// The screen: the pods, what was seen, how to look closer.
    fn paint(&self) {
        let table = command::read(&mut self.ask(&["pods", "--containers"]))
            .unwrap_or_else(|_| "waiting for the agent".to_owned());
        let mut screen = format!("\x1b[H\x1b[2J{table}\n\n");
        for check in &self.checks {
            screen.push_str(&check.line());
            screen.push('\n');
        }
        screen.push_str(&format!(
            "\nLook closer: {} --root {} events\nCtrl-C stops it all.\n",
            self.skep.display(),
            self.root.display()
        ));
        let mut out = std::io::stdout();
        // A terminal that is gone is told by SIGHUP.
        let _ = out.write_all(screen.as_bytes()).and_then(|()| out.flush());
    }

    fn summary(&self) {
        for args in [
            &["pods", "--containers"][..],
            &["events", "--since", &self.since()],
        ] {
            if let Ok(text) = command::read(&mut self.ask(args)) {
                println!("\n{text}");
            }
        }
        println!();
        for check in &self.checks {
            println!("{}", check.line());
        }
    }

    /// The end of the agent's log.
    fn explain(&self) {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        println!("\nthe end of {}:", self.log.display());
        for line in &lines[lines.len().saturating_sub(30)..] {
            println!("  {line}");
        }
    }

    /// Pods, containerd, agent and cgroups.
    fn stop(&mut self) -> Result<()> {
        println!("up: stopping the pods, the agent and its containerd");
        let down = command::run(self.ask(&["down"]).stdin(Stdio::null()));
        let until = Instant::now() + DOWN_LIMIT;
        let mut is_told = false;
        loop {
            if self
                .agent
                .try_wait()
                .context("looking at the agent")?
                .is_some()
            {
                break;
            }
            if Instant::now() > until {
                bail!("the agent (pid {}) does not end", self.agent.id());
            }
            if down.is_err() && !is_told {
                // `down` could not ask it.
                let pid = self.agent.id().to_string();
                command::run(command::as_root("kill", &[]).args(["-TERM", &pid]))?;
                is_told = true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        if down.is_err() {
            // Without the agent, what it left is stopped directly.
            command::run(self.ask(&["down"]).stdin(Stdio::null()))?;
        }
        remove_cgroup();
        remove_root(&self.root)?;
        println!("up: all is stopped, and {} removed", self.root.display());
        Ok(())
    }
}

/// Says that the folder is a demo's, and may be emptied.
const MARK: &str = ".skep-demo";

/// A root without the past of an earlier demo: counts of restarts would survive in it, as they
/// should. A folder with anything else in it is not touched.
fn make_fresh(skep: &Path, root: &Path) -> Result<()> {
    let mark = root.join(MARK);
    if mark.exists() {
        // One that was killed may have left its agent, its pods and its containerd.
        let mut down = command::as_root(skep, &[]);
        command::read(down.arg("--root").arg(root).arg("down"))
            .context("stopping what an earlier demo left")?;
        remove_root(root)?;
    }
    if fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!(
            "{} holds something, and not of an earlier demo: name another folder with --root",
            root.display()
        );
    }
    command::run(command::as_root("mkdir", &[]).arg("-p").arg(root))?;
    command::run(command::as_root("touch", &[]).arg(&mark))
}

fn remove_root(root: &Path) -> Result<()> {
    command::run(
        command::as_root("rm", &[])
            .args(["-rf", "--one-file-system"])
            .arg(root),
    )
}

/// The demo's cgroup in every hierarchy: the agent wants its cgroup root to be there.
fn make_cgroup() -> Result<()> {
    let script = format!(
        r#"
set -e
cd /sys/fs/cgroup
if [ -e cgroup.controllers ]; then
    mkdir -p {CGROUP}
    for controller in $(cat cgroup.controllers); do
        echo "+$controller" > cgroup.subtree_control || true
        echo "+$controller" > {CGROUP}/cgroup.subtree_control || true
    done
else
    for hierarchy in */; do
        mkdir -p "$hierarchy"{CGROUP}
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$hierarchy$file" ]; then cat "$hierarchy$file" > "$hierarchy"{CGROUP}/$file; fi
        done
    done
fi
"#
    );
    command::run(command::as_root("sh", &[]).args(["-c", &script]))
        .context("making the demo's cgroup")
}

/// With the empty ones that are left below it.
fn remove_cgroup() {
    let script = format!(
        "for top in /sys/fs/cgroup/{CGROUP} /sys/fs/cgroup/*/{CGROUP}; do \
         if [ -d $top ]; then find $top -depth -type d -exec rmdir {{}} \\; 2>/dev/null; fi; done; true"
    );
    // One that is still in use stays, and is used again the next time.
    let _ = command::run(command::as_root("sh", &[]).args(["-c", &script]));
}
