//! Processes that outlive the agent: found again by a pid file that a reused pid does not fool,
//! watched through pidfds, and ended with everything below them.

use std::{fs, io, os::fd::OwnedFd, path::Path, time::Duration};

use procfs::process::{Process, all_processes};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::{io::unix::AsyncFd, time::timeout};

use super::plan;

/// A process, as a pid file keeps it: the pid alone may be another's by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    pub pid: i32,
    /// Clock ticks from boot to its start (`/proc/PID/stat`).
    pub start_ticks: u64,
    pub boot_id: String,
}

impl Identity {
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let stat = Process::new(pid)
            .and_then(|process| process.stat())
            .map_err(io::Error::other)?;
        Ok(Self {
            pid,
            start_ticks: stat.starttime,
            boot_id: boot_id()?,
        })
    }

    /// None where the file is absent or is not one of ours: no process is known then.
    pub(super) fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let partial = file.with_extension("partial");
        fs::write(&partial, serde_json::to_vec(self)?)?;
        fs::rename(&partial, file)
    }

    /// The process, if it still runs and is the same one. The pidfd is opened before the look, so
    /// that it is the one looked at.
    pub(super) fn open(&self) -> Option<OwnedFd> {
        let fd = open(self.pid).ok()?;
        let is_same = boot_id().is_ok_and(|boot| boot == self.boot_id)
            && Process::new(self.pid)
                .and_then(|process| process.stat())
                .is_ok_and(|stat| stat.starttime == self.start_ticks && stat.state != 'Z');
        is_same.then_some(fd)
    }
}

pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

pub(super) fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// So that its end can be awaited.
pub(super) fn watch(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(unsafe_code, reason = "tokio's safe constructor is deprecated")]
    // SAFETY: an `OwnedFd` is one descriptor, open until it is dropped, and nobody here reaches into
    // the `AsyncFd` to put another in its place.
    unsafe { AsyncFd::register(process) }.map_err(io::Error::from)
}

/// Ends when the process has ended.
pub(super) async fn wait(process: &AsyncFd<OwnedFd>) {
    // An error here is that of a runtime shutting down: nobody waits any more.
    if let Ok(mut guard) = process.readable().await {
        guard.retain_ready();
    }
}

/// SIGTERM, and SIGKILL after `grace`. Whether it is gone afterwards.
pub(super) async fn end(process: OwnedFd, grace: Duration) -> io::Result<bool> {
    let process = watch(process)?;
    for signal in [Signal::TERM, Signal::KILL] {
        match pidfd_send_signal(process.get_ref(), signal) {
            Ok(()) => {}
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        if timeout(grace, wait(&process)).await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The containerd of this folder, if one runs: the one of the pid file, else one that was started
/// just before its agent was killed, and is in no file.
pub(super) fn find_containerd(pid_file: &Path, config: &str) -> io::Result<Option<(i32, OwnedFd)>> {
    if let Some(known) = Identity::read(pid_file)
        && let Some(process) = known.open()
    {
        return Ok(Some((known.pid, process)));
    }
    let table = read_table()?;
    let Some(entry) = table
        .iter()
        .find(|entry| plan::is_containerd_of(&entry.cmdline, config))
    else {
        return Ok(None);
    };
    let process = open(entry.pid)?;
    if !entry.is_still() {
        return Ok(None);
    }
    Identity::of(entry.pid)?.write(pid_file)?;
    Ok(Some((entry.pid, process)))
}

/// Kills the shims that serve the containerd at `socket`, with all that they hold: a shim is the
/// reaper of its containers' processes, so that all of them descend from it. How many shims.
pub(super) fn kill_shims(socket: &str) -> io::Result<usize> {
    let mut shims = 0;
    // A process may fork while it is being killed: again, until a look finds none. The bound is for
    // processes that cannot be killed (uninterruptible sleep).
    for _ in 0..20 {
        let table = read_table()?;
        let ours: Vec<i32> = table
            .iter()
            .filter(|entry| plan::is_shim_of(&entry.cmdline, socket))
            .map(|entry| entry.pid)
            .collect();
        if ours.is_empty() {
            break;
        }
        shims = shims.max(ours.len());
        // The containers first: without its shim a process would be handed to pid 1, out of sight.
        let below = descendants(&table, &ours);
        let victims = if below.is_empty() { &ours } else { &below };
        for pid in victims {
            if let Ok(fd) = open(*pid) {
                let is_same = table
                    .iter()
                    .find(|entry| entry.pid == *pid)
                    .is_some_and(|entry| entry.is_still());
                if is_same {
                    // What has ended by itself meanwhile is as good as killed.
                    let _ = pidfd_send_signal(&fd, Signal::KILL);
                    wait_briefly(&fd);
                }
            }
        }
    }
    Ok(shims)
}

/// Up to half a second for a killed process to be gone.
fn wait_briefly(process: &OwnedFd) {
    let mut fds = [rustix::event::PollFd::new(
        process,
        rustix::event::PollFlags::IN,
    )];
    let limit = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 500_000_000,
    };
    // Out of time or interrupted: the next look decides.
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}

struct Entry {
    pid: i32,
    parent: i32,
    start_ticks: u64,
    cmdline: Vec<String>,
}

impl Entry {
    fn is_still(&self) -> bool {
        Process::new(self.pid)
            .and_then(|process| process.stat())
            .is_ok_and(|stat| stat.starttime == self.start_ticks)
    }
}

/// Every process that is not a zombie. Those that end while they are read are left out.
fn read_table() -> io::Result<Vec<Entry>> {
    let processes = all_processes().map_err(io::Error::other)?;
    Ok(processes
        .filter_map(|process| {
            let process = process.ok()?;
            let stat = process.stat().ok()?;
            (stat.state != 'Z').then(|| Entry {
                pid: stat.pid,
                parent: stat.ppid,
                start_ticks: stat.starttime,
                cmdline: process.cmdline().unwrap_or_default(),
            })
        })
        .collect())
}

/// The processes below `roots`, without the roots.
fn descendants(table: &[Entry], roots: &[i32]) -> Vec<i32> {
    let mut found = Vec::new();
    let mut parents = roots.to_vec();
    while let Some(parent) = parents.pop() {
        for entry in table {
            let is_new = !found.contains(&entry.pid) && !roots.contains(&entry.pid);
            if entry.parent == parent && is_new {
                found.push(entry.pid);
                parents.push(entry.pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_pid_is_not_taken_for_the_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let identity = Identity::of(own).unwrap();
        assert!(identity.open().is_some());
        let earlier = Identity {
            start_ticks: identity.start_ticks - 1,
            ..identity.clone()
        };
        assert!(earlier.open().is_none());
        let other_boot = Identity {
            boot_id: "another".to_owned(),
            ..identity
        };
        assert!(other_boot.open().is_none());
    }

    #[test]
    fn a_pid_file_is_read_back_and_a_broken_one_names_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let own = i32::try_from(std::process::id()).unwrap();
        let identity = Identity::of(own).unwrap();
        identity.write(&file).unwrap();
        assert_eq!(Identity::read(&file), Some(identity));
        fs::write(&file, "12").unwrap();
        assert_eq!(Identity::read(&file), None);
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed_after_its_grace() {
        let mut child = std::process::Command::new("sh")
            .args([
                "-c",
                "trap '' TERM; echo; while :; do sleep 60 & wait; done",
            ])
            .process_group_and_pipe();
        let fd = open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(end(fd, Duration::from_millis(200)).await.unwrap());
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }

    trait Start {
        fn process_group_and_pipe(&mut self) -> std::process::Child;
    }

    impl Start for std::process::Command {
        /// Started, and past its first line: the trap is set.
        fn process_group_and_pipe(&mut self) -> std::process::Child {
            let mut child = self.stdout(std::process::Stdio::piped()).spawn().unwrap();
            let mut line = [0];
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            child
        }
    }

    #[test]
    fn everything_below_a_shim_is_found_and_nothing_beside_it() {
        let entry = |pid, parent| Entry {
            pid,
            parent,
            start_ticks: 0,
            cmdline: Vec::new(),
        };
        let table = [
            entry(1, 0),
            entry(10, 1),
            entry(11, 10),
            entry(12, 11),
            entry(20, 1),
        ];
        let mut found = descendants(&table, &[10]);
        found.sort_unstable();
        assert_eq!(found, [11, 12]);
    }
}
