//! The grammar of image references, as the container registries' reference implementation has it
//! (`[domain/]path[:tag][@digest]`).
//!
//! Read by hand: the usual regular expression holds some 8 MiB once it was used, nearly half of what
//! the whole agent does. A test compares with that expression.

/// The longest repository, completed by the default registry's folder.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;
const SHORTEST_DIGEST: usize = 32;
/// Where the default registry keeps what has no folder of its own.
const OFFICIAL: &str = "library/";
const DEFAULT_REGISTRIES: [&str; 2] = ["docker.io", "index.docker.io"];

/// The parts of a name, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference<'a> {
    /// With the registry, where one is named.
    pub(crate) name: &'a str,
    pub(crate) tag: Option<&'a str>,
    /// Algorithm and hexadecimal digits, with a colon between.
    pub(crate) digest: Option<&'a str>,
}

/// Why a text is no reference, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("invalid reference format")]
    Format,
    #[error("repository name must not be more than {LONGEST_NAME} characters")]
    NameTooLong,
    #[error("invalid checksum digest length")]
    DigestLength,
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
}

impl<'a> Reference<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, Error> {
        let (rest, digest) = split_off(text, text.find('@'));
        let last = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = split_off(rest, rest[last..].find(':').map(|at| last + at));
        let fits = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
        if !fits {
            return Err(Error::Format);
        }
        if repository_len(name) > LONGEST_NAME {
            return Err(Error::NameTooLong);
        }
        if let Some((algorithm, digits)) = digest.and_then(|digest| digest.split_once(':')) {
            let wanted = match algorithm {
                "sha256" => 64,
                "sha384" => 96,
                "sha512" => 128,
                _ => return Err(Error::DigestAlgorithm),
            };
            if digits.len() != wanted {
                return Err(Error::DigestLength);
            }
        }
        Ok(Self { name, tag, digest })
    }

    /// The tag, `latest` where there is neither tag nor digest.
    pub(crate) fn tag_or_default(&self) -> Option<&'a str> {
        self.tag.or(self.digest.is_none().then_some("latest"))
    }
}

/// What is before the separator at this place, and what is after it.
fn split_off(text: &str, at: Option<usize>) -> (&str, Option<&str>) {
    match at {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

fn is_name(name: &str) -> bool {
    match name.split_once('/') {
        None => is_path(name),
        Some((first, path)) => (is_domain(first) || is_path(first)) && path.split('/').all(is_path),
    }
}

/// Host names' labels joined by dots, and a port if any.
fn is_domain(domain: &str) -> bool {
    let (host, port) = split_off(domain, domain.find(':'));
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(is_label)
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// One component of a path: lower-case letters and digits, with one dot, one or two underscores, or
/// any number of dashes between them.
fn is_path(path: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_separator = |separator: &str| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
    };
    let bytes = path.as_bytes();
    let ends_in_words = |end: Option<&u8>| end.is_some_and(|b| is_word(*b));
    ends_in_words(bytes.first())
        && ends_in_words(bytes.last())
        && path
            .split(|c: char| u8::try_from(c).is_ok_and(is_word))
            .all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    !tag.is_empty()
        && tag.len() <= LONGEST_TAG
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(is_inner)
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, digits)) = digest.split_once(':') else {
        return false;
    };
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(is_part)
        && digits.len() >= SHORTEST_DIGEST
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The length of the path that the registry is asked for.
fn repository_len(name: &str) -> usize {
    let is_registry = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let (is_default, path) = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => (DEFAULT_REGISTRIES.contains(&first), path),
        _ => (true, name),
    };
    let is_official = is_default && !path.contains('/');
    path.len() + if is_official { OFFICIAL.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use oci_spec::distribution::{ParseError, Reference as Usual};
    use proptest::prelude::*;

    use super::*;

    /// What the usual expression says: tag and digest, or the error.
    fn usual(text: &str) -> Result<(Option<String>, Option<String>), Error> {
        match text.parse::<Usual>() {
            Ok(usual) => Ok((
                usual.tag().map(str::to_owned),
                usual.digest().map(str::to_owned),
            )),
            Err(ParseError::NameTooLong) => Err(Error::NameTooLong),
            Err(ParseError::DigestInvalidLength) => Err(Error::DigestLength),
            Err(ParseError::DigestUnsupported) => Err(Error::DigestAlgorithm),
            Err(_) => Err(Error::Format),
        }
    }

    fn ours(text: &str) -> Result<(Option<String>, Option<String>), Error> {
        let reference = Reference::parse(text)?;
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok((owned(reference.tag_or_default()), owned(reference.digest)))
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_the_usual_expression_reads_it(
            text in "[aB0.:_/@-]{0,12}|([a-z0-9]{1,3}[._-]{0,3}){1,4}(:[0-9]{0,2})?(/[a-zA-Z0-9_.-]{0,6}){0,3}(:[a-zA-Z_.-]{0,4})?"
        ) {
            prop_assert_eq!(ours(&text), usual(&text), "{:?}", text);
        }

        #[test]
        fn any_digest_is_read_as_the_usual_expression_reads_it(
            text in "(r.test/)?a(:v)?@(sha256|sha384|sha512|sha1|a[+.]b|a--b|1a|):[0-9a-fA-Fg]{30,34}"
        ) {
            prop_assert_eq!(ours(&text), usual(&text), "{:?}", text);
        }
    }

    #[test]
    fn lengths_are_judged_as_the_usual_expression_judges_them() {
        let digits = |n| "a".repeat(n);
        for n in [247, 248, 255, 256] {
            for registry in ["", "r.test/", "docker.io/", "docker.io/x/", "localhost/"] {
                let text = format!("{registry}{}", digits(n));
                assert_eq!(ours(&text), usual(&text), "{registry} {n}");
            }
        }
        for (algorithm, n) in [("sha256", 64), ("sha384", 96), ("sha512", 128), ("md5", 32)] {
            for n in [n - 1, n, n + 1] {
                let text = format!("a@{algorithm}:{}", digits(n));
                assert_eq!(ours(&text), usual(&text), "{text}");
            }
        }
        for n in [128, 129] {
            let text = format!("a:{}", digits(n));
            assert_eq!(ours(&text), usual(&text), "{text}");
        }
    }

    #[test]
    fn parts_are_as_they_are_written() {
        let text = "registry.test:5000/team/app:v1";
        let reference = Reference::parse(text).unwrap();
        assert_eq!(reference.name, "registry.test:5000/team/app");
        assert_eq!(reference.tag, Some("v1"));
        assert_eq!(reference.digest, None);
    }
}
