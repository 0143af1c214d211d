//! Whether somebody can still write to a log file: only a file without a writer is complete.

use std::{fs::File, io, os::fd::AsRawFd as _};

/// From the kernel's `fcntl.h`; the `libc` crate lacks it.
const F_SETSIG: i32 = 10;

/// True while some process has `file` open for writing; none where the file system cannot tell.
/// `file` is open for reading only.
///
/// The kernel grants a read lease only on a file without writers (fcntl(2), "Leases"). The lease is
/// given back at once; who opens the file for writing just then waits that long.
pub(super) fn has_writer(file: &File) -> Option<bool> {
    // A broken lease is told by SIGIO, which would end the process; SIGURG is ignored.
    let taken = fcntl(file, F_SETSIG, libc::SIGURG)
        .and_then(|()| fcntl(file, libc::F_SETLEASE, libc::F_RDLCK));
    match taken {
        Ok(()) => {
            if let Err(error) = fcntl(file, libc::F_SETLEASE, libc::F_UNLCK) {
                // Cannot fail on what was just granted; the lease would end with the file.
                tracing::warn!(%error, "lease on a log file not given back");
            }
            Some(false)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(true),
        Err(_) => None,
    }
}

fn fcntl(file: &File, command: i32, value: i32) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe crate in use has these commands")]
    // SAFETY: the descriptor is open, and the commands take a plain number.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_file_has_a_writer_until_the_last_one_closes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let first = File::create(&path).unwrap();
        let second = File::options().append(true).open(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(has_writer(&file), Some(true));
        drop(first);
        assert_eq!(has_writer(&file), Some(true));
        drop(second);
        // A process that another test just starts has a copy of the writer until it executes.
        let limit = Instant::now() + Duration::from_secs(20);
        while has_writer(&file) == Some(true) {
            assert!(Instant::now() < limit);
            std::thread::yield_now();
        }
        assert_eq!(has_writer(&file), Some(false));
        File::options().append(true).open(&path).unwrap();
    }
}
