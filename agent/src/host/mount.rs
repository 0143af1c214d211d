//! Mounts: what is one, binds, tmpfs, and propagation.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
};

/// Whether something is mounted at `path` itself; a link is not followed.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    is_mount_root(statx(CWD, path, flags, StatxFlags::TYPE)?)
}

/// As `is_mount_point`, of what is open.
pub fn is_open_mount_point(fd: BorrowedFd<'_>) -> io::Result<bool> {
    is_mount_root(statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?)
}

fn is_mount_root(found: rustix::fs::Statx) -> io::Result<bool> {
    let root = StatxAttributes::MOUNT_ROOT;
    if !found.stx_attributes_mask.contains(root) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel does not tell mount points (Linux 5.8 and later do)",
        ));
    }
    Ok(found.stx_attributes.contains(root))
}

/// Binds what is open at `source` to `target`, without what is mounted below it. By its
/// descriptor, so that nobody can put another thing in its place meanwhile.
pub fn bind_open(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let link = format!("/proc/self/fd/{}", source.as_raw_fd());
    Ok(rustix::mount::mount_bind(link, target)?)
}

/// Mounts a tmpfs at `target`. `size` in bytes; none: half of the memory. Its pages stay out of
/// swap where the kernel can do that (6.4 and later).
pub fn tmpfs(target: &Path, size: Option<i64>) -> io::Result<()> {
    let size = size.map(|bytes| format!("size={bytes}"));
    let with = |noswap: Option<&str>| {
        let options: Vec<&str> = size.as_deref().into_iter().chain(noswap).collect();
        mount_new("tmpfs", target, "tmpfs", &options.join(","))
    };
    match with(Some("noswap")) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => with(None),
        other => other,
    }
}

/// Mounts huge pages of `page_size` bytes at `target`.
pub fn hugetlbfs(target: &Path, page_size: i64) -> io::Result<()> {
    mount_new(
        "nodev",
        target,
        "hugetlbfs",
        &format!("pagesize={page_size}"),
    )
}

fn mount_new(source: &str, target: &Path, kind: &str, options: &str) -> io::Result<()> {
    let options = CString::new(options).expect("options are numbers and words");
    Ok(rustix::mount::mount(
        source,
        target,
        kind,
        MountFlags::empty(),
        options.as_c_str(),
    )?)
}

/// Several mounts at one place are more than one run of the agent can leave.
const MAX_STACKED: usize = 16;

/// Unmounts everything at `path`, not below it; it is no error if there is nothing.
pub fn unmount_all(path: &Path) -> io::Result<()> {
    for _ in 0..MAX_STACKED {
        match is_mount_point(path) {
            Ok(true) => rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?,
            Ok(false) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("more than {MAX_STACKED} mounts lie upon each other"),
    ))
}

/// Takes the mount away at once; the kernel ends it when nobody uses it any more.
pub fn unmount_lazily(path: &Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    Ok(rustix::mount::unmount(path, flags)?)
}

/// Makes mounts below `path` reach the mount namespaces of containers and back (VOL-13): unless
/// it lies on a shared mount already, it is bound to itself and that mount is shared.
pub fn make_shared(path: &Path) -> io::Result<()> {
    let path = path.canonicalize()?;
    let table = Mounts::read()?;
    let holder = table.holding(&path).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("no mount holds {}", path.display()),
        )
    })?;
    if holder.is_shared {
        return Ok(());
    }
    if holder.point != path {
        rustix::mount::mount_bind_recursive(&path, &path)?;
    }
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change(&path, flags)?)
}

/// The mounts of this process's mount namespace, as they stood.
#[derive(Clone, Debug)]
pub struct Mounts(Vec<Mount>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub is_shared: bool,
}

impl Mounts {
    pub fn read() -> io::Result<Self> {
        let text = fs::read("/proc/self/mountinfo")?;
        Ok(Self(
            text.split(|byte| *byte == b'\n')
                .filter_map(parse_mount)
                .collect(),
        ))
    }

    /// Those at `path` and below it.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> + 'a {
        self.0
            .iter()
            .filter(move |mount| mount.point.starts_with(path))
    }

    /// The mount that `path` lies on: the last one of the longest mount point above it.
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.as_os_str().len())
    }
}

/// A line of mountinfo (proc(5)): the mount point is the fifth word, optional fields begin with
/// the seventh and end at a dash.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let point = words.nth(4)?;
    let mut optional = words.skip(1).take_while(|word| *word != b"-");
    let bytes = unescaped(point);
    Some(Mount {
        point: PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)),
        is_shared: optional.any(|word| word.starts_with(b"shared:")),
    })
}

/// Blanks, tabs, line ends and backslashes stand as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Mounts {
        Mounts(
            text.as_bytes()
                .split(|byte| *byte == b'\n')
                .filter_map(parse_mount)
                .collect(),
        )
    }

    const TEXT: &str = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        30 25 0:25 / /run rw shared:5 master:2 - tmpfs tmpfs rw\n\
        31 25 0:26 / /var/with\\040blank rw - tmpfs shared:9 rw\n\
        32 31 0:27 / /var/with\\040blank/x\\134y rw master:3 - tmpfs t rw\n";

    #[test]
    fn reads_mount_points_and_what_is_shared() {
        let table = table(TEXT);
        let read: Vec<_> = table.below(Path::new("/")).collect();
        assert_eq!(read.len(), 4);
        assert!(read[0].is_shared && read[1].is_shared);
        assert_eq!(read[2].point, Path::new("/var/with blank"));
        assert!(!read[2].is_shared && !read[3].is_shared);
        assert_eq!(read[3].point, Path::new("/var/with blank/x\\y"));
    }

    #[test]
    fn finds_the_mounts_at_and_below_a_path() {
        let table = table(TEXT);
        assert_eq!(table.below(Path::new("/var/with blank")).count(), 2);
        assert_eq!(table.below(Path::new("/var/with")).count(), 0);
    }

    #[test]
    fn finds_the_mount_that_holds_a_path() {
        let table = table(TEXT);
        let holding = |path: &str| table.holding(Path::new(path)).unwrap().point.clone();
        assert_eq!(holding("/run/x"), Path::new("/run"));
        assert_eq!(holding("/runner"), Path::new("/"));
    }

    #[test]
    fn tells_mount_points_from_folders() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(dir.path()).unwrap());
        let missing = is_mount_point(&dir.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        unmount_all(&dir.path().join("none")).unwrap();
    }
}
