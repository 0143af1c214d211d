//! Image names: the default tag, and what is wrong with a name that is none.

use super::reference::{Error, Reference};

/// `image` with `:latest` where it has neither tag nor digest; the registry is left as it is, since
/// short names are the runtime's to complete (IMG-01). The error is upstream's text.
pub(super) fn with_default_tag(image: &str) -> Result<String, String> {
    let wrong = |what: String| Err(format!("couldn't parse image name {image:?}: {what}"));
    if image.len() == 64
        && image
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    {
        return wrong(format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    match Reference::parse(image) {
        Ok(Reference {
            tag: None,
            digest: None,
            ..
        }) => Ok(format!("{image}:latest")),
        Ok(_) => Ok(image.to_owned()),
        Err(Error::Format) => {
            let path = repository(image);
            if path.chars().any(char::is_uppercase) {
                wrong(format!(
                    "invalid reference format: repository name ({path}) must be lowercase"
                ))
            } else {
                wrong("invalid reference format".to_owned())
            }
        }
        Err(error @ (Error::NameTooLong | Error::DigestLength | Error::DigestAlgorithm)) => {
            wrong(error.to_string())
        }
    }
}

/// The repository's path as the default registry completes it.
fn repository(image: &str) -> String {
    let (path, is_official) = match image.split_once('/') {
        None => (image, true),
        Some((first, rest)) => {
            let is_host = first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase);
            if is_host {
                (rest, false)
            } else {
                (image, false)
            }
        }
    };
    let path = path.split(':').next().unwrap_or(path);
    if is_official {
        format!("library/{path}")
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("busybox", "busybox:latest")]
    #[case("busybox:1.36", "busybox:1.36")]
    #[case("busybox:latest", "busybox:latest")]
    #[case("localhost:5000/a/b", "localhost:5000/a/b:latest")]
    #[case("localhost:5000/a/b:v1", "localhost:5000/a/b:v1")]
    fn a_name_without_tag_gets_latest_and_keeps_its_registry(
        #[case] image: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(with_default_tag(image).unwrap(), expected);
    }

    #[test]
    fn a_digest_is_enough() {
        let image = format!("busybox@sha256:{}", "a".repeat(64));
        assert_eq!(with_default_tag(&image).unwrap(), image);
    }

    #[rstest]
    #[case("busybox:", "invalid reference format")]
    #[case("a b", "invalid reference format")]
    #[case("", "invalid reference format")]
    #[case(
        "Busybox",
        "invalid reference format: repository name (library/Busybox) must be lowercase"
    )]
    #[case(
        "registry.test/Team/App:v1",
        "invalid reference format: repository name (Team/App) must be lowercase"
    )]
    #[case(
        "busybox@sha256:0123456789abcdef0123456789abcdef",
        "invalid checksum digest length"
    )]
    fn a_name_that_is_none_says_why(#[case] image: &str, #[case] why: &str) {
        assert_eq!(
            with_default_tag(image).unwrap_err(),
            format!("couldn't parse image name {image:?}: {why}")
        );
    }
}
