//! Where the last lines of a file begin, found from its end.

use std::io::{self, Read, Seek, SeekFrom};

const BLOCK: u64 = 64 << 10;

/// Offset at which the last `lines` whole lines of `file` begin; a last line without newline comes
/// on top, as upstream counts. Zero where the file has no more lines than that.
pub(super) fn start_of_last(file: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut left = lines;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(end - start).read_to_end(&mut block)?;
        for (at, _) in block
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            if left == 0 {
                return Ok(start + at as u64 + 1);
            }
            left -= 1;
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", 3, "")]
    #[case("a\nb\nc\n", 2, "b\nc\n")]
    #[case("a\nb\nc\n", 3, "a\nb\nc\n")]
    #[case("a\nb\nc\n", 9, "a\nb\nc\n")]
    #[case("a\nb\nc\n", 0, "")]
    #[case::a_last_line_without_newline_comes_on_top("a\nb\nc", 1, "b\nc")]
    fn finds_the_last_lines(#[case] file: &str, #[case] lines: u64, #[case] expected: &str) {
        let start = start_of_last(&mut Cursor::new(file), lines).unwrap();
        assert_eq!(&file[usize::try_from(start).unwrap()..], expected);
    }

    proptest! {
        #[test]
        fn agrees_with_counting_from_the_start(
            lengths in proptest::collection::vec(0usize..40_000, 0..12), lines in 0u64..14,
        ) {
            let file: String = lengths.iter().map(|n| format!("{}\n", "x".repeat(*n))).collect();
            let start = start_of_last(&mut Cursor::new(&file), lines).unwrap();
            let skipped = lengths.len().saturating_sub(usize::try_from(lines).unwrap());
            let expected: usize = lengths[..skipped].iter().map(|n| n + 1).sum();
            prop_assert_eq!(start, expected as u64);
        }
    }
}
