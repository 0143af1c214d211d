//! Rotation of the logs of running containers by size and count (LOG-07).
//!
//! Beside a live file `0.log` stand its rotations, `0.log.<YYYYMMDD-hhmmss>` in local time: the
//! newest plain (its readers may still be at it), older ones compressed as `….gz`. A rotation first
//! tidies those up, then renames the live file and asks the runtime to open a new one. The writer
//! keeps the renamed file until it has the new one, so no line is lost: no rename ever replaces a
//! file, and a file that still has a writer is not compressed (a runtime that failed to open a new
//! file may not have let go of the old one).
//!
//! [`plan`] is pure; [`Task`] carries it out over all running containers at each interval. What fails
//! is logged and tried again at the next.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture};
use jiff::{Timestamp, tz::TimeZone};
use rustix::fs::{CWD, RenameFlags};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::writer;
use crate::{
    config::LogSettings,
    cri,
    types::{clock, id::ContainerId},
};

const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// Looks at a file that still has a writer, before it is left for the next rotation: a process that
/// the runtime is just starting has a copy of the descriptor for a moment.
const WRITER_LOOKS: usize = 5;
const WRITER_LOOK_PAUSE: Duration = Duration::from_millis(10);

/// A container whose log is looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningLog {
    pub container_id: ContainerId,
    pub path: PathBuf,
}

/// Lists the running containers that have a log.
pub type Running = Arc<dyn Fn() -> Vec<RunningLog> + Send + Sync>;

/// What went wrong outside, as the one who did it says.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Asks the runtime to open a container's log file anew (ReopenContainerLog).
pub type Reopen = Arc<dyn Fn(ContainerId) -> BoxFuture<'static, Result<(), Cause>> + Send + Sync>;

/// [`Reopen`] through the CRI.
pub fn reopen_through(client: cri::Client) -> Reopen {
    Arc::new(move |container| {
        let client = client.clone();
        Box::pin(async move { Ok(client.reopen_log(&container).await?) })
    })
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot look at log file {}", path.display())]
    Look { path: PathBuf, source: io::Error },
    #[error("cannot remove {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot compress {}", path.display())]
    Compress { path: PathBuf, source: io::Error },
    #[error("cannot rename {} to {}", from.display(), to.display())]
    Rename {
        from: PathBuf,
        to: PathBuf,
        source: io::Error,
    },
    #[error("the runtime did not open the log of container {id} anew")]
    Reopen { id: ContainerId, source: Cause },
    #[error("the agent is stopping")]
    Stopping,
}

/// What is to be done with a live file's rotations before it is rotated itself, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tidy {
    /// Left over from a rotation that broke off, or too old.
    pub remove: Vec<String>,
    pub compress: Vec<String>,
}

/// From the names beside the live file `base`; of the rotated ones, `max_files - 2` stay, since the
/// live file becomes one more and the runtime makes a new one. Never more than `max_files` then.
pub fn plan(base: &str, names: &[String], max_files: usize) -> Tidy {
    let rotated: BTreeSet<&String> = names
        .iter()
        .filter(|name| {
            name.strip_prefix(base)
                .is_some_and(|suffix| suffix.len() > 1 && suffix.starts_with('.'))
        })
        .collect();
    let (used, unused): (Vec<&String>, Vec<&String>) = rotated.iter().copied().partition(|name| {
        !name.ends_with(TEMPORARY) && !rotated.contains(&format!("{name}{COMPRESSED}"))
    });
    let excess = used.len().saturating_sub(max_files.saturating_sub(2));
    let (too_old, kept) = used.split_at(excess);
    Tidy {
        remove: unused
            .iter()
            .chain(too_old)
            .map(ToString::to_string)
            .collect(),
        compress: kept
            .iter()
            .filter(|name| !name.ends_with(COMPRESSED))
            .map(ToString::to_string)
            .collect(),
    }
}

/// The suffixes of a live file's rotations, oldest first: plain and compressed are one.
pub(super) fn rotations_of(live: &Path) -> io::Result<BTreeSet<String>> {
    let (base, names) = match beside(live) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(BTreeSet::new()),
        // The whole folder was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    Ok(names
        .iter()
        .filter_map(|name| name.strip_prefix(&base)?.strip_prefix('.'))
        .filter(|suffix| !suffix.is_empty() && !suffix.ends_with(TEMPORARY))
        .map(|suffix| suffix.strip_suffix(COMPRESSED).unwrap_or(suffix).to_owned())
        .collect())
}

pub(super) fn rotated_path(live: &Path, rotation: &str) -> PathBuf {
    let mut path = live.as_os_str().to_owned();
    path.push(".");
    path.push(rotation);
    path.into()
}

pub(super) fn compressed_path(rotated: &Path) -> PathBuf {
    with_suffix(rotated, COMPRESSED)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The file's name, and all names in its folder.
fn beside(live: &Path) -> io::Result<Option<(String, Vec<String>)>> {
    let (Some(folder), Some(base)) = (live.parent(), live.file_name().and_then(|n| n.to_str()))
    else {
        return Ok(None);
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(Some((base.to_owned(), names)))
}

/// Rotates the logs of `running` containers as the settings say. With rotation off (no `max_size`)
/// it only waits for its end.
pub fn new(settings: LogSettings, running: Running, reopen: Reopen) -> Task {
    Task {
        settings,
        running,
        reopen,
    }
}

pub struct Task {
    settings: LogSettings,
    running: Running,
    reopen: Reopen,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Task {
    /// A rotation that has begun when `stop` comes is finished.
    pub async fn run(self, stop: CancellationToken) {
        let Some(max_size) = self.settings.max_size else {
            return stop.cancelled().await;
        };
        let mut ticks = tokio::time::interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let (stop, reopen) = (&stop, &self.reopen);
            let max_files = self.settings.max_files;
            futures::stream::iter((self.running)())
                .for_each_concurrent(self.settings.workers.max(1), |log| async move {
                    if stop.is_cancelled() {
                        return;
                    }
                    let now = clock::wall_now();
                    if let Err(error) = look_after(&log, max_size, max_files, reopen, now).await {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::warn!(
                            container = %log.container_id, %error, cause,
                            "container log not rotated; tried again at the next interval"
                        );
                    }
                })
                .await;
        }
    }
}

/// Rotates one log if it has reached `max_size` bytes; true if it did.
pub async fn look_after(
    log: &RunningLog,
    max_size: u64,
    max_files: usize,
    reopen: &Reopen,
    now: Timestamp,
) -> Result<bool, Error> {
    let size = match size_of(&log.path)? {
        Some(size) => size,
        None => {
            // Somebody removed the live file, or a rotation broke off: the runtime writes into a
            // file that nobody can find.
            open_anew(log, reopen).await?;
            size_of(&log.path)?.unwrap_or(0)
        }
    };
    if size < max_size {
        return Ok(false);
    }
    let path = log.path.clone();
    blocking(move || tidy(&path, max_files)).await?;

    let rotation = now
        .to_zoned(TimeZone::system())
        .strftime("%Y%m%d-%H%M%S")
        .to_string();
    let rotated = rotated_path(&log.path, &rotation);
    if compressed_path(&rotated).exists() {
        // The clock went back; the next interval has another name.
        return Err(Error::Rename {
            from: log.path.clone(),
            to: rotated,
            source: io::ErrorKind::AlreadyExists.into(),
        });
    }
    rename(&log.path, &rotated)?;
    if let Err(error) = open_anew(log, reopen).await {
        // Where the runtime did open a new file after all, that one must not be replaced.
        match rename(&rotated, &log.path) {
            Ok(()) => {}
            Err(Error::Rename { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(back) => tracing::error!(
                container = %log.container_id, error = %back,
                "log file stays under its rotated name"
            ),
        }
        return Err(error);
    }
    Ok(true)
}

async fn open_anew(log: &RunningLog, reopen: &Reopen) -> Result<(), Error> {
    reopen(log.container_id.clone())
        .await
        .map_err(|source| Error::Reopen {
            id: log.container_id.clone(),
            source,
        })
}

fn size_of(path: &Path) -> Result<Option<u64>, Error> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Look {
            path: path.to_owned(),
            source,
        }),
    }
}

/// A rename that fails where `to` exists.
fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(|errno| {
        Error::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            source: errno.into(),
        }
    })
}

fn tidy(live: &Path, max_files: usize) -> Result<(), Error> {
    let found = beside(live).map_err(|source| Error::Look {
        path: live.to_owned(),
        source,
    })?;
    let Some((base, names)) = found else {
        return Ok(());
    };
    let folder = live.parent().unwrap_or(Path::new("/"));
    let tidy = plan(&base, &names, max_files);
    for name in tidy.remove {
        let path = folder.join(name);
        fs::remove_file(&path).map_err(|source| Error::Remove { path, source })?;
    }
    for name in tidy.compress {
        let path = folder.join(name);
        compress_complete(&path).map_err(|source| Error::Compress { path, source })?;
    }
    Ok(())
}

/// Compresses a file that nobody writes to any more; leaves another as it is.
fn compress_complete(plain: &Path) -> io::Result<()> {
    let file = fs::File::open(plain)?;
    for _ in 0..WRITER_LOOKS {
        // Where the file system cannot tell, the runtime's word counts, that it opened a new file.
        if writer::has_writer(&file) != Some(true) {
            return compress(plain);
        }
        std::thread::park_timeout(WRITER_LOOK_PAUSE);
    }
    tracing::warn!(path = %plain.display(), "rotated log file still has a writer; not compressed");
    Ok(())
}

/// Puts a compressed file in place of a plain one. At every moment one of both is there, whole.
fn compress(plain: &Path) -> io::Result<()> {
    let temporary = with_suffix(plain, TEMPORARY);
    let written = write_compressed(plain, &temporary)
        .and_then(|()| fs::rename(&temporary, compressed_path(plain)));
    if let Err(error) = written {
        // The disk may be full; what is left over is also removed by the next rotation.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    fs::remove_file(plain)
}

fn write_compressed(plain: &Path, temporary: &Path) -> io::Result<()> {
    let mut source = fs::File::open(plain)?;
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(source.metadata()?.mode() & 0o7777)
        .open(temporary)?;
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?;
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Stopping),
    }
}

#[cfg(test)]
pub(super) mod tests;
