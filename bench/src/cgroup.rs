//! The cgroups of a turn: one that all pods are below, and two that only count: the agent's, and
//! the runtime's with its shims.
//!
//! All are top groups whose names begin with `SKEP_TEST_CGROUP`, and are removed at the end of the
//! turn.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

const TOP: &str = "/sys/fs/cgroup";

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

/// One group, in the hierarchy that counts CPU time.
#[derive(Clone, Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    pub fn procs_file(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// The processes in it.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        pids_in(&self.0)
    }

    /// CPU time of all that ever was in the group, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        let (file, text) = self
            .read("cpuacct.usage")
            .or_else(|_| self.read("cpu.stat"))?;
        parse_cpu(&text).with_context(|| format!("{}: no CPU time", file.display()))
    }

    fn read(&self, name: &str) -> io::Result<(PathBuf, String)> {
        let file = self.0.join(name);
        let text = fs::read_to_string(&file)?;
        Ok((file, text))
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
    pub agent: Cgroup,
    pub runtime: Cgroup,
}

impl Cgroups {
    /// Makes them.
    pub fn make(prefix: &str) -> Result<Self> {
        for hierarchy in hierarchies() {
            let dir = hierarchy.join(prefix);
            make(&dir, &hierarchy)?;
            weigh(&dir)?;
        }
        let counting = if is_unified() {
            PathBuf::from(TOP)
        } else {
            Path::new(TOP).join("cpuacct")
        };
        let count = |name: &str| -> Result<Cgroup> {
            let dir = counting.join(format!("{prefix}-{name}"));
            make(&dir, &counting)?;
            Ok(Cgroup(dir))
        };
        Ok(Self {
            prefix: prefix.to_owned(),
            agent: count("agent")?,
            runtime: count("runtime")?,
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
            fs::write(&file, value.to_string())
                .with_context(|| format!("writing {}", file.display()))?;
        }
    }
    Ok(())
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
