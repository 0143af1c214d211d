//! The cgroups of a turn, as a node has them: one that all pods are below, in the place of
//! `kubepods`, and one in the place of `system.slice` with two services in it, the agent and the
//! runtime with its shims.
//!
//! Processor time is shared as there: the two top groups by their weights, and the services
//! equally. Were the services left in the root group, each shim would weigh as much as half of all
//! pods (on v1 and two processors). The top groups' names begin with `SKEP_TEST_CGROUP`; all are removed at the end of the turn.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

const TOP: &str = "/sys/fs/cgroup";
/// What the threads of a service may have of real-time scheduling, in each second and processor.
const REAL_TIME_US: u32 = 200_000;

/// How the machine's hierarchies are: `v1`, `v2`, or `hybrid` (v1 with an empty v2 tree).
pub fn version() -> &'static str {
    let top = Path::new(TOP);
    if is_unified() {
        "v2"
    } else if top.join("unified/cgroup.procs").exists() {
        "hybrid"
    } else {
        "v1"
    }
}

fn is_unified() -> bool {
    Path::new(TOP).join("cgroup.controllers").exists()
}

/// The group of a service: one folder, or on v1 one in each hierarchy that counts or shares out
/// processor time, the one that counts first.
#[derive(Clone, Debug)]
pub struct Service(Vec<PathBuf>);

impl Service {
    /// Moves a process in, which takes the kernel up to some tens of milliseconds.
    pub fn add(&self, pid: i32) -> Result<()> {
        for dir in &self.0 {
            write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// CPU time of all that ever was in the group, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        let counting = self.0.first().context("a service without a group")?;
        let file = if is_unified() {
            counting.join("cpu.stat")
        } else {
            counting.join("cpuacct.usage")
        };
        let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        parse_cpu(&text).with_context(|| format!("{}: no CPU time", file.display()))
    }
}

/// `cpuacct.usage` is one number; v2's `cpu.stat` has lines.
fn parse_cpu(text: &str) -> Option<u64> {
    if let Ok(ns) = text.trim().parse() {
        return Some(ns);
    }
    let mut lines = text.lines();
    let us = lines.find_map(|line| line.strip_prefix("usage_usec "))?;
    us.trim().parse::<u64>().ok()?.checked_mul(1000)
}

/// All groups of a turn.
#[derive(Debug)]
pub struct Cgroups {
    prefix: String,
    pub agent: Service,
    pub runtime: Service,
}

impl Cgroups {
    /// Makes them.
    pub fn make(prefix: &str) -> Result<Self> {
        if is_unified() {
            share_out(Path::new(TOP))?;
        }
        for hierarchy in hierarchies() {
            let dir = hierarchy.join(prefix);
            make(&dir, &hierarchy)?;
            weigh(&dir)?;
        }
        let hierarchies = of_services();
        let mut services = [("agent", Vec::new()), ("runtime", Vec::new())];
        for hierarchy in &hierarchies {
            let system = hierarchy.join(format!("{prefix}-system"));
            make(&system, hierarchy)?;
            allow_real_time(&system, REAL_TIME_US * 2)?;
            if is_unified() {
                share_out(&system)?;
            }
            for (name, dirs) in &mut services {
                let dir = system.join(name);
                make(&dir, hierarchy)?;
                allow_real_time(&dir, REAL_TIME_US)?;
                dirs.push(dir);
            }
        }
        let [(_, agent), (_, runtime)] = services;
        Ok(Self {
            prefix: prefix.to_owned(),
            agent: Service(agent),
            runtime: Service(runtime),
        })
    }

    /// The pods' group as agents and the runtime name it.
    pub fn pods(&self) -> String {
        format!("/{}", self.prefix)
    }

    /// Kills all that is in them, and removes them.
    pub async fn remove(&self) -> Result<()> {
        let mut left = Vec::new();
        // What is killed is reaped by others, and a shim starts something as it ends.
        for _ in 0..200 {
            let dirs = groups(&self.prefix);
            for pid in dirs.iter().filter_map(|dir| pids_in(dir).ok()).flatten() {
                if let Some(pid) = Pid::from_raw(pid) {
                    // It may have ended.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            left.clear();
            for dir in dirs {
                if let Err(error) = fs::remove_dir(&dir)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    left.push(format!("{}: {error}", dir.display()));
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("cgroups are left: {}", left.join(", "));
    }
}

fn make(dir: &Path, hierarchy: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    // A v1 group without these takes no process.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if hierarchy.join("tasks").exists()
            && let Ok(value) = fs::read(hierarchy.join(file))
        {
            fs::write(dir.join(file), value)?;
        }
    }
    Ok(())
}

/// v2: what is below the folder has weights of its own.
fn share_out(dir: &Path) -> Result<()> {
    write(&dir.join("cgroup.subtree_control"), "+cpu")
}

/// A kernel that shares out real-time by groups refuses it to the threads of a group until that is
/// given some. Few distributions' kernels do, and the bench's subjects get what they get on all
/// others. Those, and v2, have no such file.
fn allow_real_time(dir: &Path, us: u32) -> Result<()> {
    let file = dir.join("cpu.rt_runtime_us");
    if file.exists() {
        write(&file, &us.to_string())?;
    }
    Ok(())
}

/// Gives the pods' group the share of CPU time that `kubepods` has among a node's top groups, which
/// it stands in for: 1024 for each processor. In a storm what decides how soon the killed processes
/// come to their end is how this weighs against the runtime and its shims.
fn weigh(dir: &Path) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get() as u64;
    let shares = 1024 * cores;
    // The kubelet's rule for v2.
    let weight = (shares - 2) * 9999 / 262_142 + 1;
    for (file, value) in [("cpu.shares", shares), ("cpu.weight", weight)] {
        let file = dir.join(file);
        if file.exists() {
            write(&file, &value.to_string())?;
        }
    }
    Ok(())
}

fn write(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("writing {}", file.display()))
}

/// Where a service's group is: the hierarchy that counts processor time, and on v1, where that is
/// another, the one that shares it out.
fn of_services() -> Vec<PathBuf> {
    let top = Path::new(TOP);
    if is_unified() {
        return vec![top.to_owned()];
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for name in ["cpuacct", "cpu"] {
        // Both may be links to one folder.
        let dir = top.join(name);
        let dir = dir.canonicalize().unwrap_or(dir);
        if !found.contains(&dir) {
            found.push(dir);
        }
    }
    found
}

/// One folder on v2, one for each hierarchy on v1.
fn hierarchies() -> Vec<PathBuf> {
    if is_unified() {
        return vec![PathBuf::from(TOP)];
    }
    let mut found = folders(Path::new(TOP));
    // Links such as cpu -> cpu,cpuacct lead to one that is in the list already.
    found.retain(|dir| !dir.is_symlink());
    found
}

/// All groups of a turn, deepest first.
fn groups(prefix: &str) -> Vec<PathBuf> {
    let is_ours = |name: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        for top in folders(&hierarchy) {
            let name = top.file_name().unwrap_or_default().to_string_lossy();
            if is_ours(&name) {
                add_bottom_up(top, &mut found);
            }
        }
    }
    found
}

fn add_bottom_up(dir: PathBuf, found: &mut Vec<PathBuf>) {
    for child in folders(&dir) {
        add_bottom_up(child, found);
    }
    found.push(dir);
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    paths.filter(|path| path.is_dir()).collect()
}

fn pids_in(dir: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(dir.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_from_either_versions_file() {
        assert_eq!(parse_cpu("123456789\n"), Some(123_456_789));
        let stat = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n";
        assert_eq!(parse_cpu(stat), Some(1_500_000));
        assert_eq!(parse_cpu("user_usec 1000\n"), None);
    }
}
