//! Removing a tree of files that somebody else filled, without leaving its file system: what is
//! mounted inside is never touched.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

use super::mount;

/// Folders deeper than this are moved up before they are emptied, so that a hostile depth costs
/// neither stack nor descriptors.
const MAX_DEPTH: usize = 32;

/// Removes `path` and all below it. Stops at the first thing that is mounted inside, with an error
/// of kind `ResourceBusy` that names it. It is no error if there is nothing at `path`.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if mount::is_mount_point(path)? {
        return Err(mounted(&path.to_string_lossy()));
    }
    if !metadata.is_dir() {
        return std::fs::remove_file(path);
    }
    let root = rustix::fs::open(path, FOLDER, Mode::empty())?;
    let mut moved = 0;
    // Each pass removes all but the folders that it moved up; the depth shrinks with each.
    loop {
        let before = moved;
        empty(root.as_fd(), root.as_fd(), 0, &mut moved)?;
        if moved == before {
            break;
        }
    }
    std::fs::remove_dir(path)
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn mounted(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("something is mounted at {name}"),
    )
}

fn empty(
    dir: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    depth: usize,
    moved: &mut u64,
) -> io::Result<()> {
    // Read fully first: removing while reading may skip entries.
    let entries: Vec<(CString, FileType)> = Dir::read_from(dir)?
        .map(|entry| entry.map(|entry| (entry.file_name().to_owned(), entry.file_type())))
        .filter(|entry| {
            entry
                .as_ref()
                .map_or(true, |(name, _)| !matches!(name.to_bytes(), b"." | b".."))
        })
        .collect::<Result<_, _>>()?;
    for (name, kind) in entries {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::BUSY) => return Err(mounted(&name.to_string_lossy())),
                Err(Errno::ISDIR) => {} // the file system did not tell what it is
                Err(error) => return Err(error.into()),
            }
        }
        let child = rustix::fs::openat(dir, &name, FOLDER, Mode::empty())?;
        if mount::is_open_mount_point(child.as_fd())? {
            return Err(mounted(&name.to_string_lossy()));
        }
        if depth >= MAX_DEPTH {
            move_up(dir, &name, root, moved)?;
            continue;
        }
        empty_child(child, root, depth, moved)?;
        rustix::fs::unlinkat(dir, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

fn empty_child(
    child: OwnedFd,
    root: BorrowedFd<'_>,
    depth: usize,
    moved: &mut u64,
) -> io::Result<()> {
    empty(child.as_fd(), root, depth + 1, moved)
}

/// Gives the folder a free name directly below `root`; the next pass removes it.
fn move_up(
    dir: BorrowedFd<'_>,
    name: &CStr,
    root: BorrowedFd<'_>,
    moved: &mut u64,
) -> io::Result<()> {
    loop {
        *moved += 1;
        let target = format!(".removed-{moved}");
        match rustix::fs::renameat_with(dir, name, root, target, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn removes_files_folders_and_links_but_not_what_links_point_at() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, kept) = (dir.path().join("tree"), dir.path().join("kept"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "").unwrap();
        fs::write(tree.join("a/file"), "").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
        remove_tree(&tree).unwrap(); // nothing there is no error
    }

    #[test]
    fn a_link_in_place_of_the_tree_is_removed_itself() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        symlink("kept", dir.path().join("link")).unwrap();
        remove_tree(&dir.path().join("link")).unwrap();
        assert!(dir.path().join("kept").is_dir());
        assert!(dir.path().join("link").symlink_metadata().is_err());
    }

    #[test]
    fn removes_trees_deeper_than_it_descends() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut at = rustix::fs::open(&tree, FOLDER, Mode::empty()).unwrap();
        for _ in 0..500 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "d", FOLDER, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn never_goes_into_a_mount() {
        let error = remove_tree(Path::new("/proc")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(error.to_string(), "something is mounted at /proc");
    }
}
