//! One agent a root: the lock file, and the local socket that only its holder may put there.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

/// The local socket's name under the root.
pub const SOCKET_NAME: &str = "skep.sock";

/// The lock file's name under the root.
pub const LOCK_NAME: &str = "skep.lock";

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot make the root folder {}", path.display())]
    CreateRoot { path: PathBuf, source: io::Error },
    #[error("cannot open the lock file {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("another agent{} runs on {}", pid.map_or(String::new(), |pid| format!(" (pid {pid})")), root.display())]
    Held { root: PathBuf, pid: Option<u32> },
}

/// Shows that this process is the only agent on a root. Let go when dropped, or when the process
/// ends in whatever way.
#[derive(Debug)]
pub struct RootLock {
    root: PathBuf,
    _file: File,
}

/// Between two looks at a lock that another process holds.
const LOCK_RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// Waits for the lock of `--lock-file`, as a kubelet does; held as long as the file is open.
///
/// # Errors
/// The file cannot be opened, or its file system knows no locks.
pub async fn wait_for_lock(path: &Path) -> Result<File, LockError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| LockError::Open {
            path: path.to_owned(),
            source,
        })?;
    let mut is_told = false;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(path = %path.display(), "Waiting for the lock file");
                }
                tokio::time::sleep(LOCK_RETRY).await;
            }
            Err(errno) => {
                return Err(LockError::Lock {
                    path: path.to_owned(),
                    source: errno.into(),
                });
            }
        }
    }
}

impl RootLock {
    /// Makes the root if need be. Does not wait for another holder.
    pub fn take(root: &Path) -> Result<Self, LockError> {
        fs::create_dir_all(root).map_err(|source| LockError::CreateRoot {
            path: root.to_owned(),
            source,
        })?;
        let path = root.join(LOCK_NAME);
        let failed = |source| LockError::Open {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let read = file.read_to_string(&mut pid);
                return Err(LockError::Held {
                    root: root.to_owned(),
                    pid: read.ok().and_then(|_| pid.trim().parse().ok()),
                });
            }
            Err(errno) => {
                return Err(LockError::Lock {
                    path,
                    source: errno.into(),
                });
            }
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self {
            root: root.to_owned(),
            _file: file,
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Binds under another name, narrows the mode and renames: whoever finds the socket finds one that
/// is served, and closed to others.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}
