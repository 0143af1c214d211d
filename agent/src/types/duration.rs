//! Durations as Go writes and reads them (`1m30s`, `300ms`, `1.5h`): signed nanoseconds.
//!
//! Flags, the configuration file and upstream's messages use this form. It is read exactly as `time.ParseDuration`
//! does, so that a text that a kubelet refuses is refused here too.

use std::time::Duration;

/// Signed nanoseconds; 292 years at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub i64);

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];
pub const SECOND: i64 = 1_000_000_000;
pub const MILLISECOND: i64 = 1_000_000;

impl GoDuration {
    /// None where the text is not a duration, or is too long for one.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, mut rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Some(Self(0));
        }
        if rest.is_empty() {
            return None;
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at(number);
            let unit = tail
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit);
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return None;
            }
            let whole: i128 = if whole.is_empty() {
                0
            } else {
                whole.parse().ok()?
            };
            total = total.checked_add(whole.checked_mul(i128::from(*scale))?)?;
            // More digits than these are below a nanosecond of the longest unit.
            let fraction = &fraction[..fraction.len().min(16)];
            if !fraction.is_empty() {
                let parts = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
                total += fraction.parse::<i128>().ok()? * i128::from(*scale) / parts;
            }
            rest = tail;
        }
        i64::try_from(if is_negative { -total } else { total })
            .ok()
            .map(Self)
    }

    /// None where it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl std::fmt::Display for GoDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let below_a_second = |unit: u64| fraction(nanos / unit, nanos % unit, unit);
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}\u{b5}s", below_a_second(1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", below_a_second(1_000_000)),
            _ => {
                let seconds = nanos / 1_000_000_000;
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                let rest = fraction(seconds % 60, nanos % 1_000_000_000, 1_000_000_000);
                write!(f, "{rest}s")
            }
        }
    }
}

fn fraction(whole: u64, part: u64, unit: u64) -> String {
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{part:0width$}")
        .trim_end_matches('0')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0", "0s")]
    #[case("1m", "1m0s")]
    #[case("1m30s", "1m30s")]
    #[case("90s", "1m30s")]
    #[case("1.5h", "1h30m0s")]
    #[case("100ms", "100ms")]
    #[case("1500us", "1.5ms")]
    #[case("-20s", "-20s")]
    #[case("+.5s", "500ms")]
    #[case("1h0m0.25s", "1h0m0.25s")]
    fn reads_and_writes_what_go_does(#[case] text: &str, #[case] written: &str) {
        let duration = GoDuration::parse(text).expect("a duration");
        assert_eq!(duration.to_string(), written);
        assert_eq!(GoDuration::parse(written), Some(duration));
    }

    #[rstest]
    #[case("")]
    #[case("-")]
    #[case("20")]
    #[case("1 m")]
    #[case("s")]
    #[case(".s")]
    #[case("1.2.3s")]
    #[case("1d")]
    #[case("10000000h")]
    fn refuses_what_go_refuses(#[case] text: &str) {
        assert_eq!(GoDuration::parse(text), None);
    }

    proptest::proptest! {
        #[test]
        fn every_duration_is_read_back_as_written(nanos in i64::MIN + 1..i64::MAX) {
            let duration = GoDuration(nanos);
            proptest::prop_assert_eq!(GoDuration::parse(&duration.to_string()), Some(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+0-9.a-z\u{b5}]{0,40}") {
            let _ = GoDuration::parse(&text);
        }
    }
}
