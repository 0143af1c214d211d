//! The agent of a profile: started, given pods, asked, stopped.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{counters::Counters, read, until};
use crate::{command, images};

/// The usual ones: the box has a network of its own.
const HEALTH: u16 = 10248;
const READ_ONLY: u16 = 10255;
/// A start, containerd's included; under heaptrack it takes much longer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For each pod that starts, on a slow machine.
const POD_LIMIT: Duration = Duration::from_secs(3);

pub(super) struct Agent {
    /// The agent, or heaptrack around it.
    child: Child,
    pid: u32,
    dirs: Dirs,
    began: Instant,
}

/// What outlives one agent.
struct Dirs {
    skep: PathBuf,
    root: PathBuf,
    manifests: PathBuf,
    /// A cgroup of the agent's own in the unified hierarchy, whose CPU time the kernel counts even
    /// where the controllers are elsewhere.
    cgroup: PathBuf,
}

impl Dirs {
    fn new(skep: &Path) -> Result<Self> {
        let of_box = |name: &str| env::var_os(name).with_context(|| format!("{name} is not set"));
        let dir = PathBuf::from(of_box("SKEP_TEST_DIR")?);
        let unified = read("/proc/self/mountinfo")?
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .and_then(|line| line.split(' ').nth(4))
            .map(PathBuf::from)
            .context("no unified cgroup hierarchy is mounted")?;
        let dirs = Self {
            skep: skep.to_owned(),
            root: dir.join("root"),
            manifests: dir.join("manifests"),
            cgroup: unified.join(format!("{}-agent", of_box("SKEP_TEST_CGROUP")?.display())),
        };
        for dir in [&dirs.root, &dirs.manifests, &dirs.cgroup] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(dirs)
    }

    fn command(&self, heap: Option<&Path>) -> Result<Command> {
        let of_box = |name: &str| env::var_os(name).unwrap_or_default();
        let mut command = match heap {
            Some(file) => {
                let mut command = Command::new("heaptrack");
                command.arg("-o").arg(file).arg(&self.skep);
                command
            }
            None => Command::new(&self.skep),
        };
        let mut path = of_box("SKEP_TEST_BIN_DIRS");
        path.push(":");
        path.push(of_box("PATH"));
        let mut cgroup = OsString::from("--cgroup-root=/");
        cgroup.push(of_box("SKEP_TEST_CGROUP"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .context("the agent's log")?;
        command
            .arg("--root")
            .arg(&self.root)
            .args(["up", "--pause-image", images::PAUSE, "-v2", "--manifests"])
            .arg(&self.manifests)
            .arg("--images")
            .arg(of_box("SKEP_TEST_IMAGES"))
            .arg(cgroup)
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing the log")?)
            .stderr(log);
        Ok(command)
    }

    fn log(&self) -> PathBuf {
        self.root.join("agent.log")
    }
}

impl Agent {
    /// Starts it and waits until it is ready; under heaptrack where a file is given.
    pub(super) fn start(skep: &Path, heap: Option<&Path>) -> Result<Self> {
        let dirs = Dirs::new(skep)?;
        make_cgroups()?;
        let mut command = dirs.command(heap)?;
        let began = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", command::line(&command)))?;
        let mut agent = Self {
            pid: child.id(),
            child,
            dirs,
            began,
        };
        agent.until("the agent is ready", START_LIMIT, || {
            Ok(get(HEALTH, "/readyz").is_ok())
        })?;
        let lock = read(agent.dirs.root.join("skep.lock"))?;
        agent.pid = lock.trim().parse().context("the pid in the lock file")?;
        // Its containerd was started before and stays where it is.
        fs::write(agent.dirs.cgroup.join("cgroup.procs"), lock.trim())
            .context("moving the agent to its cgroup")?;
        Ok(agent)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let (child, log) = (&mut self.child, self.dirs.log());
        let done = until(what, limit, || {
            let ended = child.try_wait().context("looking at the agent")?;
            ensure!(ended.is_none(), "the agent ended");
            is_so()
        });
        done.with_context(|| {
            let log = read(log).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(15).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        })
    }

    /// Adds manifests until there are so many, and waits until all of them run.
    pub(super) fn until_running(&mut self, pods: usize) -> Result<()> {
        for number in 0..pods {
            let name = format!("idle-{number}");
            let file = self.dirs.manifests.join(format!("{name}.json"));
            if file.exists() {
                continue;
            }
            let manifest = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "hostNetwork": true,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "pause",
                        "image": images::PAUSE,
                        "imagePullPolicy": "IfNotPresent",
                    }],
                },
            });
            // Whole from the first moment on: a dot file is not read.
            let partial = self.dirs.manifests.join(".partial");
            fs::write(&partial, manifest.to_string())
                .and_then(|()| fs::rename(&partial, &file))
                .with_context(|| format!("writing {}", file.display()))?;
        }
        self.until_all_run(pods).map(drop)
    }

    /// Waits until it knows that many running pods; the time since its start.
    pub(super) fn until_all_run(&mut self, pods: usize) -> Result<Duration> {
        let limit = START_LIMIT + POD_LIMIT * u32::try_from(pods).unwrap_or(u32::MAX);
        self.until("the pods run", limit, || {
            Ok(get(READ_ONLY, "/pods").is_ok_and(|text| running(&text) == pods))
        })?;
        Ok(self.began.elapsed())
    }

    pub(super) fn counters(&self) -> Result<Counters> {
        Counters::read(self.pid, &self.dirs.cgroup, &get(HEALTH, "/metrics")?)
    }

    /// In order; the pods and containerd go on.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.signal("-TERM")
    }

    /// At once: what it holds is then not given back, which heaptrack reports.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.signal("-KILL")
    }

    fn signal(&mut self, signal: &str) -> Result<()> {
        command::run(Command::new("kill").args([signal, &self.pid.to_string()]))?;
        self.child.wait().context("waiting for the agent")?;
        Ok(())
    }

    /// Ends the pods, containerd and the agent.
    pub(super) fn down(mut self) -> Result<()> {
        command::run(
            Command::new(&self.dirs.skep)
                .arg("--root")
                .arg(&self.dirs.root)
                .arg("down")
                .stdout(Stdio::null()),
        )?;
        self.child.wait().context("waiting for the agent")?;
        let name = env::var("SKEP_TEST_CGROUP").context("the cgroup's name")?;
        for hierarchy in hierarchies()? {
            for dir in walkdir::WalkDir::new(hierarchy.join(&name))
                .contents_first(true)
                .into_iter()
                .filter_map(Result::ok)
                .filter(|entry| entry.file_type().is_dir())
            {
                // One that is not empty is told of after the box's end.
                let _ = fs::remove_dir(dir.path());
            }
        }
        fs::remove_dir(&self.dirs.cgroup).context("removing the agent's cgroup")
    }
}

/// The pods' cgroup, ready for children, in every hierarchy.
fn make_cgroups() -> Result<()> {
    let name = env::var("SKEP_TEST_CGROUP").context("the cgroup's name")?;
    for hierarchy in hierarchies()? {
        let dir = hierarchy.join(&name);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if hierarchy.join("tasks").exists()
                && let Ok(value) = fs::read(hierarchy.join(file))
            {
                fs::write(dir.join(file), value)
                    .with_context(|| format!("writing {file} of {}", dir.display()))?;
            }
        }
    }
    Ok(())
}

/// Where each is mounted.
fn hierarchies() -> Result<Vec<PathBuf>> {
    Ok(read("/proc/self/mountinfo")?
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .collect())
}

fn running(pods: &str) -> usize {
    let list: Value = serde_json::from_str(pods).unwrap_or_default();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running")
        .count()
}

/// The body of a good answer.
fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connecting to the agent")?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").context("asking the agent")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("the agent's answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{path}: {head}");
    Ok(body.to_owned())
}
