//! The API's rules for names, each with the message that upstream gives. Pure.
//!
//! Each function returns what is wrong, and nothing where the text is good.

use std::net::IpAddr;

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn too_long(text: &str, most: usize) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} bytes"))
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Begins and ends with an `edge` byte, with `inner` bytes between.
fn has_shape(text: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => edge(first) && edge(last) && bytes.iter().all(|&b| inner(b)),
        (None, _) | (_, None) => false,
    }
}

fn is_label(text: &str) -> bool {
    has_shape(text, is_lower_alphanumeric, |byte| {
        is_lower_alphanumeric(byte) || byte == b'-'
    })
}

pub(super) fn dns_label(text: &str) -> Vec<String> {
    let shape = (!is_label(text)).then(|| DNS_LABEL.to_owned());
    too_long(text, 63).into_iter().chain(shape).collect()
}

pub(super) fn dns_subdomain(text: &str) -> Vec<String> {
    let shape = (!text.split('.').all(is_label)).then(|| DNS_SUBDOMAIN.to_owned());
    too_long(text, 253).into_iter().chain(shape).collect()
}

/// A search domain of a resolver, which may have underscores.
pub(super) fn dns_search(text: &str) -> Vec<String> {
    dns_subdomain(&text.replace('_', "a"))
}

fn is_qualified_part(text: &str) -> bool {
    has_shape(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// Key of a label or an annotation: `name` or `example.com/name`.
pub(super) fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                LABEL_KEY.trim_start_matches("name part ")
            )];
        }
        Some(("", name)) => {
            wrong.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            let parts = dns_subdomain(prefix).into_iter();
            wrong.extend(parts.map(|message| format!("prefix part {message}")));
            name
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if let Some(message) = too_long(name, 63) {
        wrong.push(format!("name part {message}"));
    }
    if !is_qualified_part(name) {
        wrong.push(LABEL_KEY.to_owned());
    }
    wrong
}

pub(super) fn label_value(text: &str) -> Vec<String> {
    let is_good = text.is_empty() || is_qualified_part(text);
    let shape = (!is_good).then(|| LABEL_VALUE.to_owned());
    too_long(text, 63).into_iter().chain(shape).collect()
}

pub(super) fn port_name(text: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 15).into_iter().collect();
    let mut push = |is_wrong: bool, message: &str| {
        if is_wrong {
            wrong.push(message.to_owned());
        }
    };
    push(
        !text.bytes().all(|b| is_lower_alphanumeric(b) || b == b'-'),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    push(
        !text.bytes().any(|byte| byte.is_ascii_lowercase()),
        "must contain at least one letter (a-z)",
    );
    push(text.contains("--"), "must not contain consecutive hyphens");
    push(
        text.starts_with('-') || text.ends_with('-'),
        "must not begin or end with a hyphen",
    );
    wrong
}

/// Name of an environment variable, by the relaxed rule that upstream has had since 1.30.
pub(super) fn env_name(text: &str) -> Vec<String> {
    let is_good = text
        .bytes()
        .all(|byte| (byte.is_ascii_graphic() || byte == b' ') && byte != b'=');
    if is_good {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ]
    }
}

pub(super) fn ip(text: &str) -> Vec<String> {
    if text.parse::<IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// A path inside something: relative, and never upwards.
pub(super) fn descending_path(text: &str) -> Vec<String> {
    let absolute = text
        .starts_with('/')
        .then(|| "must be a relative path".to_owned());
    absolute.into_iter().chain(no_backsteps(text)).collect()
}

pub(super) fn no_backsteps(text: &str) -> Vec<String> {
    if text.split('/').any(|part| part == "..") {
        vec!["must not contain '..'".to_owned()]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", true)]
    #[case("0-a", true)]
    #[case("", false)]
    #[case("Web", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("a.b", false)]
    #[case("a_b", false)]
    fn labels(#[case] text: &str, #[case] is_good: bool) {
        assert_eq!(dns_label(text).is_empty(), is_good);
    }

    #[rstest]
    #[case("example.com", true)]
    #[case("a..b", false)]
    #[case(".a", false)]
    #[case("a.B", false)]
    fn subdomains(#[case] text: &str, #[case] is_good: bool) {
        assert_eq!(dns_subdomain(text).is_empty(), is_good);
    }

    #[test]
    fn lengths_are_counted_in_bytes() {
        assert_eq!(dns_label(&"a".repeat(63)), Vec::<String>::new());
        assert_eq!(
            dns_label(&"a".repeat(64)),
            ["must be no more than 63 bytes"]
        );
        assert_eq!(
            dns_subdomain(&"a".repeat(254)),
            ["must be no more than 253 bytes"]
        );
    }

    #[rstest]
    #[case("app", true)]
    #[case("example.com/App_1", true)]
    #[case("/app", false)]
    #[case("a/b/c", false)]
    #[case("Example.com/app", false)]
    #[case("app/", false)]
    fn qualified_names(#[case] text: &str, #[case] is_good: bool) {
        assert_eq!(qualified_name(text).is_empty(), is_good);
    }

    #[rstest]
    #[case("http", true)]
    #[case("80", false)]
    #[case("a--b", false)]
    #[case("Http", false)]
    #[case("a-very-long-port-name", false)]
    fn port_names(#[case] text: &str, #[case] is_good: bool) {
        assert_eq!(port_name(text).is_empty(), is_good);
    }

    #[rstest]
    #[case("a b", true)]
    #[case("1A.b-c", true)]
    #[case("a=b", false)]
    #[case("ä", false)]
    fn env_names(#[case] text: &str, #[case] is_good: bool) {
        assert_eq!(env_name(text).is_empty(), is_good);
    }
}
