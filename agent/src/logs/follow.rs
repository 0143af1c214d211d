//! What tells a follower to look again: inotify on a log file and on its folder.

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::{Interest, unix::AsyncFd};

#[derive(Debug)]
pub(super) struct Notices {
    inotify: AsyncFd<OwnedFd>,
    file: i32,
}

/// What the last events said about the watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Somebody who could write to it closed it, and nothing was written after.
    Closed,
    /// It was written to.
    Written,
    /// Only the folder changed: a file was made, renamed or removed.
    Folder,
}

impl Notices {
    /// Watches the open `file` itself, under whatever name, and the folder for new names.
    pub(super) fn new(folder: &Path, file: &File) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let in_folder = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, folder, in_folder)?;
        let file = inotify::add_watch(
            &inotify,
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE,
        )?;
        #[expect(
            unsafe_code,
            reason = "tokio's registration asks for a promise about the descriptor"
        )]
        // SAFETY: an `OwnedFd` keeps one open descriptor until it is dropped, and the `AsyncFd`
        // owns it.
        let inotify = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }
            .map_err(io::Error::from)?;
        Ok(Self { inotify, file })
    }

    /// Waits for news and takes all that there are. Cancel-safe: events are taken without waiting
    /// once the descriptor is readable.
    pub(super) async fn next(&mut self) -> io::Result<Notice> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(ready.get_inner(), &mut buffer);
            let mut found = None;
            loop {
                match events.next() {
                    Ok(event) if event.wd() == self.file => {
                        let is_closed = event.events().contains(ReadFlags::CLOSE_WRITE);
                        found = Some(if is_closed {
                            Notice::Closed
                        } else {
                            Notice::Written
                        });
                    }
                    Ok(_) => found = found.or(Some(Notice::Folder)),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::WOULDBLOCK) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
            if let Some(notice) = found {
                return Ok(notice);
            }
        }
    }
}
