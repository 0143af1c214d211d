//! Reading and following one container's log file (LOG-04, 11, 13, 14, 15).
//!
//! A follower reads the live file to its end, then waits for inotify. When another file stands
//! under the path (rotation renamed ours away and the runtime opened a new one), ours is read until
//! its writer has closed it, then what was rotated in between, if this reader was slow, then the
//! new one: no line is lost or doubled. It ends when the container has stopped and its file is
//! closed and read.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    follow::{Notice, Notices},
    lines::{Lines, UnknownFormat, Wanted},
    rotate, tail,
};

/// How much is read at one time.
const BLOCK: usize = 64 << 10;

/// The longest time without looking again, in case a notice was lost (as upstream).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long a file whose writer should be gone (rotated away, container stopped) may stay open
/// before it counts as complete: a process that outlived its container can hold the pipe.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// The same where that was so before the file was watched: the close was most likely before too,
/// and cannot be seen any more.
const CLOSED_BEFORE: Duration = Duration::from_millis(100);

/// Retries of opening the live file while it is being rotated; a rotation takes milliseconds.
const OPEN_TRIES: usize = 10;

/// What of a log is wanted: `kubectl logs`' options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogOptions {
    pub follow: bool,
    /// So many lines from the end of the live file; 0 is none.
    pub tail: Option<u64>,
    /// Lines of this time or later; applied after `tail`.
    pub since: Option<Timestamp>,
    /// Ends after so many bytes, in the middle of a line if need be.
    pub limit_bytes: Option<u64>,
    /// Each line begins with its time.
    pub timestamps: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    // Upstream's words (LOG-11).
    #[error("failed to try resolving symlinks in path {path:?}")]
    Resolve { path: PathBuf, source: io::Error },
    #[error("failed to open log file {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("failed to find the last lines of log file {path:?}")]
    Tail { path: PathBuf, source: io::Error },
    #[error("failed to read log file {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to watch log file {path:?}")]
    Watch { path: PathBuf, source: io::Error },
    #[error("unsupported log format: {line:?}")]
    Format { line: String },
    #[error("the agent is stopping")]
    Stopping,
}

/// Opens a log. The stream has its bytes; with `follow` it goes on until `ended` (the container has
/// stopped) and the file's end, without, `ended` is not looked at. Reads when it is polled: a slow
/// reader holds up nobody.
pub async fn open(
    path: PathBuf,
    options: LogOptions,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send, Error> {
    let reader = Reader::open(path, options, Box::pin(ended)).await?;
    Ok(futures::stream::unfold(
        Some(Box::new(reader)),
        |reader| async {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        },
    ))
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A file that is being read: plain, or rotated and compressed.
type Source = Box<dyn Read + Send>;

struct Reader {
    path: PathBuf,
    lines: Lines,
    /// None only while a block is being read.
    source: Option<Source>,
    /// Bytes of a file that is not followed are read up to the size it had when it was opened.
    left: Option<u64>,
    /// To be read before `live`: rotated while this reader was still at an older file.
    missed: VecDeque<Source>,
    live: LiveFile,
    /// `source` is `live`, and not one that was missed.
    is_at_live: bool,
    follow: Option<Follow>,
    is_over: bool,
}

/// The file that stood under the path when it was opened.
#[derive(Debug)]
struct LiveFile {
    identity: Identity,
    file: File,
    /// The rotated files beside it at that moment.
    rotated: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

struct Follow {
    notices: Option<Notices>,
    ended: Option<Ended>,
    /// Since when the container is known to have stopped.
    ended_at: Option<Instant>,
    /// Since when another file stands under the path.
    replaced_at: Option<Instant>,
    close_within: Duration,
    is_closed: bool,
    /// The file was found complete; it is read once more for what came before that.
    is_last_read: bool,
}

enum AtEnd {
    ReadMore,
    NextFile,
    Over,
}

impl Reader {
    async fn open(path: PathBuf, options: LogOptions, ended: Ended) -> Result<Self, Error> {
        let shown = path.clone();
        let tail = options.tail;
        let (path, live, source, size) = blocking(move || {
            let path = fs::canonicalize(&shown).map_err(|source| Error::Resolve {
                path: shown,
                source,
            })?;
            let live = open_live(&path)?;
            let failed = |source| Error::Tail {
                path: path.clone(),
                source,
            };
            let mut source = live.file.try_clone().map_err(failed)?;
            let start = match tail {
                Some(lines) => tail::start_of_last(&mut source, lines).map_err(failed)?,
                None => 0,
            };
            source.seek(SeekFrom::Start(start)).map_err(failed)?;
            let size = live.file.metadata().map_err(failed)?.len();
            Ok((path, live, source, size.saturating_sub(start)))
        })
        .await?;
        let lines = Lines::new(Wanted {
            since: options.since,
            timestamps: options.timestamps,
            limit_bytes: options.limit_bytes,
            max_lines: options.tail.filter(|_| !options.follow),
        });
        let follow = options.follow.then(|| Follow {
            notices: None,
            ended: Some(ended),
            ended_at: None,
            replaced_at: None,
            close_within: CLOSE_WITHIN,
            is_closed: false,
            is_last_read: false,
        });
        Ok(Self {
            path,
            lines,
            source: Some(Box::new(source)),
            left: (!options.follow).then_some(size),
            missed: VecDeque::new(),
            live,
            is_at_live: true,
            follow,
            is_over: false,
        })
    }

    /// The next bytes to show; none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut out = Vec::new();
        while !self.is_over && !self.lines.is_done() {
            let block = self.read_block().await?;
            if block.is_empty() {
                self.at_end(&mut out).await?;
            } else {
                self.lines.push(&block, &mut out)?;
            }
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
        Ok(None)
    }

    async fn read_block(&mut self) -> Result<Vec<u8>, Error> {
        let Some(mut source) = self.source.take() else {
            return Err(Error::Stopping);
        };
        let room = self.left.map_or(BLOCK, |left| {
            usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))
        });
        let path = self.path.clone();
        let (source, block) = blocking(move || {
            let mut block = vec![0; room];
            let read = loop {
                match source.read(&mut block) {
                    Ok(read) => break read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(Error::Read { path, source }),
                }
            };
            block.truncate(read);
            Ok((source, block))
        })
        .await?;
        self.source = Some(source);
        if let Some(left) = &mut self.left {
            *left -= block.len() as u64;
        }
        Ok(block)
    }

    async fn at_end(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        let Some(follow) = &mut self.follow else {
            self.lines.finish(out)?;
            self.is_over = true;
            return Ok(());
        };
        if !self.is_at_live {
            // A missed file is complete.
            self.lines.finish(out)?;
            return self.begin_next();
        }
        match follow.wait(&self.path, &self.live).await? {
            AtEnd::ReadMore => Ok(()),
            AtEnd::Over => {
                self.lines.finish(out)?;
                self.is_over = true;
                Ok(())
            }
            AtEnd::NextFile => {
                if self.find_next().await? {
                    self.lines.finish(out)?;
                    self.begin_next()?;
                }
                Ok(())
            }
        }
    }

    /// Opens the file that is live now, and what was rotated away between ours and that one; false
    /// where another rotation is just going on.
    async fn find_next(&mut self) -> Result<bool, Error> {
        let (path, read) = (self.path.clone(), self.live.identity);
        let known = self.live.rotated.clone();
        let found = blocking(move || match open_live(&path) {
            Ok(live) => Ok(Some((
                open_missed(&path, read, &known, &live.rotated),
                live,
            ))),
            Err(Error::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await?;
        let Some((missed, live)) = found else {
            return Ok(false);
        };
        self.missed = missed;
        self.live = live;
        self.is_at_live = false;
        if let Some(follow) = &mut self.follow {
            follow.notices = None;
            follow.replaced_at = None;
            follow.is_closed = false;
            follow.is_last_read = false;
        }
        Ok(true)
    }

    fn begin_next(&mut self) -> Result<(), Error> {
        self.source = match self.missed.pop_front() {
            Some(missed) => Some(missed),
            None => {
                self.is_at_live = true;
                let live = self.live.file.try_clone().map_err(|source| Error::Open {
                    path: self.path.clone(),
                    source,
                })?;
                Some(Box::new(live))
            }
        };
        Ok(())
    }
}

impl Follow {
    /// The file is read to its end for now: what next?
    async fn wait(&mut self, path: &Path, live: &LiveFile) -> Result<AtEnd, Error> {
        let failed = |source| Error::Watch {
            path: path.to_owned(),
            source,
        };
        let is_replaced = || identity_at(path).is_some_and(|found| found != live.identity);
        let Some(notices) = &mut self.notices else {
            // Watched from here on; what was written before is read after.
            let folder = path.parent().unwrap_or(Path::new("/"));
            self.notices = Some(Notices::new(folder, &live.file).map_err(failed)?);
            if let Some(ended) = &mut self.ended
                && futures::poll!(ended.as_mut()).is_ready()
            {
                self.ended = None;
                self.ended_at = Some(Instant::now());
            }
            let is_late = self.ended.is_none() || is_replaced();
            self.close_within = if is_late { CLOSED_BEFORE } else { CLOSE_WITHIN };
            return Ok(AtEnd::ReadMore);
        };
        let now = Instant::now();
        let (since, then) = if is_replaced() {
            let since = *self.replaced_at.get_or_insert(now);
            (Some(since), AtEnd::NextFile)
        } else {
            (self.ended_at, AtEnd::Over)
        };
        let mut look_again = now + LOOK_AGAIN;
        if let Some(since) = since {
            let complete_at = since + self.close_within;
            if self.is_closed || now >= complete_at {
                if self.is_last_read {
                    return Ok(then);
                }
                self.is_last_read = true;
                return Ok(AtEnd::ReadMore);
            }
            look_again = look_again.min(complete_at);
        }
        let has_ended = async {
            match &mut self.ended {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            notice = notices.next() => match notice.map_err(failed)? {
                Notice::Closed => self.is_closed = true,
                Notice::Written => self.is_closed = false,
                Notice::Folder => {}
            },
            () = has_ended => {
                self.ended = None;
                self.ended_at = Some(Instant::now());
            }
            () = tokio::time::sleep_until(look_again) => {}
        }
        self.is_last_read = false;
        Ok(AtEnd::ReadMore)
    }
}

impl From<UnknownFormat> for Error {
    fn from(unknown: UnknownFormat) -> Self {
        Self::Format { line: unknown.line }
    }
}

fn identity_of(metadata: &fs::Metadata) -> Identity {
    Identity {
        device: metadata.dev(),
        inode: metadata.ino(),
    }
}

fn identity_at(path: &Path) -> Option<Identity> {
    fs::metadata(path)
        .ok()
        .map(|metadata| identity_of(&metadata))
}

/// Opens the live file together with the list of what is rotated beside it, both of one moment.
fn open_live(path: &Path) -> Result<LiveFile, Error> {
    let failed = |source| Error::Open {
        path: path.to_owned(),
        source,
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let before = rotate::rotations_of(path);
        let file = match File::open(path) {
            Ok(file) => file,
            // Renamed away, and the runtime has not opened the new one yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < OPEN_TRIES => {
                std::thread::park_timeout(Duration::from_millis(20));
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let rotated = rotate::rotations_of(path);
        if rotated == before || tries == OPEN_TRIES {
            let identity = identity_of(&file.metadata().map_err(failed)?);
            return Ok(LiveFile {
                identity,
                file,
                rotated,
            });
        }
    }
}

/// The files that were rotated away after the one that was `read`, oldest first, opened. Of the
/// rotations that are there `now` and were not `known` when that one was opened, the first is that
/// one itself.
fn open_missed(
    path: &Path,
    read: Identity,
    known: &BTreeSet<String>,
    now: &BTreeSet<String>,
) -> VecDeque<Source> {
    let mut newer = now.difference(known);
    let mut missed = VecDeque::new();
    if let Some(first) = newer.next() {
        let plain = rotate::rotated_path(path, first);
        // Where it is not, somebody removed our file without rotating it.
        if identity_at(&plain).is_some_and(|found| found != read) {
            missed.extend(open_rotated(path, first));
        }
    }
    missed.extend(newer.filter_map(|name| open_rotated(path, name)));
    missed
}

fn open_rotated(path: &Path, rotation: &str) -> Option<Source> {
    let plain = rotate::rotated_path(path, rotation);
    if let Ok(file) = File::open(&plain) {
        return Some(Box::new(file));
    }
    // Compressing removes the plain file only when the compressed one is there.
    match File::open(rotate::compressed_path(&plain)) {
        Ok(file) => Some(Box::new(flate2::read::MultiGzDecoder::new(file))),
        Err(error) => {
            tracing::warn!(path = %plain.display(), %error, "a rotated log file was removed before a follower read it");
            None
        }
    }
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
mod tests;
