//! Reading and following one container's log file (LOG-04, 11, 13, 14, 15).
//!
//! A follower reads the live file to its end, then waits for inotify. When another file stands
//! under the path (rotation renamed ours away and the runtime opened a new one), ours is read until
//! its writer has closed it, then what was rotated in between, if this reader was slow, each also
//! until it is closed, then the new one: no line is lost or doubled. Where a file was removed before
//! it could be read, the stream says so. It ends when the container has stopped and its file is
//! closed and read.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::Stream;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    follow::{Notice, Notices},
    lines::{Lines, UnknownFormat, Wanted},
    rotate, tail, writer,
};
use crate::types::clock;

/// How much is read at one time.
const BLOCK: usize = 64 << 10;

/// The longest time without looking again, in case a notice was lost (as upstream).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long the file of a stopped container may keep a writer before it counts as complete: a
/// process that outlived its container can hold the pipe.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// How long a rotated file may keep a writer that writes nothing: the runtime has made the new file,
/// and lets go of this one next, or else never.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// A file that was just closed still counts its writer for an instant.
const CLOSING: Duration = Duration::from_millis(20);

/// Said in the stream where lines are lost.
const MISSING: &str =
    "[lines may be missing here: rotated log files were removed before they were read]";

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
    current: LogFile,
    /// `current`'s bytes; none only while a block is being read.
    source: Option<Source>,
    /// Bytes of a file that is not followed are read up to the size it had when it was opened.
    left: Option<u64>,
    /// What follows `current`, oldest first; open, so that no rotation can take it away. Never more
    /// than the rotations that are kept.
    queue: VecDeque<Next>,
    /// The rotations that are older than the newest file that was opened.
    known: BTreeSet<String>,
    follow: Option<Follow>,
    is_over: bool,
}

/// A file of the log, under whatever name it stands by now.
#[derive(Clone, Debug)]
struct LogFile {
    identity: Identity,
    file: Arc<File>,
    is_compressed: bool,
}

#[derive(Debug)]
enum Next {
    File(LogFile),
    /// Was removed before it could be opened.
    Removed,
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
    /// Since when another file follows this one, and nothing more was read of this one.
    replaced_at: Option<Instant>,
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
        let (path, current, known, size) = blocking(move || {
            let path = fs::canonicalize(&shown).map_err(|source| Error::Resolve {
                path: shown,
                source,
            })?;
            let (live, known) = open_live(&path)?;
            let failed = |source| Error::Tail {
                path: path.clone(),
                source,
            };
            let mut file = &*live.file;
            let start = match tail {
                Some(lines) => tail::start_of_last(&mut file, lines).map_err(failed)?,
                None => 0,
            };
            file.seek(SeekFrom::Start(start)).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            Ok((path, live, known, size.saturating_sub(start)))
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
            is_closed: false,
            is_last_read: false,
        });
        Ok(Self {
            path,
            lines,
            source: Some(current.source()),
            current,
            left: (!options.follow).then_some(size),
            queue: VecDeque::new(),
            known,
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
                if let Some(follow) = &mut self.follow {
                    follow.replaced_at = None;
                    follow.is_last_read = false;
                }
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
        let at_end = follow
            .wait(&self.path, &self.current, !self.queue.is_empty())
            .await?;
        match at_end {
            AtEnd::ReadMore => return Ok(()),
            AtEnd::NextFile | AtEnd::Over => {}
        }
        // Also at the container's end: a live file may be rotated away and no new one made.
        if self.queue.is_empty() {
            self.find_next().await?;
        }
        if !self.queue.is_empty() {
            return self.advance(out);
        }
        if matches!(at_end, AtEnd::Over) {
            self.lines.finish(out)?;
            self.is_over = true;
        }
        Ok(())
    }

    /// Opens what was rotated away after our file, and the file that is live now. There is nothing
    /// where the live file is still ours, or a rotation is just going on.
    async fn find_next(&mut self) -> Result<(), Error> {
        let (path, current, known) = (self.path.clone(), self.current.clone(), self.known.clone());
        let (queue, known) = blocking(move || find_after(&path, &current, &known)).await?;
        if !queue.is_empty() {
            self.queue = queue;
            self.known = known;
        }
        Ok(())
    }

    fn advance(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.lines.finish(out)?;
        while let Some(next) = self.queue.pop_front() {
            match next {
                Next::Removed => self.lines.note(MISSING, clock::wall_now(), out),
                Next::File(file) => {
                    self.source = Some(file.source());
                    self.current = file;
                    if let Some(follow) = &mut self.follow {
                        follow.notices = None;
                        follow.replaced_at = None;
                        follow.is_closed = false;
                        follow.is_last_read = false;
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Follow {
    /// The file is read to its end for now: what next? `has_next`: what follows it is known already.
    async fn wait(
        &mut self,
        path: &Path,
        current: &LogFile,
        has_next: bool,
    ) -> Result<AtEnd, Error> {
        let failed = |source| Error::Watch {
            path: path.to_owned(),
            source,
        };
        let Some(notices) = &mut self.notices else {
            // Watched from here on; what was written before is read after.
            let folder = path.parent().unwrap_or(Path::new("/"));
            self.notices = Some(Notices::new(folder, &current.file).map_err(failed)?);
            if let Some(ended) = &mut self.ended
                && futures::poll!(ended.as_mut()).is_ready()
            {
                self.ended = None;
                self.ended_at = Some(Instant::now());
            }
            return Ok(AtEnd::ReadMore);
        };
        let now = Instant::now();
        let is_replaced =
            has_next || identity_at(path).is_some_and(|found| found != current.identity);
        let (since, limit, then) = if is_replaced {
            let since = *self.replaced_at.get_or_insert(now);
            (Some(since), LET_GO_WITHIN, AtEnd::NextFile)
        } else {
            (self.ended_at, CLOSE_WITHIN, AtEnd::Over)
        };
        let mut look_again = now + LOOK_AGAIN;
        if let Some(since) = since {
            let (is_complete, limit) = match writer::has_writer(&current.file) {
                Some(has_writer) => (!has_writer, limit),
                None => (self.is_closed, CLOSE_WITHIN),
            };
            if is_complete {
                if self.is_last_read {
                    return Ok(then);
                }
                self.is_last_read = true;
                return Ok(AtEnd::ReadMore);
            }
            let complete_at = since + limit;
            if now >= complete_at {
                return Ok(then);
            }
            look_again = look_again.min(complete_at);
            if self.is_closed {
                look_again = look_again.min(now + CLOSING);
            }
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

impl LogFile {
    fn new(file: File, is_compressed: bool) -> io::Result<Self> {
        Ok(Self {
            identity: identity_of(&file.metadata()?),
            file: Arc::new(file),
            is_compressed,
        })
    }

    fn source(&self) -> Source {
        if self.is_compressed {
            Box::new(MultiGzDecoder::new(self.file.clone()))
        } else {
            Box::new(self.file.clone())
        }
    }

    /// Whether `rotated` is this file, or what became of it by compressing: that begins with the
    /// same lines, each with its time.
    fn is_in(&self, rotated: &Self) -> io::Result<bool> {
        if self.identity == rotated.identity || !rotated.is_compressed {
            return Ok(self.identity == rotated.identity);
        }
        let mut ours = vec![0; BLOCK];
        let length = self.file.read_at(&mut ours, 0)?;
        ours.truncate(length);
        let mut theirs = Vec::new();
        rotated
            .source()
            .take(BLOCK as u64)
            .read_to_end(&mut theirs)?;
        (&*rotated.file).rewind()?;
        Ok(ours == theirs)
    }
}

/// Opens the live file; with it the rotations beside it, which are older.
fn open_live(path: &Path) -> Result<(LogFile, BTreeSet<String>), Error> {
    let mut tries = 1;
    loop {
        let (live, rotated) = look(path)?;
        if let Some(live) = live {
            return Ok((live, rotated));
        }
        // Renamed away, and the runtime has not opened the new one yet.
        if tries == OPEN_TRIES {
            return Err(Error::Open {
                path: path.to_owned(),
                source: io::ErrorKind::NotFound.into(),
            });
        }
        tries += 1;
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The live file, where there is one, and what is rotated beside it, both of one moment.
fn look(path: &Path) -> Result<(Option<LogFile>, BTreeSet<String>), Error> {
    let failed = |source| Error::Open {
        path: path.to_owned(),
        source,
    };
    let mut before = rotate::rotations_of(path).map_err(failed)?;
    // Each further turn means that one more rotation fell in between.
    loop {
        let live = open_if_there(path, false).map_err(failed)?;
        let rotated = rotate::rotations_of(path).map_err(failed)?;
        if rotated == before {
            return Ok((live, rotated));
        }
        before = rotated;
    }
}

/// What follows `current`, oldest first; with it the rotations that are older than the last of that.
/// `known` are those that are older than `current`.
fn find_after(
    path: &Path,
    current: &LogFile,
    known: &BTreeSet<String>,
) -> Result<(VecDeque<Next>, BTreeSet<String>), Error> {
    let (live, mut rotated) = look(path)?;
    let mut queue = VecDeque::new();
    let mut is_current_found = false;
    for name in rotated.difference(known) {
        let plain = rotate::rotated_path(path, name);
        let failed = |source| Error::Open {
            path: plain.clone(),
            source,
        };
        match open_rotated(&plain).map_err(failed)? {
            Some(file) if current.is_in(&file).map_err(failed)? => is_current_found = true,
            Some(file) => queue.push_back(Next::File(file)),
            None if matches!(queue.back(), Some(Next::Removed)) => {}
            None => queue.push_back(Next::Removed),
        }
    }
    // Rotation removes the oldest first: others between ours and the oldest here may be gone too.
    if !is_current_found && matches!(queue.front(), Some(Next::File(_))) {
        queue.push_front(Next::Removed);
    }
    match live {
        Some(live) if live.identity == current.identity => {}
        Some(live) => queue.push_back(Next::File(live)),
        // The last one opened is itself a rotated one.
        None => {
            rotated.pop_last();
        }
    }
    Ok((queue, rotated))
}

/// None where it was removed. Compressing removes the plain file only when the compressed one is
/// there.
fn open_rotated(plain: &Path) -> io::Result<Option<LogFile>> {
    match open_if_there(plain, false)? {
        Some(file) => Ok(Some(file)),
        None => open_if_there(&rotate::compressed_path(plain), true),
    }
}

fn open_if_there(path: &Path, is_compressed: bool) -> io::Result<Option<LogFile>> {
    match File::open(path) {
        Ok(file) => LogFile::new(file, is_compressed).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
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
