//! Processes that a turn starts, and the ends of those that it kills.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::{
    io::{AsyncWriteExt as _, Interest, unix::AsyncFd},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    cgroup::Service,
    clock::{self, Nanos},
};

/// A program in a service's cgroup, whose output goes to a file.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: i32,
    /// Right before the program began.
    pub began: Nanos,
}

/// Becomes the program when it is told to, once it is in its cgroup.
const SHELL: &str = "read -r go && exec \"$@\" </dev/null";

impl Process {
    pub async fn start(
        program: &Path,
        args: &[OsString],
        path: &OsStr,
        service: &Service,
        log: &Path,
    ) -> Result<Self> {
        let name = program.display();
        let log = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let mut child = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(program)
            .args(args)
            .env("PATH", path)
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let pid = child.id().with_context(|| format!("{name} has ended"))?;
        let pid = pid.try_into()?;
        let mut go = child.stdin.take().context("no standard input")?;
        service
            .add(pid)
            .with_context(|| format!("starting {name}"))?;
        let began = clock::now();
        go.write_all(b"\n").await?;
        Ok(Self { child, pid, began })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// An error when it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("ended by itself: {status}"),
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await?;
        Ok(())
    }

    /// SIGTERM, and SIGKILL after `grace`.
    pub async fn stop(mut self, grace: Duration) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("no pid")?;
        // It may have ended.
        let _ = kill_process(pid, Signal::TERM);
        if timeout(grace, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

/// The pids of a process's children, oldest first.
pub fn children(pid: i32) -> Result<Vec<i32>> {
    let all = procfs::process::all_processes()?.filter_map(Result::ok);
    // One may end between the two.
    let stats = all.filter_map(|process| process.stat().ok());
    let mut found: Vec<_> = stats
        .filter(|stat| stat.ppid == pid)
        .map(|stat| stat.pid)
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// A handle of somebody's process, by which the kernel tells of its end.
#[derive(Debug)]
pub struct Victim(AsyncFd<OwnedFd>);

impl Victim {
    #[expect(
        unsafe_code,
        reason = "tokio leaves it to us that the descriptor stays the same"
    )]
    pub fn open(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("no pid")?;
        let fd = pidfd_open(pid, PidfdFlags::NONBLOCK).context("opening a process")?;
        // SAFETY: an OwnedFd keeps the same open descriptor for as long as it lives.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(fd?))
    }

    /// SIGKILL; returns the time right before.
    pub fn kill(&self) -> Result<Nanos> {
        let at = clock::now();
        pidfd_send_signal(self.0.get_ref(), Signal::KILL).context("killing a process")?;
        Ok(at)
    }

    /// Waits until the process is gone; returns the time. None where that took longer than `limit`.
    pub async fn gone(&self, limit: Duration) -> Result<Option<Nanos>> {
        match timeout(limit, self.0.readable()).await {
            Ok(ready) => {
                ready?.retain_ready();
                Ok(Some(clock::now()))
            }
            Err(_) => Ok(None),
        }
    }
}
