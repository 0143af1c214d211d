//! Reads one manifest file without ever hanging on it: no FIFO, device or endless file can stop
//! the agent, and a file that is being written is not taken half.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use super::super::{decode::MAX_BYTES, problem::Problem};

/// How often a file is read again because it changed meanwhile.
const ATTEMPTS: usize = 5;

/// What tells one version of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Why a file gave no manifest.
#[derive(Debug)]
pub(super) enum NotRead {
    /// There is no such entry (any more).
    Gone,
    /// A folder, which is not looked into.
    Folder,
    /// It changed during each attempt.
    Changing,
    Refused(Problem),
}

/// The status of what a path leads to, links followed.
pub(super) fn look(path: &Path) -> Result<Stamp, NotRead> {
    let metadata = std::fs::metadata(path).map_err(|error| not_found(path, &error))?;
    check_kind(&metadata)?;
    Ok(Stamp::of(&metadata))
}

/// The whole file, and its stamp; the two belong together.
pub(super) fn read(path: &Path) -> Result<(Vec<u8>, Stamp), NotRead> {
    read_while(path, || {})
}

/// `meanwhile` happens during each attempt, so that tests can change the file then.
pub(super) fn read_while(
    path: &Path,
    mut meanwhile: impl FnMut(),
) -> Result<(Vec<u8>, Stamp), NotRead> {
    // First without opening: to open a device can have effects.
    look(path)?;
    for _ in 0..ATTEMPTS {
        let mut file = open(path)?;
        let before = file.metadata().map_err(|error| unreadable(&error))?;
        // Again: it may have been replaced since.
        check_kind(&before)?;
        let bytes = read_bounded(&mut file)?;
        meanwhile();
        let after = file.metadata().map_err(|error| unreadable(&error))?;
        let stamp = Stamp::of(&after);
        if stamp == Stamp::of(&before) {
            return Ok((bytes, stamp));
        }
    }
    Err(NotRead::Changing)
}

fn open(path: &Path) -> Result<File, NotRead> {
    // Non-blocking: a FIFO that took the file's place would hold the open for ever.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| not_found(path, &error))
}

fn read_bounded(file: &mut File) -> Result<Vec<u8>, NotRead> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refused(format!(
            "is larger than {MAX_BYTES} bytes: expected one Pod"
        )));
    }
    Ok(bytes)
}

fn check_kind(metadata: &std::fs::Metadata) -> Result<(), NotRead> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(NotRead::Folder);
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(refused(format!("is {what}: expected a regular file")))
}

fn not_found(path: &Path, error: &io::Error) -> NotRead {
    if error.kind() != io::ErrorKind::NotFound {
        return unreadable(error);
    }
    match std::fs::symlink_metadata(path) {
        Ok(_) => refused("is a link to nothing: expected a regular file".to_owned()),
        Err(_) => NotRead::Gone,
    }
}

fn unreadable(error: &io::Error) -> NotRead {
    refused(format!("cannot be read: {error}"))
}

fn refused(message: String) -> NotRead {
    NotRead::Refused(Problem::of_file(message))
}
