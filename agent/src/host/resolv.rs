//! The node's `resolv.conf`, read afresh each time it is needed (NET-10).
//!
//! Read word by word and not through a resolver's parser: what stands in the file is handed to
//! pods as it is, also options that this version of a resolver does not know.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use rustix::fs::{Mode, OFlags};

/// More than this is no resolver configuration.
const MAX_BYTES: u64 = 10 << 20;

/// What a `resolv.conf` says, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostResolver {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is larger than 10 MiB: expected a resolver configuration", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: a nameserver line names no server", path.display())]
    NoServer { path: PathBuf },
}

/// Reads the file at `path`.
pub fn read(path: &Path) -> Result<HostResolver, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    // Without NONBLOCK a FIFO in its place would hold the caller forever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge {
            path: path.to_owned(),
        });
    }
    parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| Error::NoServer {
        path: path.to_owned(),
    })
}

/// Name servers add up, the last `search` line counts, options replace those of the same name.
/// None where a `nameserver` line names none.
fn parse(text: &str) -> Option<HostResolver> {
    let mut resolver = HostResolver::default();
    let mut options = IndexMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => resolver.servers.push(words.next()?.to_owned()),
            Some("search") => {
                resolver.searches = words
                    .filter(|domain| *domain != ".")
                    .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                    .collect();
            }
            Some("options") => {
                for option in words {
                    let name = option.split(':').next().unwrap_or(option);
                    options.insert(name.to_owned(), option.to_owned());
                }
            }
            Some(_) | None => {}
        }
    }
    resolver.options = options.into_values().collect();
    Some(resolver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_servers_searches_and_options_as_written() {
        let text = "# nameserver 9.9.9.9\n\
            nameserver 10.0.0.1 junk\n  nameserver fe80::1%eth0\n\
            search old.example\nsearch a.example. . b.example\n\
            options ndots:2 trust-ad\noptions ndots:3 use-vc\nsortlist 1.2.3.4\n;x\n";
        assert_eq!(
            parse(text),
            Some(HostResolver {
                servers: vec!["10.0.0.1".into(), "fe80::1%eth0".into()],
                searches: vec!["a.example".into(), "b.example".into()],
                options: vec!["ndots:3".into(), "trust-ad".into(), "use-vc".into()],
            })
        );
    }

    #[test]
    fn refuses_a_nameserver_line_without_a_server() {
        assert_eq!(parse("nameserver\n"), None);
    }

    #[test]
    fn names_the_file_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let message = read(&missing).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "cannot read {}: No such file or directory (os error 2)",
                missing.display()
            )
        );
    }

    #[test]
    fn a_fifo_does_not_hold_the_reader() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(read(&fifo).unwrap(), HostResolver::default());
    }
}
