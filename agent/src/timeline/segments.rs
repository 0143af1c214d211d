//! The timeline's files: JSON lines in segments, named by the number of their first entry.
//!
//! The newest segment is appended to; at an eighth of the total bound a new one is begun and the
//! oldest are removed. A process that dies while it writes leaves a half line at the end, which is
//! cut off at the next start and skipped by readers.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::types::timeline::Entry;

/// How many segments the total bound is divided into.
const SEGMENTS: u64 = 8;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot make the timeline's folder {}", path.display())]
    CreateFolder { path: PathBuf, source: io::Error },
    #[error("cannot list the timeline's folder {}", path.display())]
    ListFolder { path: PathBuf, source: io::Error },
    #[error("cannot read the timeline segment {}", path.display())]
    ReadSegment { path: PathBuf, source: io::Error },
    #[error("cannot write the timeline segment {}", path.display())]
    WriteSegment { path: PathBuf, source: io::Error },
    #[error("cannot remove the timeline segment {}", path.display())]
    RemoveSegment { path: PathBuf, source: io::Error },
    #[error("a timeline entry of {bytes} bytes is larger than a segment of {max} bytes")]
    TooLarge { bytes: usize, max: u64 },
}

impl Error {
    /// The system's word for it, for a log line that has no other place for the cause.
    pub(super) fn cause(&self) -> String {
        std::error::Error::source(self).map_or_else(String::new, ToString::to_string)
    }
}

/// One line of a segment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line<E> {
    /// Counts all entries ever recorded here; goes on through restarts.
    #[serde(rename = "n")]
    pub number: u64,
    #[serde(flatten)]
    pub entry: E,
}

/// What an append could not keep.
#[derive(Debug)]
pub(super) struct Failure {
    pub dropped: u64,
    pub error: Error,
}

#[derive(Debug)]
pub(super) struct Segments {
    dir: PathBuf,
    max_segment: u64,
    max_total: u64,
    /// Full ones, oldest first, with their sizes.
    closed: Vec<(PathBuf, u64)>,
    current: Option<Current>,
    next_number: u64,
}

#[derive(Debug)]
struct Current {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Segments {
    pub(super) fn open(dir: PathBuf, max_total: u64) -> Result<Self, Error> {
        fs::create_dir_all(&dir).map_err(|source| Error::CreateFolder {
            path: dir.clone(),
            source,
        })?;
        let mut closed = Vec::new();
        let mut next_number = 1;
        for (first, path) in list(&dir)? {
            let content = fs::read(&path).map_err(|source| Error::ReadSegment {
                path: path.clone(),
                source,
            })?;
            next_number = next_number.max(first);
            if let Some(last) = lines_of(&content).last() {
                next_number = next_number.max(last.number + 1);
            }
            closed.push((path, content.len() as u64));
        }
        let mut segments = Self {
            dir,
            max_segment: (max_total / SEGMENTS).max(1),
            max_total,
            closed,
            current: None,
            next_number,
        };
        segments.reopen_newest()?;
        Ok(segments)
    }

    /// The number for the next entry.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Goes on in the newest segment where it still has room; a half line at its end is cut off.
    fn reopen_newest(&mut self) -> Result<(), Error> {
        let Some((path, bytes)) = self.closed.pop_if(|(_, bytes)| *bytes < self.max_segment) else {
            return Ok(());
        };
        let failed = |source| Error::WriteSegment {
            path: path.clone(),
            source,
        };
        let content = fs::read(&path).map_err(failed)?;
        let whole = content
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |newline| newline as u64 + 1);
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(failed)?;
        if whole < bytes {
            file.set_len(whole).map_err(failed)?;
        }
        self.current = Some(Current {
            path,
            file,
            bytes: whole,
        });
        Ok(())
    }

    /// Writes the lines. What comes after a failure is dropped with it: the next call tries again.
    pub(super) fn append<E: Serialize>(&mut self, lines: &[Line<E>]) -> Result<(), Failure> {
        let mut first_failure: Option<Failure> = None;
        let mut text = Vec::new();
        let mut waiting = 0_u64;
        let mut waiting_first = 0;
        for (at, line) in lines.iter().enumerate() {
            let start = text.len();
            serde_json::to_writer(&mut text, line)
                .expect("an entry has string keys only and is written to memory");
            text.push(b'\n');
            let bytes = text.len() - start;
            if bytes as u64 > self.max_segment {
                text.truncate(start);
                let failure = first_failure.get_or_insert(Failure {
                    dropped: 0,
                    error: Error::TooLarge {
                        bytes,
                        max: self.max_segment,
                    },
                });
                failure.dropped += 1;
                continue;
            }
            let held = self.current.as_ref().map_or(0, |current| current.bytes);
            if waiting > 0 && held + text.len() as u64 > self.max_segment {
                let rest = text.split_off(start);
                if let Err(error) = self.flush(&text, waiting_first) {
                    return Err(merge(
                        first_failure,
                        waiting + (lines.len() - at) as u64,
                        error,
                    ));
                }
                text = rest;
                waiting = 0;
            }
            if waiting == 0 {
                waiting_first = line.number;
            }
            waiting += 1;
        }
        if waiting > 0
            && let Err(error) = self.flush(&text, waiting_first)
        {
            return Err(merge(first_failure, waiting, error));
        }
        first_failure.map_or(Ok(()), Err)
    }

    fn flush(&mut self, text: &[u8], first: u64) -> Result<(), Error> {
        let is_full = self
            .current
            .as_ref()
            .is_some_and(|current| current.bytes + text.len() as u64 > self.max_segment);
        if is_full && let Some(full) = self.current.take() {
            self.closed.push((full.path, full.bytes));
        }
        if self.current.is_none() {
            self.begin(first)?;
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if let Err(source) = current.file.write_all(text) {
            let path = current.path.clone();
            // A part of the text may be there. Where it cannot be cut off, a new segment is begun.
            if current.file.set_len(current.bytes).is_err()
                && let Some(broken) = self.current.take()
            {
                self.closed.push((broken.path, broken.bytes));
            }
            return Err(Error::WriteSegment { path, source });
        }
        current.bytes += text.len() as u64;
        Ok(())
    }

    /// Makes room for one more segment, and begins it.
    fn begin(&mut self, first: u64) -> Result<(), Error> {
        let mut held: u64 = self.closed.iter().map(|(_, bytes)| bytes).sum();
        while held + self.max_segment > self.max_total && !self.closed.is_empty() {
            let (path, bytes) = self.closed.remove(0);
            held -= bytes;
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    let failure = Error::RemoveSegment {
                        path: path.clone(),
                        source,
                    };
                    self.closed.insert(0, (path, bytes));
                    return Err(failure);
                }
            }
        }
        let path = self.dir.join(format!("timeline-{first:020}.jsonl"));
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|source| Error::WriteSegment {
                path: path.clone(),
                source,
            })?;
        self.current = Some(Current {
            path,
            file,
            bytes: 0,
        });
        Ok(())
    }
}

fn merge(earlier: Option<Failure>, dropped: u64, error: Error) -> Failure {
    Failure {
        dropped: dropped + earlier.map_or(0, |failure| failure.dropped),
        error,
    }
}

/// The segments of a folder, oldest first, each with the number in its name. Anything else in the
/// folder is left alone.
fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let failed = |source| Error::ListFolder {
        path: dir.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let first = name
            .to_str()
            .and_then(|name| name.strip_prefix("timeline-"))
            .and_then(|name| name.strip_suffix(".jsonl"))
            .and_then(|number| number.parse().ok());
        if let Some(first) = first
            && entry.file_type().is_ok_and(|kind| kind.is_file())
        {
            found.push((first, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The lines of a segment; what is no entry (a half line, a damaged one) is skipped.
fn lines_of(content: &[u8]) -> impl Iterator<Item = Line<Entry>> {
    content
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
}

/// Every kept entry that is `wanted`, oldest first. Blocks: for a blocking thread.
pub(super) fn read_all(
    dir: &Path,
    wanted: impl Fn(&Entry) -> bool,
) -> Result<Vec<Line<Entry>>, Error> {
    let mut found = Vec::new();
    for (_, path) in list(dir)? {
        let content = match fs::read(&path) {
            Ok(content) => content,
            // The writer removed it since the folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(Error::ReadSegment { path, source }),
        };
        found.extend(lines_of(&content).filter(|line| wanted(&line.entry)));
    }
    Ok(found)
}
