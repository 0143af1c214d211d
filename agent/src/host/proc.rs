//! Facts about the machine and limits of our own process, from procfs, sysfs and system calls.
//!
//! Nothing is kept: each call asks the kernel. A file that cannot be read or understood is an
//! error, never a zero.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
};

use crate::host::hierarchy::CgroupVersion;
use procfs::{Current as _, Meminfo};
use rustix::process::{Resource, Rlimit};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read /proc/meminfo")]
    Memory(#[source] procfs::ProcError),
    #[error("read {}: expected {expected}, found {found:?}", path.display())]
    Form {
        path: PathBuf,
        expected: &'static str,
        found: String,
    },
    #[error("write {value} to {}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    #[error("set the limit of open files to {limit}")]
    OpenFiles {
        limit: u64,
        #[source]
        source: rustix::io::Errno,
    },
    #[error("ask for the address of the default route")]
    Route(#[source] io::Error),
}

/// Bytes of memory that the kernel manages (`MemTotal`).
pub fn memory_total() -> Result<u64, Error> {
    Ok(Meminfo::current().map_err(Error::Memory)?.mem_total)
}

/// Process ids that the machine has: the smaller of the kernel's two limits.
pub fn pid_max() -> Result<i64, Error> {
    let read_one = |path: &'static str| {
        let text = read(Path::new(path))?;
        text.trim().parse::<i64>().map_err(|_source| Error::Form {
            path: path.into(),
            expected: "a number",
            found: text.trim().to_owned(),
        })
    };
    Ok(read_one("/proc/sys/kernel/pid_max")?.min(read_one("/proc/sys/kernel/threads-max")?))
}

/// The memory controller can limit swap (CGRP-15): the file that does so is there.
pub fn is_swap_controller_usable(memory: &Path, version: CgroupVersion) -> bool {
    match version {
        CgroupVersion::V1 => memory.join("memory.memsw.limit_in_bytes").exists(),
        // The root has no such file; any child with the controller does.
        CgroupVersion::V2 => fs::read_dir(memory).is_ok_and(|children| {
            children
                .flatten()
                .any(|child| child.path().join("memory.swap.max").exists())
        }),
    }
}

/// CPUs online, whatever our own affinity and quota are.
pub fn cpus() -> Result<usize, Error> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let text = read(path)?;
    count_cpus(text.trim()).ok_or_else(|| Error::Form {
        path: path.into(),
        expected: "CPUs like 0-3,5",
        found: text.trim().to_owned(),
    })
}

/// How many numbers a list of the kernel's holds (`0-3,5`).
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// `uname -n`.
pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// `uname -r`.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Another one after each boot.
pub fn boot_id() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = read(path)?;
    let id = text.trim();
    if id.is_empty() {
        return Err(Error::Form {
            path: path.into(),
            expected: "an id",
            found: String::new(),
        });
    }
    Ok(id.to_owned())
}

/// Swap is active where `/proc/swaps` has more than its head line; a kernel without swap has no
/// such file (CFG-22).
pub fn is_swap_on() -> Result<bool, Error> {
    let path = Path::new("/proc/swaps");
    match fs::read_to_string(path) {
        Ok(text) => Ok(has_swap(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Read {
            path: path.into(),
            source,
        }),
    }
}

fn has_swap(swaps: &str) -> bool {
    swaps.lines().filter(|line| !line.trim().is_empty()).count() > 1
}

/// How willing the kernel is to kill us for memory: -1000 (never) to 1000 (CFG-21).
pub fn set_oom_score_adj(adjustment: i32) -> Result<(), Error> {
    let path = Path::new("/proc/self/oom_score_adj");
    fs::write(path, adjustment.to_string()).map_err(|source| Error::Write {
        path: path.into(),
        value: adjustment.to_string(),
        source,
    })
}

/// Our limit of open files, soft and hard (CFG-21).
pub fn set_max_open_files(limit: u64) -> Result<(), Error> {
    let both = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    rustix::process::setrlimit(Resource::Nofile, both)
        .map_err(|source| Error::OpenFiles { limit, source })
}

/// The addresses that the machine is reached by: the ones that the default routes of IPv4 and IPv6
/// would send from, in this order. Empty where there is no default route.
pub fn host_ips() -> Result<Vec<IpAddr>, Error> {
    // Addresses of documentation (RFC 5737, RFC 3849): nobody has them, and connecting a datagram
    // socket only asks the routing table; nothing is sent.
    let away: [(SocketAddr, SocketAddr); 2] = [
        (
            SocketAddr::from(([0, 0, 0, 0], 0)),
            SocketAddr::from(([192, 0, 2, 1], 9)),
        ),
        (
            SocketAddr::from(([0_u16; 8], 0)),
            SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9)),
        ),
    ];
    let mut ips = Vec::new();
    for (any, away) in away {
        let source = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(away)?;
            socket.local_addr()
        });
        match source {
            Ok(source) if !source.ip().is_unspecified() && !source.ip().is_loopback() => {
                ips.push(source.ip());
            }
            Ok(_) => {}
            Err(error) if has_no_route(&error) => {}
            Err(error) => return Err(Error::Route(error)),
        }
    }
    Ok(ips)
}

/// No route, no address of the family, or no such family at all.
fn has_no_route(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::ADDRNOTAVAIL,
        Errno::AFNOSUPPORT,
        // What an `unreachable` or `prohibit` route answers with.
        Errno::ACCESS,
    ]
    .iter()
    .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0", Some(1))]
    #[case("0-3", Some(4))]
    #[case("0-1,4,6-7", Some(5))]
    #[case("", None)]
    #[case("3-1", None)]
    #[case("a-b", None)]
    fn cpus_are_counted_from_the_kernels_list(#[case] list: &str, #[case] count: Option<usize>) {
        assert_eq!(count_cpus(list), count);
    }

    #[rstest]
    #[case("Filename Type Size Used Priority\n", false)]
    #[case("", false)]
    #[case("Filename Type\n/dev/sda2 partition 1 0 -2\n", true)]
    fn swap_is_on_where_a_line_follows_the_head(#[case] text: &str, #[case] is_on: bool) {
        assert_eq!(has_swap(text), is_on);
    }

    #[test]
    fn the_machine_answers() {
        assert!(memory_total().expect("memory") > 1 << 20);
        assert!(cpus().expect("cpus") > 0);
        assert!(!hostname().is_empty());
        assert!(kernel_release().contains('.'));
        assert_eq!(boot_id().expect("an id").len(), 36);
        is_swap_on().expect("swap or none");
        host_ips().expect("addresses, or none");
    }

    #[test]
    fn a_limit_that_cannot_be_set_says_which() {
        // Above the kernel's own bound (`fs.nr_open`), which holds for root too.
        let error = set_max_open_files(u64::MAX - 1).expect_err("too many files");
        assert_eq!(
            error.to_string(),
            format!("set the limit of open files to {}", u64::MAX - 1)
        );
    }
}
