//! Strict readers of cgroup files. A file that is missing or says something else than expected is
//! an error: nothing read is not zero.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::host::hierarchy::CgroupVersion;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds {text:?}, which is not {expected}", path.display())]
    Malformed {
        path: PathBuf,
        text: String,
        expected: &'static str,
    },
}

impl ReadError {
    /// The cgroup, or the file, is not there (any more).
    pub fn is_missing(&self) -> bool {
        match self {
            // A removed cgroup's open directory answers ENODEV.
            Self::Read { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
            }
            Self::Malformed { .. } => false,
        }
    }
}

/// From v1's limits upwards there is none: the largest multiple of a page that fits.
const V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_f000;

/// Memory charged to the cgroup and all below it, in bytes.
pub fn memory_usage(directory: &Path, version: CgroupVersion) -> Result<u64, ReadError> {
    number(&directory.join(match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    }))
}

/// The cgroup's own memory limit in bytes; none where it is unlimited.
pub fn memory_limit(directory: &Path, version: CgroupVersion) -> Result<Option<u64>, ReadError> {
    match version {
        CgroupVersion::V1 => {
            let limit = number(&directory.join("memory.limit_in_bytes"))?;
            Ok(Some(limit).filter(|&limit| limit < V1_UNLIMITED))
        }
        CgroupVersion::V2 => limit(&directory.join("memory.max")),
    }
}

/// How often the cgroup's own memory limit was hit: out of memory on v2 (`oom` of
/// `memory.events.local`), on v1 any refused charge (`memory.failcnt`), which counts those too that
/// giving back caches could satisfy.
pub fn memory_limit_hits(directory: &Path, version: CgroupVersion) -> Result<u64, ReadError> {
    match version {
        CgroupVersion::V1 => number(&directory.join("memory.failcnt")),
        CgroupVersion::V2 => keyed(&directory.join("memory.events.local"), "oom"),
    }
}

/// How many processes of the cgroup itself (v1, v2) were killed for memory, whatever limit was hit.
pub fn memory_kills(directory: &Path, version: CgroupVersion) -> Result<u64, ReadError> {
    let file = match version {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events.local",
    };
    keyed(&directory.join(file), "oom_kill")
}

/// Most processes and threads at one time; none where it is unlimited.
pub fn pids_limit(directory: &Path) -> Result<Option<u64>, ReadError> {
    limit(&directory.join("pids.max"))
}

pub fn pids_current(directory: &Path) -> Result<u64, ReadError> {
    number(&directory.join("pids.current"))
}

/// Processes of the cgroup itself. Zero stands for one that this pid namespace can't see.
pub fn processes(directory: &Path) -> Result<Vec<u32>, ReadError> {
    let path = directory.join("cgroup.procs");
    let text = text(&path)?;
    text.lines()
        .map(|line| {
            line.trim()
                .parse()
                .map_err(|_error: std::num::ParseIntError| malformed(&path, line, "a process id"))
        })
        .collect()
}

/// Words separated by blanks, such as `cgroup.controllers`.
pub(super) fn words(path: &Path) -> Result<Vec<String>, ReadError> {
    Ok(text(path)?.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn text(path: &Path) -> Result<String, ReadError> {
    fs::read_to_string(path).map_err(|source| ReadError::Read {
        path: path.to_owned(),
        source,
    })
}

fn number(path: &Path) -> Result<u64, ReadError> {
    let text = text(path)?;
    parse(text.trim()).ok_or_else(|| malformed(path, &text, "a number"))
}

fn limit(path: &Path) -> Result<Option<u64>, ReadError> {
    let text = text(path)?;
    match text.trim() {
        "max" => Ok(None),
        digits => parse(digits)
            .map(Some)
            .ok_or_else(|| malformed(path, &text, "a number or max")),
    }
}

/// The number behind `key` in a file of `key number` lines.
fn keyed(path: &Path, key: &str) -> Result<u64, ReadError> {
    let text = text(path)?;
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| parse(value.trim()))
        .ok_or_else(|| {
            malformed(
                path,
                &text,
                "lines of names and numbers with the wanted name",
            )
        })
}

/// Digits only: `parse` alone would also take a sign.
fn parse(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn malformed(path: &Path, text: &str, expected: &'static str) -> ReadError {
    ReadError::Malformed {
        path: path.to_owned(),
        text: text.chars().take(80).collect(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(file: &str, text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(file), text).expect("written");
        dir
    }

    #[rstest]
    #[case("0\n", Some(0))]
    #[case("67108864\n", Some(67_108_864))]
    #[case("", None)]
    #[case("max\n", None)]
    #[case("-1\n", None)]
    #[case("+1\n", None)]
    #[case("12 34\n", None)]
    #[case("99999999999999999999\n", None)]
    fn a_usage_is_a_number_or_an_error(#[case] text: &str, #[case] want: Option<u64>) {
        let dir = with("memory.current", text);
        assert_eq!(memory_usage(dir.path(), CgroupVersion::V2).ok(), want);
    }

    #[test]
    fn a_missing_file_is_an_error_and_not_zero() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = memory_usage(dir.path(), CgroupVersion::V1).expect_err("nothing is there");
        assert!(error.is_missing());
        assert!(processes(dir.path()).is_err());
    }

    #[rstest]
    #[case(CgroupVersion::V2, "memory.max", "max\n", None)]
    #[case(CgroupVersion::V2, "memory.max", "4096\n", Some(4096))]
    #[case(
        CgroupVersion::V1,
        "memory.limit_in_bytes",
        "9223372036854771712\n",
        None
    )]
    #[case(CgroupVersion::V1, "memory.limit_in_bytes", "4096\n", Some(4096))]
    fn no_limit_is_not_a_large_one(
        #[case] version: CgroupVersion,
        #[case] file: &str,
        #[case] text: &str,
        #[case] want: Option<u64>,
    ) {
        let dir = with(file, text);
        assert_eq!(memory_limit(dir.path(), version).expect("read"), want);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "low 0\nhigh 0\nmax 40\noom 3\noom_kill 2\noom_group_kill 1\n";
        let dir = with("memory.events.local", text);
        assert_eq!(
            memory_limit_hits(dir.path(), CgroupVersion::V2).ok(),
            Some(3)
        );
        assert_eq!(memory_kills(dir.path(), CgroupVersion::V2).ok(), Some(2));
        let dir = with("memory.events.local", "low 0\n");
        assert!(memory_limit_hits(dir.path(), CgroupVersion::V2).is_err());
    }

    #[test]
    fn processes_are_read_whole_or_not_at_all() {
        let dir = with("cgroup.procs", "17\n4711\n0\n");
        assert_eq!(processes(dir.path()).expect("read"), [17, 4711, 0]);
        let dir = with("cgroup.procs", "17\nx\n");
        assert!(processes(dir.path()).is_err());
    }
}
