//! One line of a container's log file (LOG-02): the CRI format
//! `<RFC3339Nano> <stdout|stderr> <P|F> <content>`, and Docker's JSON. Pure.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

/// How a whole file is written; told by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Cri,
    DockerJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub at: Timestamp,
    /// The time as it is shown before a line: nine digits of nanoseconds, the zone that the
    /// runtime wrote.
    pub at_text: String,
    pub stream: Stream,
    /// What the container wrote, with its newline; a part of a longer line (P) has none.
    pub content: Cow<'a, [u8]>,
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("no time at the line's start")]
    Time,
    #[error("the stream is neither stdout nor stderr")]
    Stream,
    #[error("no tag after the stream")]
    Tag,
    #[error("no JSON object with log, stream and time")]
    Json,
}

impl Format {
    /// From the first line of a file; none where it is neither.
    pub fn detect(line: &[u8]) -> Option<Self> {
        [Self::Cri, Self::DockerJson]
            .into_iter()
            .find(|format| format.parse(line).is_ok())
    }

    /// `line` with or without its newline.
    pub fn parse(self, line: &[u8]) -> Result<Line<'_>, Malformed> {
        match self {
            Self::Cri => parse_cri(line),
            Self::DockerJson => parse_docker(line),
        }
    }
}

fn parse_cri(line: &[u8]) -> Result<Line<'_>, Malformed> {
    let (time, rest) = split(line).ok_or(Malformed::Time)?;
    let (at, at_text) = parse_time(time).ok_or(Malformed::Time)?;
    let (stream, rest) = split(rest).ok_or(Malformed::Stream)?;
    let stream = parse_stream(stream).ok_or(Malformed::Stream)?;
    let (tags, content) = split(rest).ok_or(Malformed::Tag)?;
    // More tags may follow the first, after colons.
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    let content = match content {
        [part @ .., b'\n'] if is_partial => part,
        whole => whole,
    };
    Ok(Line {
        at,
        at_text,
        stream,
        content: Cow::Borrowed(content),
    })
}

fn parse_docker(line: &[u8]) -> Result<Line<'_>, Malformed> {
    #[derive(Deserialize)]
    struct DockerLine {
        #[serde(default)]
        log: String,
        stream: String,
        time: String,
    }
    let Ok(line) = serde_json::from_slice::<DockerLine>(line) else {
        return Err(Malformed::Json);
    };
    let (at, at_text) = parse_time(line.time.as_bytes()).ok_or(Malformed::Time)?;
    let stream = parse_stream(line.stream.as_bytes()).ok_or(Malformed::Stream)?;
    Ok(Line {
        at,
        at_text,
        stream,
        content: Cow::Owned(line.log.into_bytes()),
    })
}

fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    Some((&line[..space], &line[space + 1..]))
}

fn parse_stream(word: &[u8]) -> Option<Stream> {
    match word {
        b"stdout" => Some(Stream::Stdout),
        b"stderr" => Some(Stream::Stderr),
        _ => None,
    }
}

/// `2016-10-06T00:17:09.669794202Z`, or with an offset such as `+02:00`.
fn parse_time(word: &[u8]) -> Option<(Timestamp, String)> {
    const SECONDS: usize = "2016-10-06T00:17:09".len();
    let text = std::str::from_utf8(word).ok().filter(|t| t.is_ascii())?;
    let (seconds, rest) = text.split_at_checked(SECONDS)?;
    if seconds.as_bytes()[10] != b'T' {
        return None;
    }
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return None;
            }
            let (fraction, zone) = rest.split_at(digits);
            (&fraction[..digits.min(9)], zone)
        }
        None => ("", rest),
    };
    let is_zone = match zone.as_bytes() {
        [b'Z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].into_iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !is_zone {
        return None;
    }
    let shown_zone = if zone == "+00:00" { "Z" } else { zone };
    let shown = format!("{seconds}.{fraction:0<9}{shown_zone}");
    Some((shown.parse().ok()?, shown))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn parsed(line: &str) -> (String, Stream, Vec<u8>) {
        let format = Format::detect(line.as_bytes()).unwrap();
        let line = format.parse(line.as_bytes()).unwrap();
        (line.at_text, line.stream, line.content.into_owned())
    }

    #[rstest]
    #[case::full(
        "2016-10-06T00:17:09.669794202Z stdout F log content 1\n",
        "2016-10-06T00:17:09.669794202Z",
        Stream::Stdout,
        "log content 1\n"
    )]
    #[case::partial_has_no_newline(
        "2016-10-06T00:17:09.669794202Z stdout P part\n",
        "2016-10-06T00:17:09.669794202Z",
        Stream::Stdout,
        "part"
    )]
    #[case::further_tags(
        "2016-10-06T00:17:09.5Z stderr P:X part\n",
        "2016-10-06T00:17:09.500000000Z",
        Stream::Stderr,
        "part"
    )]
    #[case::whole_second_and_offset(
        "2016-10-06T00:17:09+02:00 stderr F x\n",
        "2016-10-06T00:17:09.000000000+02:00",
        Stream::Stderr,
        "x\n"
    )]
    #[case::empty(
        "2016-10-06T00:17:09Z stdout F \n",
        "2016-10-06T00:17:09.000000000Z",
        Stream::Stdout,
        "\n"
    )]
    #[case::spaces_stay(
        "2016-10-06T00:17:09Z stdout F  a  b \n",
        "2016-10-06T00:17:09.000000000Z",
        Stream::Stdout,
        " a  b \n"
    )]
    #[case::docker(
        r#"{"log":"content 2\n","stream":"stderr","time":"2016-10-20T18:39:20.57606444Z"}"#,
        "2016-10-20T18:39:20.576064440Z",
        Stream::Stderr,
        "content 2\n"
    )]
    fn reads_lines_of_both_formats(
        #[case] line: &str,
        #[case] at: &str,
        #[case] stream: Stream,
        #[case] content: &str,
    ) {
        assert_eq!(
            parsed(line),
            (at.to_owned(), stream, content.as_bytes().to_vec())
        );
    }

    #[rstest]
    #[case("", Malformed::Time)]
    #[case("hello world\n", Malformed::Time)]
    #[case("2016-10-06 00:17:09Z stdout F x\n", Malformed::Time)]
    #[case("2016-13-06T00:17:09Z stdout F x\n", Malformed::Time)]
    #[case("2016-10-06T00:17:09.Z stdout F x\n", Malformed::Time)]
    #[case("2016-10-06T00:17:09Z stdin F x\n", Malformed::Stream)]
    #[case("2016-10-06T00:17:09Z stdout\n", Malformed::Stream)]
    #[case("2016-10-06T00:17:09Z stdout F\n", Malformed::Tag)]
    fn refuses_what_is_no_cri_line(#[case] line: &str, #[case] expected: Malformed) {
        assert_eq!(Format::Cri.parse(line.as_bytes()), Err(expected));
        assert_eq!(Format::detect(line.as_bytes()), None);
    }

    #[test]
    fn the_offset_counts() {
        let line = Format::Cri
            .parse(b"2016-10-06T02:17:09+02:00 stdout F x\n")
            .unwrap();
        assert_eq!(line.at, "2016-10-06T00:17:09Z".parse().unwrap());
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Format::detect(&line);
        }

        #[test]
        fn never_panics_on_near_misses(
            time in "[0-9T:.Z+-]{0,40}|2016-10-06T00:17:09[.0-9Z+:é-]{0,20}",
            rest in "( |stdout|stderr|P|F|:|x|\\n){0,8}",
        ) {
            let _ = Format::detect(format!("{time}{rest}").as_bytes());
        }

        #[test]
        fn content_comes_back_byte_for_byte(
            content in proptest::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..100),
            seconds in 0i64..4_000_000_000, nanos in 0i32..1_000_000_000,
        ) {
            let at = Timestamp::new(seconds, nanos).unwrap();
            let mut line = format!("{at:.9} stdout F ").into_bytes();
            line.extend(&content);
            line.push(b'\n');
            let parsed = Format::Cri.parse(&line).unwrap();
            prop_assert_eq!(parsed.at, at);
            prop_assert_eq!(parsed.at_text, format!("{at:.9}"));
            prop_assert_eq!(&parsed.content[..parsed.content.len() - 1], &content[..]);
        }
    }
}
