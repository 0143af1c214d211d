//! From the bytes of log files to the bytes that a reader wants: lines put together across reads,
//! parsed, filtered, prefixed and cut. Pure.

use jiff::Timestamp;

use super::format::Format;

/// Runtimes cut lines at 16 KiB unless told otherwise; what is longer than this is handed on in
/// pieces, so that a file without newlines cannot fill the memory.
const MAX_LINE: usize = 16 << 20;

/// What to show of the lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
    /// No more than so many lines of the file are looked at (tail without follow).
    pub max_lines: Option<u64>,
}

/// A first line in neither format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownFormat {
    pub line: String,
}

#[derive(Debug)]
pub(super) struct Lines {
    wanted: Wanted,
    format: Option<Format>,
    /// The start of a line whose end was not read yet.
    rest: Vec<u8>,
    /// The next content begins a line of the container's output: partial lines get one time.
    is_line_start: bool,
    is_done: bool,
}

impl Lines {
    pub(super) fn new(wanted: Wanted) -> Self {
        let is_done = wanted.max_lines == Some(0) || wanted.limit_bytes == Some(0);
        Self {
            wanted,
            format: None,
            rest: Vec::new(),
            is_line_start: true,
            is_done,
        }
    }

    /// A limit is reached: nothing more will come out.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes a piece of a file and appends what is to be shown to `out`.
    pub(super) fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), UnknownFormat> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.is_done {
                return Ok(());
            }
            let is_whole = part.ends_with(b"\n");
            if self.rest.is_empty() && is_whole {
                self.line(part, out)?;
                continue;
            }
            self.rest.extend_from_slice(part);
            if is_whole || self.rest.len() >= MAX_LINE {
                self.finish(out)?;
            }
        }
        Ok(())
    }

    /// The file ends here: a last line without newline is shown as it is.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UnknownFormat> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() || self.is_done {
            return Ok(());
        }
        self.line(&rest, out)
    }

    /// Says something that is not the container's own, as a line for itself.
    pub(super) fn note(&mut self, note: &str, now: Timestamp, out: &mut Vec<u8>) {
        let start = out.len();
        if !self.is_line_start {
            out.push(b'\n');
        }
        if self.wanted.timestamps {
            out.extend_from_slice(format!("{now:.9} ").as_bytes());
        }
        out.extend_from_slice(note.as_bytes());
        out.push(b'\n');
        self.is_line_start = true;
        self.limit(start, out);
    }

    /// Cuts what was appended from `start` on at the limit of bytes.
    fn limit(&mut self, start: usize, out: &mut Vec<u8>) {
        if let Some(left) = &mut self.wanted.limit_bytes {
            let room = usize::try_from(*left).unwrap_or(usize::MAX);
            out.truncate(start.saturating_add(room));
            *left -= (out.len() - start) as u64;
            self.is_done |= *left == 0;
        }
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), UnknownFormat> {
        let format = match self.format {
            Some(format) => format,
            None => {
                let format = Format::detect(line).ok_or_else(|| UnknownFormat {
                    line: String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned(),
                })?;
                *self.format.insert(format)
            }
        };
        let parsed = match format.parse(line) {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::debug!(%error, "line of a log file skipped");
                return Ok(());
            }
        };
        if self.wanted.since.is_none_or(|since| parsed.at >= since) {
            let start = out.len();
            if self.wanted.timestamps && self.is_line_start {
                out.extend_from_slice(parsed.at_text.as_bytes());
                out.push(b' ');
            }
            out.extend_from_slice(&parsed.content);
            self.limit(start, out);
        }
        if let Some(left) = &mut self.wanted.max_lines {
            *left -= 1;
            self.is_done |= *left == 0;
        }
        self.is_line_start = parsed.content.last().is_none_or(|byte| *byte == b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const FILE: &str = "\
2024-01-01T00:00:01Z stdout F one\n\
2024-01-01T00:00:02Z stdout P tw\n\
2024-01-01T00:00:03Z stdout F o\n\
this line is damaged\n\
2024-01-01T00:00:04Z stderr F three\n\
2024-01-01T00:00:05Z stdout F fou";

    fn shown(wanted: Wanted, file: &str, piece: usize) -> String {
        let mut lines = Lines::new(wanted);
        let mut out = Vec::new();
        for piece in file.as_bytes().chunks(piece) {
            lines.push(piece, &mut out).unwrap();
        }
        lines.finish(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[rstest]
    #[case::all(Wanted::default(), "one\ntwo\nthree\nfou")]
    #[case::since_is_inclusive(
        Wanted { since: Some("2024-01-01T00:00:04Z".parse().unwrap()), ..Wanted::default() },
        "three\nfou"
    )]
    #[case::one_time_for_a_line_in_parts(
        Wanted { timestamps: true, limit_bytes: Some(72), ..Wanted::default() },
        "2024-01-01T00:00:01.000000000Z one\n2024-01-01T00:00:02.000000000Z two\n20"
    )]
    #[case::limit_cuts_in_the_middle(Wanted { limit_bytes: Some(6), ..Wanted::default() }, "one\ntw")]
    #[case::no_bytes(Wanted { limit_bytes: Some(0), ..Wanted::default() }, "")]
    #[case::no_lines(Wanted { max_lines: Some(0), ..Wanted::default() }, "")]
    #[case::lines_of_the_file(Wanted { max_lines: Some(2), ..Wanted::default() }, "one\ntw")]
    #[case::filtered_lines_count(
        Wanted { max_lines: Some(3), since: Some("2024-01-01T00:00:03Z".parse().unwrap()), ..Wanted::default() },
        "o\n"
    )]
    fn shows_what_is_wanted(#[case] wanted: Wanted, #[case] expected: &str) {
        for piece in [1, 7, 4096] {
            assert_eq!(shown(wanted.clone(), FILE, piece), expected);
        }
    }

    #[test]
    fn a_note_is_a_line_for_itself_and_counts_as_bytes() {
        let mut lines = Lines::new(Wanted {
            timestamps: true,
            limit_bytes: Some(74),
            ..Wanted::default()
        });
        let mut out = Vec::new();
        let part = b"2024-01-01T00:00:01Z stdout P tw\n";
        lines.push(part, &mut out).unwrap();
        let now = "2024-01-01T00:00:02Z".parse().unwrap();
        lines.note("something", now, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "2024-01-01T00:00:01.000000000Z tw\n2024-01-01T00:00:02.000000000Z something"[..74]
        );
        assert!(lines.is_done());
    }

    #[test]
    fn names_the_line_when_the_format_is_unknown() {
        let mut lines = Lines::new(Wanted::default());
        let error = lines.push(b"not a log\n", &mut Vec::new()).unwrap_err();
        assert_eq!(error.line, "not a log\n");
    }

    proptest! {
        #[test]
        fn never_panics_and_pieces_do_not_matter(
            file in proptest::collection::vec(
                prop_oneof![
                    "2024-01-01T00:00:0[0-9]Z (stdout|stderr) (P|F) [a-z]{0,9}\n",
                    "[ -~]{0,20}\n",
                    "\n",
                ], 0..20),
            piece in 1usize..50,
            limit in proptest::option::of(0u64..200),
            max_lines in proptest::option::of(0u64..20),
            timestamps: bool,
        ) {
            let file = format!("2024-01-01T00:00:00Z stdout F start\n{}", file.concat());
            let wanted = Wanted { since: None, timestamps, limit_bytes: limit, max_lines };
            let whole = shown(wanted.clone(), &file, file.len());
            prop_assert_eq!(&shown(wanted, &file, piece), &whole);
            prop_assert!(limit.is_none_or(|limit| whole.len() as u64 <= limit));
        }

        #[test]
        fn never_panics_on_any_bytes(file in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut lines = Lines::new(Wanted { timestamps: true, ..Wanted::default() });
            let mut out = Vec::new();
            let _ = lines.push(&file, &mut out);
            let _ = lines.finish(&mut out);
        }
    }
}
