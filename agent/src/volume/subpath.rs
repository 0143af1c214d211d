//! Parts of volumes (VOL-12): bound to a place that only the agent can change, so that a container
//! cannot swap the folder for a link after it was checked.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode};

use super::{Error, FOLDER_MODE, Fault, PodDirs, make_folder, names_in};
use crate::host::{beneath, mount};

/// Part of a volume, as the `index`th of its container's volumeMounts wants it.
pub(super) struct Subpath<'a> {
    pub(super) dirs: &'a PodDirs,
    pub(super) volume: &'a str,
    pub(super) container: &'a str,
    pub(super) index: usize,
    /// The volume's own path on the host.
    pub(super) root: &'a Path,
    /// Relative, without `..`.
    pub(super) path: &'a Path,
}

impl Subpath<'_> {
    /// Makes the folder if it is missing and binds it; the path to hand to the runtime. Users are
    /// not told why it failed: that would show them the host's files.
    pub(super) fn bind(&self) -> Result<PathBuf, Fault> {
        let Self {
            volume, container, ..
        } = self;
        let opened = self.open().map_err(|error| {
            tracing::warn!(volume, container, path = ?self.path, %error, "cannot open a subPath");
            format!(
                "failed to create subPath directory for volumeMount {volume:?} of container \
                 {container:?}"
            )
        })?;
        self.bind_open(opened.as_fd()).map_err(|error| {
            tracing::warn!(volume, container, path = ?self.path, %error, "cannot bind a subPath");
            format!(
                "failed to prepare subPath for volumeMount {volume:?} of container {container:?}"
            )
        })
    }

    fn open(&self) -> io::Result<std::os::fd::OwnedFd> {
        let base = beneath::open_base(self.root)?;
        // What is made is as open as the volume: fsGroup and others can use it alike.
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&base)?.st_mode & 0o7777);
        beneath::open_or_make(base.as_fd(), self.path, mode)
    }

    fn bind_open(&self, source: BorrowedFd<'_>) -> io::Result<PathBuf> {
        let folder = self.dirs.subpaths().join(self.volume).join(self.container);
        let target = folder.join(self.index.to_string());
        let found = rustix::fs::fstat(source)?;
        match mount::is_mount_point(&target) {
            Ok(true) => {
                let bound = fs::symlink_metadata(&target)?;
                if (bound.dev(), bound.ino()) == (found.st_dev, found.st_ino) {
                    return Ok(target);
                }
                // Lazily: whoever holds the old one must not block the new one.
                mount::unmount_lazily(&target)?;
            }
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        make_folder(&folder)?;
        make_target(&target, FileType::from_raw_mode(found.st_mode))?;
        mount::bind_open(source, &target)?;
        Ok(target)
    }
}

/// A mount point of the kind that the kernel wants: a folder for a folder, a file for all else.
fn make_target(target: &Path, kind: FileType) -> io::Result<()> {
    let is_folder = kind == FileType::Directory;
    match fs::symlink_metadata(target) {
        Ok(old) if old.is_dir() == is_folder => return Ok(()),
        Ok(_) => remove_target(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if is_folder {
        fs::DirBuilder::new().mode(FOLDER_MODE).create(target)
    } else {
        let mut options = fs::OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(target)
            .map(drop)
    }
}

/// A mount point holds nothing of its own.
fn remove_target(target: &Path) -> io::Result<()> {
    if fs::symlink_metadata(target)?.is_dir() {
        fs::remove_dir(target)
    } else {
        fs::remove_file(target)
    }
}

/// Unmounts all subpaths of a pod and removes their mount points.
pub(super) fn unbind_all(dirs: &PodDirs) -> Result<(), Error> {
    let root = dirs.subpaths();
    for volume in names_in(&root)? {
        for container in names_in(&root.join(&volume))? {
            let folder = root.join(&volume).join(container);
            for index in names_in(&folder)? {
                let path = folder.join(index);
                mount::unmount_all(&path)
                    .and_then(|()| remove_target(&path))
                    .map_err(|source| Error::TearDown { path, source })?;
            }
        }
    }
    Ok(())
}
