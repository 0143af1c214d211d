//! News of a folder from inotify, boiled down to "look again": now, or when the writing is over.

use std::{
    ffi::OsString,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use tokio::sync::mpsc;

/// News that may wait. Each only says "look again", so what does not fit is not missed: the look
/// that the waiting ones cause comes after it.
const NEWS: usize = 16;

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
    Watch(#[source] notify::Error),
}

/// A watch on a folder, as it was when the watch was set.
#[derive(Debug)]
pub(super) struct Watch {
    folder: PathBuf,
    identity: (u64, u64),
    news: mpsc::Receiver<News>,
    _watcher: notify::RecommendedWatcher,
}

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
        let (news_tx, news) = mpsc::channel(NEWS);
        let mut watcher = notify::recommended_watcher(move |event| {
            if let Some(news) = news_of(&event) {
                // Full: see NEWS. Closed: nobody listens any more.
                let _ = news_tx.try_send(news);
            }
        })
        .map_err(Error::Watch)?;
        watcher
            .watch(&folder, RecursiveMode::NonRecursive)
            .map_err(Error::Watch)?;
        Ok(Self {
            folder,
            identity,
            news,
            _watcher: watcher,
        })
    }

    /// The folder is still the one that is watched: it was not removed or replaced.
    pub(super) fn is_valid(&self) -> bool {
        identity(&self.folder).is_ok_and(|now| now == self.identity)
    }

    /// What has come in already.
    pub(super) fn waiting(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// None where the watch has ended.
    pub(super) async fn news(&mut self) -> Option<News> {
        self.news.recv().await
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn news_of(event: &notify::Result<notify::Event>) -> Option<News> {
    let Ok(event) = event else {
        return Some(News::Settled(None));
    };
    if event.need_rescan() {
        return Some(News::Settled(None));
    }
    // A rename within the folder has two paths; the new name is the one that counts.
    let name = event.paths.last().and_then(|path| path.file_name());
    let name = name.map(OsString::from);
    if let Some(name) = &name
        && name.as_encoded_bytes().starts_with(b".")
        && event.paths.len() == 1
    {
        return None;
    }
    match (event.kind, name) {
        (
            EventKind::Create(CreateKind::File) | EventKind::Modify(ModifyKind::Data(_)),
            Some(name),
        ) => Some(News::Pending(name)),
        (
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Create(_)
            | EventKind::Modify(_)
            | EventKind::Remove(_)
            | EventKind::Any
            | EventKind::Other,
            name,
        ) => Some(News::Settled(name)),
        (EventKind::Access(_), _) => None,
    }
}
