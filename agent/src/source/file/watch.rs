//! News of a folder from inotify, boiled down to "look again": now, or when the writing is over.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A file is whole: it was closed after writing, moved here, removed, or its mode changed.
    /// None where it is not known which.
    Settled(Option<OsString>),
    /// A file was made or written to; it may be only half there.
    Pending(OsString),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("could not look at the folder to watch")]
    Look(#[source] io::Error),
    #[error("could not watch the folder")]
    Watch(#[source] io::Error),
}

/// A watch on a folder, as it was when the watch was set.
#[derive(Debug)]
pub(super) struct Watch {
    folder: PathBuf,
    identity: (u64, u64),
    inotify: AsyncFd<OwnedFd>,
    /// Read and not taken yet: at most what one reading holds.
    read: VecDeque<News>,
}

/// What changes a file. Openings and reads are left out: the agent's own would wake it.
const EVENTS: WatchFlags = WatchFlags::ONLYDIR
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

impl Watch {
    /// Watches a folder itself, or the folder that a file stands in: a file that is replaced is
    /// another inode.
    pub(super) fn set(path: &Path) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path).map_err(Error::Look)?;
        let folder = match path.parent() {
            _ if metadata.is_dir() => path.to_owned(),
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => path.to_owned(),
        };
        let identity = identity(&folder).map_err(Error::Look)?;
        let watching = |errno: Errno| Error::Watch(errno.into());
        let inotify =
            inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(watching)?;
        inotify::add_watch(&inotify, &folder, EVENTS).map_err(watching)?;
        #[expect(
            unsafe_code,
            reason = "tokio's registration asks for a promise about the descriptor"
        )]
        // SAFETY: an `OwnedFd` keeps one open descriptor until it is dropped, and the `AsyncFd`
        // owns it.
        let inotify = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }
            .map_err(|error| Error::Watch(error.into()))?;
        Ok(Self {
            folder,
            identity,
            inotify,
            read: VecDeque::new(),
        })
    }

    /// The folder is still the one that is watched: it was not removed or replaced.
    pub(super) fn is_valid(&self) -> bool {
        identity(&self.folder).is_ok_and(|now| now == self.identity)
    }

    /// What has come in already.
    pub(super) fn waiting(&mut self) -> Option<News> {
        if self.read.is_empty() {
            // One that cannot be read is told of where it is waited for.
            self.read_all().ok();
        }
        self.read.pop_front()
    }

    /// None where the watch has ended. Cancel-safe: what was read stays until it is taken.
    pub(super) async fn news(&mut self) -> Option<News> {
        loop {
            if let Some(news) = self.read.pop_front() {
                return Some(news);
            }
            self.inotify.readable().await.ok()?.clear_ready();
            self.read_all().ok()?;
        }
    }

    /// Reads one buffer, or nothing where there is nothing.
    fn read_all(&mut self) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.read.extend(news_of(event.events(), name));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn news_of(events: ReadFlags, name: Option<&OsStr>) -> Option<News> {
    let Some(name) = name else {
        // About the folder itself, or more than the kernel could keep.
        return Some(News::Settled(None));
    };
    if name.as_bytes().starts_with(b".") {
        return None;
    }
    let is_folder = events.contains(ReadFlags::ISDIR);
    let is_whole = is_folder || !events.intersects(ReadFlags::CREATE | ReadFlags::MODIFY);
    Some(if is_whole {
        News::Settled(Some(name.to_owned()))
    } else {
        News::Pending(name.to_owned())
    })
}
