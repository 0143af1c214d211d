//! Opening and making things below a folder that somebody else writes to, so that no link and no
//! `..` leads out of it, whatever is changed meanwhile.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// The kernel asks to try again when something moved while it looked; somebody who keeps moving
/// things gets an error.
const MAX_TRIES: usize = 16;

/// Opens a folder by its own path, links followed, as a place for the functions below.
pub fn open_base(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens `path` below `base` without reading or writing it (`O_PATH`): neither a FIFO nor a device
/// holds the caller. Links are followed as long as they stay below.
pub fn open(base: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open_as(base, path, flags)
}

fn open_as(base: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..MAX_TRIES {
        match rustix::fs::openat2(base, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// As `open`; folders that are missing are made, with exactly the bits of `mode`.
pub fn open_or_make(base: BorrowedFd<'_>, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    match open(base, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let names: Vec<_> = path
        .components()
        .filter(|component| *component != Component::CurDir)
        .collect();
    if !names
        .iter()
        .all(|name| matches!(name, Component::Normal(_)))
    {
        return Err(Errno::XDEV.into()); // what the kernel says of a way out
    }
    let (mut dir, missing) = longest_existing(base, &names)?;
    for name in missing {
        let name = Path::new(name);
        match rustix::fs::mkdirat(&dir, name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
        // The umask must not take away what the pod needs.
        rustix::fs::fchmod(&dir, mode)?;
    }
    open(dir.as_fd(), Path::new("."))
}

/// The deepest folder on the way that is there, and the names that are not.
fn longest_existing<'a>(
    base: BorrowedFd<'_>,
    names: &'a [Component<'a>],
) -> io::Result<(OwnedFd, &'a [Component<'a>])> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for count in (1..names.len()).rev() {
        let prefix: PathBuf = names[..count].iter().collect();
        match open_as(base, &prefix, flags) {
            Ok(dir) => return Ok((dir, &names[count..])),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((open_as(base, Path::new("."), flags)?, names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    fn volume() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/file"), "text").unwrap();
        fs::write(root.path().join("secret"), "out of bounds").unwrap();
        symlink("a/b", volume.join("inside")).unwrap();
        symlink("../secret", volume.join("outside")).unwrap();
        symlink("/etc", volume.join("absolute")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        root
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[rstest]
    #[case("a/b", "a/b")]
    #[case("a/file", "a/file")]
    #[case("inside", "a/b")]
    #[case("a/./b", "a/b")]
    fn opens_what_lies_below(#[case] path: &str, #[case] real: &str) {
        let root = volume();
        let volume = root.path().join("volume");
        let base = open_base(&volume).unwrap();
        let opened = open(base.as_fd(), Path::new(path)).unwrap();
        assert_eq!(
            inode(&opened),
            fs::metadata(volume.join(real)).unwrap().ino()
        );
    }

    #[rstest]
    #[case("outside")]
    #[case("absolute")]
    #[case("absolute/passwd")]
    #[case("../secret")]
    #[case("/etc/passwd")]
    #[case("dangling")]
    #[case("dangling/x")]
    #[case("new/../../x")]
    #[case("a/file/x")]
    fn neither_opens_nor_makes_anything_elsewhere(#[case] path: &str) {
        let root = volume();
        let base = open_base(&root.path().join("volume")).unwrap();
        assert!(open(base.as_fd(), Path::new(path)).is_err());
        assert!(open_or_make(base.as_fd(), Path::new(path), Mode::RWXU).is_err());
        let mut left: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["secret", "volume"]);
    }

    #[rstest]
    #[case("new", "new")]
    #[case("a/b/c/d", "a/b/c/d")]
    #[case("inside/x/y", "a/b/x/y")]
    fn makes_missing_folders_with_the_mode(#[case] path: &str, #[case] real: &str) {
        let root = volume();
        let volume = root.path().join("volume");
        let base = open_base(&volume).unwrap();
        let mode = Mode::from_raw_mode(0o2777);
        let made = open_or_make(base.as_fd(), Path::new(path), mode).unwrap();
        let real = fs::metadata(volume.join(real)).unwrap();
        assert_eq!(inode(&made), real.ino());
        assert_eq!(real.mode() & 0o7777, 0o2777);
    }
}
