//! Spans of time, as people write and read them. Pure.

use jiff::SignedDuration;

/// `90s`, `5m`, `1h30m`; not negative.
pub(super) fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    text.parse::<SignedDuration>()
        .ok()
        .filter(|duration| !duration.is_negative())
        .ok_or_else(|| "expected a time span like 90s, 5m or 1h30m".to_owned())
}

/// As `kubectl` prints ages: two units where the first is small, `5m3s`, `3h`, `2d4h`.
pub(super) fn human(age: SignedDuration) -> String {
    let seconds = age.as_secs();
    if seconds < -1 {
        // A clock that is behind the one that wrote the time.
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |first: i64, unit: char, second: i64, small: char| match second {
        0 => format!("{first}{unit}"),
        second => format!("{first}{unit}{second}{small}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // From apimachinery's `duration.HumanDuration`.
    #[rstest]
    #[case(-5, "<invalid>")]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(303, "5m3s")]
    #[case(600, "10m")]
    #[case(10_799, "179m")]
    #[case(10_800, "3h")]
    #[case(3 * 3600 + 900, "3h15m")]
    #[case(8 * 3600 + 900, "8h")]
    #[case(47 * 3600, "47h")]
    #[case(48 * 3600, "2d")]
    #[case(52 * 3600, "2d4h")]
    #[case(8 * 86_400 + 3600, "8d")]
    #[case(800 * 86_400, "2y70d")]
    #[case(9 * 365 * 86_400, "9y")]
    fn ages_read_as_kubectl_prints_them(#[case] seconds: i64, #[case] expected: &str) {
        assert_eq!(human(SignedDuration::from_secs(seconds)), expected);
    }

    #[rstest]
    #[case("1h30m", Some(5400))]
    #[case("90s", Some(90))]
    #[case("-5m", None)]
    #[case("5", None)]
    #[case("", None)]
    fn spans_are_read(#[case] text: &str, #[case] expected: Option<i64>) {
        let parsed = parse_duration(text).ok().map(|span| span.as_secs());
        assert_eq!(parsed, expected);
    }
}
