//! A containerd of the agent's own, for machines that bring none.
//!
//! It belongs to one folder, lives in a session of its own, and outlives the agent: after a restart
//! the agent finds it by its pid file and goes on. While the agent runs, [`Task`] starts it again
//! when it ends. [`stop`] is for `skep down`, and needs no agent.
//!
//! In: [`Settings`]. Out: [`Supervised`], with the endpoint and a view of how the process fares.
//! The folder's files: `config.toml`, `containerd.log` (bounded), `containerd.pid`,
//! `containerd.sock`, `cni/` (the network and its addresses), `certs.d/` (registries, as containerd
//! reads them), `imported/` (which archives are in), `root/` (images; [`stop`] leaves them) and
//! `state/`.

mod archive;
mod plan;
mod process;
mod program;
mod teardown;

use std::{
    fs,
    fs::OpenOptions,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::process::Identity;
use self::program::Programs;
pub use self::{
    plan::{Subnet, Version},
    teardown::{Stopped, stop},
};

/// How long a containerd may take from its start to its first answer. It reads back all its
/// containers first, on a machine that may just be booting.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at one that starts.
const READY_PERIOD: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The log is cut when it has grown so far; one former part is kept.
const LOG_LIMIT_BYTES: u64 = 16 * 1024 * 1024;
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// Waiting before a new start: doubled from the first to the last, and back to the first after it
/// has run for `STEADY`.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(30);
const STEADY: Duration = Duration::from_secs(60);
/// `sun_path` has 108 bytes, the last one 0; the longest socket is containerd's own second one.
const SOCKET_PATH_BYTES: usize = 107;
const SECOND_SOCKET: &str = ".ttrpc";
/// The bit of CAP_SYS_RESOURCE.
const CAP_SYS_RESOURCE: u64 = 1 << 24;
/// Kept from the agent's environment: how to reach registries. All else could mislead it: with
/// NOTIFY_SOCKET it would tell systemd that the agent is ready.
const KEPT_VARIABLES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

#[derive(Clone, Debug)]
pub struct Settings {
    /// Everything is below it. An absolute path.
    pub dir: PathBuf,
    /// Looked through before PATH and the usual folders, for programs and CNI plugins.
    pub bin_dirs: Vec<PathBuf>,
    /// The image of sandboxes.
    pub pause_image: String,
    /// Each `*.tar` in it is read into containerd's store.
    pub images_dir: Option<PathBuf>,
    /// The pods' network; none: a /24 of 10.88.0.0/16 to which the machine has no route.
    pub subnet: Option<Subnet>,
    /// The driver is systemd, and not cgroupfs.
    pub systemd_cgroup: bool,
}

impl Settings {
    /// With the folder `containerd` of the agent's root, and nothing out of the ordinary.
    pub fn for_root(root: &Path, pause_image: impl Into<String>) -> Self {
        Self {
            dir: root.join("containerd"),
            bin_dirs: Vec::new(),
            pause_image: pause_image.into(),
            images_dir: None,
            subnet: None,
            systemd_cgroup: false,
        }
    }

    /// As the CRI client takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.file("containerd.sock").display())
    }

    /// The pods' bridge, and the name of their network.
    pub fn bridge(&self) -> String {
        plan::network_name(&self.dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{program} is not installed (looked in {places}): install it, as the package {package}, \
         or name a running runtime with --container-runtime-endpoint"
    )]
    NotInstalled {
        program: &'static str,
        package: &'static str,
        places: String,
    },
    #[error(
        "the CNI plugins {missing} are not installed (looked in {places}): install the package \
         containernetworking-plugins"
    )]
    NoPlugins { missing: String, places: String },
    #[error("{program} does not tell its version: it printed {printed:?}")]
    NoVersion { program: String, printed: String },
    #[error(
        "containerd {}.{} is too old: {}.{} or newer is needed",
        .found.major, .found.minor, Version::OLDEST.major, Version::OLDEST.minor
    )]
    TooOld { found: Version },
    #[error("the folder for containerd must be an absolute path in UTF-8, and is {dir}")]
    BadFolder { dir: String },
    #[error(
        "the path of containerd's socket, {path}, has {length} bytes and may have \
         {SOCKET_PATH_BYTES}: choose a shorter root folder"
    )]
    SocketPath { path: String, length: usize },
    #[error(
        "something listens on {path} that this agent has not started: stop it, or name it with \
         --container-runtime-endpoint"
    )]
    SocketTaken { path: String },
    #[error("every /24 of 10.88.0.0/16 is in use on this machine: name a free network")]
    NoSubnet,
    #[error("/proc/net/route has an unknown form")]
    Routes,
    #[error("{what} {path}")]
    File {
        what: &'static str,
        path: String,
        source: io::Error,
    },
    #[error("starting {program}")]
    Start { program: String, source: io::Error },
    #[error("containerd ended while it started; the end of its log {log}: {tail}")]
    Ended { log: String, tail: String },
    #[error(
        "containerd did not answer within {} s; the end of its log {log}: {tail}",
        READY_LIMIT.as_secs()
    )]
    NotReady { log: String, tail: String },
    #[error("reading the image archive {archive}: {said}")]
    Import { archive: String, said: String },
    #[error("{command} ended with an error: {said}")]
    Command { command: String, said: String },
    #[error("containerd (pid {pid}) does not end")]
    NotEnding { pid: i32 },
    #[error("looking at this machine's processes and mounts")]
    Look { source: io::Error },
}

/// How the containerd fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Running {
        pid: i32,
    },
    /// It ended; it is started again.
    Restarting {
        why: String,
    },
}

/// A containerd that is up, or is being brought up again.
#[derive(Clone, Debug)]
pub struct Supervised {
    pub endpoint: String,
    pub version: Version,
    /// Found running from an earlier life of the agent.
    pub is_adopted: bool,
    pub state: watch::Receiver<State>,
}

/// Watches a containerd and starts it again.
#[derive(Debug)]
pub struct Task {
    settings: Settings,
    programs: Programs,
    process: AsyncFd<OwnedFd>,
    /// Ours to reap; none when it was adopted.
    child: Option<std::process::Child>,
    state: watch::Sender<State>,
}

/// The version of the containerd that would be started: everything that it needs is installed.
pub async fn installed(settings: &Settings) -> Result<Version, Error> {
    Ok(program::find(settings).await?.version)
}

/// A containerd that answers, with the archives of `images_dir` in its store: the one that already
/// runs from `dir`, else a new one.
pub async fn start_or_adopt(settings: Settings) -> Result<(Supervised, Task), Error> {
    check_paths(&settings)?;
    let programs = program::find(&settings).await?;
    for name in [
        "", "cni", "cni/conf", "certs.d", "imported", "root", "state",
    ] {
        let dir = settings.dir.join(name);
        fs::create_dir_all(&dir).map_err(file_error("making the folder", &dir))?;
    }
    let pid_file = settings.file("containerd.pid");
    let known = Identity::read(&pid_file);
    let running = find_containerd(&settings)?;
    let is_adopted = running.is_some();
    let (pid, process, child) = match running {
        Some((pid, process)) => {
            info!(pid, "containerd of an earlier start is still there");
            (pid, watched(process)?, None)
        }
        None => {
            refuse_taken_socket(&settings)?;
            forget_other_boot(&settings, known.as_ref())?;
            start(&settings, &programs)?
        }
    };
    let (state, state_rx) = watch::channel(State::Running { pid });
    let mut task = Task {
        settings,
        programs,
        process,
        child,
        state,
    };
    task.until_ready().await?;
    archive::import(&task.settings, &task.programs).await?;
    let supervised = Supervised {
        endpoint: task.settings.endpoint(),
        version: task.programs.version,
        is_adopted,
        state: state_rx,
    };
    Ok((supervised, task))
}

impl Task {
    /// Until `stop`; the containerd stays.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = BACKOFF_FIRST;
        let mut started = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = process::wait(&self.process) => {}
                () = bound_log(&self.settings) => continue,
            }
            let why = self.reap();
            warn!(why, "containerd ended");
            self.state.send_replace(State::Restarting { why });
            if started.elapsed() >= STEADY {
                backoff = BACKOFF_FIRST;
            }
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = sleep(backoff) => {}
                }
                backoff = (backoff * 2).min(BACKOFF_LAST);
                match self.start_again().await {
                    Ok(pid) => {
                        info!(pid, "containerd runs again");
                        started = Instant::now();
                        self.state.send_replace(State::Running { pid });
                        break;
                    }
                    Err(error) => {
                        error!(%error, "containerd cannot be started");
                        let why = error.to_string();
                        self.state.send_replace(State::Restarting { why });
                    }
                }
            }
        }
    }

    async fn start_again(&mut self) -> Result<i32, Error> {
        let (pid, process, child) = start(&self.settings, &self.programs)?;
        self.process = process;
        self.child = child;
        let ready = self.until_ready().await;
        if ready.is_err() {
            // One that hangs would keep the next from its socket.
            if let Some(process) =
                Identity::read(&self.settings.file("containerd.pid")).and_then(|known| known.open())
            {
                let _ = process::end(process, STOP_GRACE).await;
            }
            self.reap();
        }
        ready.map(|()| pid)
    }

    /// How it ended, as far as that can be known: only a parent is told.
    fn reap(&mut self) -> String {
        match self.child.as_mut().map(std::process::Child::try_wait) {
            Some(Ok(Some(status))) => status.to_string(),
            Some(_) | None => "gone".to_owned(),
        }
    }

    /// Until it answers.
    async fn until_ready(&mut self) -> Result<(), Error> {
        let ready = async {
            while self
                .programs
                .ctr(&self.settings, &["version"])
                .await
                .is_err()
            {
                sleep(READY_PERIOD).await;
            }
        };
        let has_ended = tokio::select! {
            biased;
            ready = timeout(READY_LIMIT, ready) => match ready {
                Ok(()) => return Ok(()),
                Err(_) => false,
            },
            () = process::wait(&self.process) => true,
        };
        let (log, tail) = log_tail(&self.settings);
        Err(if has_ended {
            self.reap();
            Error::Ended { log, tail }
        } else {
            Error::NotReady { log, tail }
        })
    }
}

/// The one of this folder that runs.
fn find_containerd(settings: &Settings) -> Result<Option<(i32, OwnedFd)>, Error> {
    let config = text(&settings.file("config.toml"))?;
    process::find_containerd(&settings.file("containerd.pid"), &config)
        .map_err(|source| Error::Look { source })
}

/// Paths must be text (configuration files hold them) and short enough for a socket.
fn check_paths(settings: &Settings) -> Result<(), Error> {
    if !settings.dir.is_absolute() {
        return Err(Error::BadFolder {
            dir: settings.dir.display().to_string(),
        });
    }
    let path = text(&settings.file("containerd.sock"))? + SECOND_SOCKET;
    if path.len() > SOCKET_PATH_BYTES {
        return Err(Error::SocketPath {
            length: path.len(),
            path,
        });
    }
    Ok(())
}

fn text(path: &Path) -> Result<String, Error> {
    path.to_str().map(str::to_owned).ok_or(Error::BadFolder {
        dir: path.display().to_string(),
    })
}

fn file_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
    move |source| Error::File {
        what,
        path: path.display().to_string(),
        source,
    }
}

/// A socket that answers belongs to a process that the pid file does not name.
fn refuse_taken_socket(settings: &Settings) -> Result<(), Error> {
    let socket = settings.file("containerd.sock");
    if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
        return Err(Error::SocketTaken {
            path: socket.display().to_string(),
        });
    }
    Ok(())
}

/// Run-time state of an earlier boot describes processes and mounts that are gone. containerd
/// expects that folder to be lost at a reboot; this one lies on disk.
fn forget_other_boot(settings: &Settings, known: Option<&Identity>) -> Result<(), Error> {
    let boot = process::boot_id().map_err(|source| Error::Look { source })?;
    if known.is_some_and(|known| known.boot_id != boot) {
        for name in ["state", "cni/ipam"] {
            let dir = settings.file(name);
            if dir.exists() {
                fs::remove_dir_all(&dir).map_err(file_error("emptying the folder", &dir))?;
            }
        }
        let state = settings.file("state");
        fs::create_dir_all(&state).map_err(file_error("making the folder", &state))?;
    }
    Ok(())
}

type Started = (i32, AsyncFd<OwnedFd>, Option<std::process::Child>);

/// Writes the configuration and starts the process.
fn start(settings: &Settings, programs: &Programs) -> Result<Started, Error> {
    write_configuration(settings, programs)?;
    let log = settings.file("containerd.log");
    cut_log(&log, 0).map_err(file_error("renewing the log", &log))?;
    let open = || {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(file_error("opening the log", &log))
    };
    let program = programs.containerd.display().to_string();
    let mut command = Command::new(&programs.containerd);
    command
        .arg("--config")
        .arg(settings.file("config.toml"))
        .args(["--log-level", "info"])
        .current_dir(&settings.dir)
        .env_clear()
        .env("PATH", &programs.path)
        .envs(
            KEPT_VARIABLES
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?);
    detach(&mut command);
    let child = command.spawn().map_err(|source| Error::Start {
        program: program.clone(),
        source,
    })?;
    let pid = i32::try_from(child.id()).expect("the kernel's pids fit");
    let pid_file = settings.file("containerd.pid");
    Identity::of(pid)
        .and_then(|identity| identity.write(&pid_file))
        .map_err(file_error("writing", &pid_file))?;
    let process = process::open(pid).map_err(|source| Error::Start { program, source })?;
    info!(pid, version = ?programs.version, "containerd started");
    Ok((pid, watched(process)?, Some(child)))
}

fn watched(process: OwnedFd) -> Result<AsyncFd<OwnedFd>, Error> {
    process::watch(process).map_err(|source| Error::Look { source })
}

/// A session of its own: no signal of the agent's terminal or process group reaches it.
fn detach(command: &mut Command) {
    #[expect(
        unsafe_code,
        reason = "the standard library has no stable call that starts a child in a new session"
    )]
    // SAFETY: between fork and exec only `setsid` is called, which allocates nothing, takes no lock
    // and is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
}

fn write_configuration(settings: &Settings, programs: &Programs) -> Result<(), Error> {
    let conflist = settings.file("cni/conf/10-skep.conflist");
    let subnet = choose_subnet(settings, &conflist)?;
    let list = plan::compute_conflist(
        &settings.bridge(),
        subnet,
        &text(&settings.file("cni/ipam"))?,
    );
    fs::write(&conflist, list).map_err(file_error("writing", &conflist))?;

    let path = |name: &str| text(&settings.file(name));
    let config = plan::compute_config(&plan::ConfigInput {
        version: programs.version,
        root: &path("root")?,
        state: &path("state")?,
        socket: &path("containerd.sock")?,
        runc: &text(&programs.runc)?,
        runc_root: &path("state/runc")?,
        cni_bin_dir: &text(&programs.plugins)?,
        cni_conf_dir: &path("cni/conf")?,
        certs_dir: &path("certs.d")?,
        pause_image: &settings.pause_image,
        snapshotter: snapshotter(&settings.dir)?,
        systemd_cgroup: settings.systemd_cgroup,
        restrict_oom_score_adj: !may_lower_oom_score()?,
    });
    let file = settings.file("config.toml");
    fs::write(&file, config).map_err(file_error("writing", &file))
}

/// The one in use, else the one asked for, else a free one. A network in use stays: pods of it may
/// run.
fn choose_subnet(settings: &Settings, conflist: &Path) -> Result<Subnet, Error> {
    if let Some(subnet) = settings.subnet {
        return Ok(subnet);
    }
    let former = fs::read_to_string(conflist).ok();
    if let Some(subnet) = former.as_deref().and_then(plan::subnet_in) {
        return Ok(subnet);
    }
    let file = Path::new("/proc/net/route");
    let table = fs::read_to_string(file).map_err(file_error("reading", file))?;
    let routes = plan::parse_routes(&table).ok_or(Error::Routes)?;
    plan::plan_subnet(&settings.dir, &routes).ok_or(Error::NoSubnet)
}

/// An overlay cannot lie on another one (an agent in a container): copies do there.
fn snapshotter(dir: &Path) -> Result<&'static str, Error> {
    const OVERLAYFS: i64 = 0x794c_7630;
    let stat = rustix::fs::statfs(dir)
        .map_err(|error| file_error("looking at the file system of", dir)(error.into()))?;
    Ok(if stat.f_type == OVERLAYFS {
        "native"
    } else {
        "overlayfs"
    })
}

/// Has CAP_SYS_RESOURCE, and may hand it on.
fn may_lower_oom_score() -> Result<bool, Error> {
    let status = procfs::process::Process::myself()
        .and_then(|process| process.status())
        .map_err(|error| Error::Look {
            source: io::Error::other(error),
        })?;
    Ok([status.capbnd, Some(status.capeff)]
        .iter()
        .all(|set| set.is_some_and(|set| set & CAP_SYS_RESOURCE != 0)))
}

/// Cuts the log each time it has grown too long. Never returns but to be called again.
async fn bound_log(settings: &Settings) {
    sleep(LOG_PERIOD).await;
    let log = settings.file("containerd.log");
    if let Err(error) = cut_log(&log, LOG_LIMIT_BYTES) {
        warn!(%error, log = %log.display(), "cannot cut containerd's log");
    }
}

/// Moves what is beyond `limit` to `.log.1`. containerd keeps the file open, for appending, so it is
/// copied and emptied; a few lines that come in between are lost.
fn cut_log(log: &Path, limit: u64) -> io::Result<()> {
    let size = match fs::metadata(log) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if size > limit {
        fs::copy(log, log.with_extension("log.1"))?;
        OpenOptions::new().write(true).open(log)?.set_len(0)?;
    }
    Ok(())
}

/// The log's path and its last lines, for an error that a person reads.
fn log_tail(settings: &Settings) -> (String, String) {
    let log = settings.file("containerd.log");
    let text = fs::read(&log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(3)..].join(" | ");
    (log.display().to_string(), tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_root_that_is_too_long_for_a_socket_is_refused_with_both_lengths() {
        let root = Path::new("/").join("x".repeat(90));
        let settings = Settings::for_root(&root, "pause:1");
        let error = start_or_adopt(settings).await.unwrap_err();
        assert!(
            matches!(error, Error::SocketPath { length: 124, .. }),
            "{error}"
        );
        assert!(
            error.to_string().contains("124 bytes and may have 107"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_relative_folder_is_refused() {
        let settings = Settings::for_root(Path::new("here"), "pause:1");
        let error = stop(&settings).await.unwrap_err();
        assert!(matches!(error, Error::BadFolder { .. }), "{error}");
    }

    #[test]
    fn a_log_that_is_too_long_is_cut_and_its_former_part_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("containerd.log");
        fs::write(&log, "0123456789").unwrap();
        cut_log(&log, 10).unwrap();
        assert_eq!(fs::read(&log).unwrap().len(), 10);
        cut_log(&log, 9).unwrap();
        assert_eq!(fs::read(&log).unwrap().len(), 0);
        let former = dir.path().join("containerd.log.1");
        assert_eq!(fs::read(former).unwrap().len(), 10);
    }

    #[test]
    fn a_socket_that_someone_else_serves_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::for_root(dir.path(), "pause:1");
        fs::create_dir_all(&settings.dir).unwrap();
        let _other =
            std::os::unix::net::UnixListener::bind(settings.file("containerd.sock")).unwrap();
        let error = refuse_taken_socket(&settings).unwrap_err();
        assert!(matches!(error, Error::SocketTaken { .. }), "{error}");
    }
}
