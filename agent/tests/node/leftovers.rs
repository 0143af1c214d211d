//! What a node could leave on the machine: finding it, and removing it after a test that failed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{Mutex, PoisonError},
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

const CGROUPS: &str = "/sys/fs/cgroup";

/// How many nodes there are in this process. What no name ties to one node is looked for when the
/// last of them is gone.
static NODES: Mutex<usize> = Mutex::new(0);

pub(super) fn enter() {
    *NODES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
}

/// What no node is there for any more.
pub(super) fn leave() -> Vec<String> {
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    *nodes -= 1;
    if *nodes > 0 {
        return Vec::new();
    }
    let namespaces = names_in(Path::new("/run/netns"));
    let interfaces = names_in(Path::new("/sys/class/net"));
    let left = namespaces
        .into_iter()
        .map(|name| format!("network namespace {name}"));
    let veths = interfaces
        .into_iter()
        .filter(|name| name.starts_with("veth"));
    left.chain(veths.map(|name| format!("interface {name}")))
        .collect()
}

/// The cgroup in every hierarchy, ready for children.
pub(super) fn make_cgroup(name: &str) {
    for hierarchy in hierarchies() {
        let dir = hierarchy.join(name);
        fs::create_dir_all(&dir).unwrap();
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if hierarchy.join("tasks").exists()
                && let Ok(value) = fs::read(hierarchy.join(file))
            {
                fs::write(dir.join(file), value).unwrap();
            }
        }
    }
}

/// One folder on v2, one for each hierarchy on v1.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new(CGROUPS);
    if top.join("cgroup.controllers").exists() {
        return vec![top.to_owned()];
    }
    let mut found: Vec<_> = names_in(top)
        .into_iter()
        .map(|name| top.join(name))
        .collect();
    // Links such as cpu -> cpu,cpuacct lead to one that is in the list already.
    found.retain(|dir| dir.is_dir() && !dir.is_symlink());
    found
}

/// In words; empty when all that is left is the node's own folder and its cgroup with the classes.
pub(super) fn find(dir: &Path, cgroup: &str, bridge: &str) -> Vec<String> {
    let mut left: Vec<_> = processes(dir)
        .into_iter()
        .map(|(pid, line)| format!("process {pid} {line}"))
        .collect();
    left.extend(
        mounts(dir)
            .into_iter()
            .map(|point| format!("mount {}", point.display())),
    );
    for cgroup in cgroups(cgroup) {
        let name = cgroup.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("pod") {
            left.push(format!("cgroup {}", cgroup.display()));
        }
        for pid in pids_in(&cgroup) {
            left.push(format!("process {pid} in {}", cgroup.display()));
        }
    }
    if Path::new("/sys/class/net").join(bridge).exists() {
        left.push(format!("interface {bridge}"));
    }
    let rules = Command::new("iptables-save").output();
    if let Ok(rules) = rules {
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        let ours = rules.lines().filter(|line| line.contains(bridge));
        left.extend(ours.map(|line| format!("rule {line}")));
    }
    left
}

/// Removes whatever is there; says nothing about what resists.
pub(super) fn remove(dir: &Path, cgroup: &str, bridge: &str) {
    let all = cgroups(cgroup);
    // Shims see their containers die and go; what starts meanwhile is met in the next turn.
    for _ in 0..50 {
        let mut pids: Vec<i32> = processes(dir).into_iter().map(|(pid, _)| pid).collect();
        pids.extend(all.iter().flat_map(|cgroup| pids_in(cgroup)));
        if pids.is_empty() {
            break;
        }
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::yield_now();
    }
    for point in mounts(dir).into_iter().rev() {
        let _ = unmount(&point, UnmountFlags::DETACH);
    }
    for cgroup in cgroups(cgroup) {
        let _ = fs::remove_dir(cgroup);
    }
    if Path::new("/sys/class/net").join(bridge).exists() {
        let _ = Command::new("ip").args(["link", "delete", bridge]).status();
    }
}

/// There, and not only as a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Whose command line names the folder, and which are not dead.
fn processes(dir: &Path) -> Vec<(i32, String)> {
    let dir = dir.to_str().expect("is text");
    let inside = format!("{dir}/");
    names_in(Path::new("/proc"))
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter(|pid: &i32| u32::try_from(*pid) != Ok(process::id()))
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (line.contains(&inside) && is_alive(pid)).then_some((pid, line))
        })
        .collect()
}

fn mounts(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("is readable");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .map(PathBuf::from)
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// The cgroup and all below it, in every hierarchy, the deepest first.
fn cgroups(name: &str) -> Vec<PathBuf> {
    hierarchies()
        .into_iter()
        .flat_map(|hierarchy| {
            walkdir::WalkDir::new(hierarchy.join(name))
                .contents_first(true)
                .into_iter()
                .filter_map(Result::ok)
                .filter(|entry| entry.file_type().is_dir())
                .map(walkdir::DirEntry::into_path)
        })
        .collect()
}

fn pids_in(cgroup: &Path) -> Vec<i32> {
    let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    pids.lines().filter_map(|pid| pid.parse().ok()).collect()
}

fn names_in(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
