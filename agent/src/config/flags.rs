//! The command line of `skep run`, read as pflag reads the kubelet's.
//!
//! `--name=value`, `--name value`, `--bool`, `-v2`, underscores for dashes; map flags add up.
//! Values are read by the kind of the flag's row.

use std::{collections::BTreeMap, ffi::OsString};

use super::{
    table::{self, Row},
    value::Value,
};

/// What was given, in the order of the flags' names.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) values: BTreeMap<&'static str, (&'static Row, Value)>,
    /// Anything that is no flag.
    pub(super) positional: Vec<String>,
    /// One line each. An unknown flag ends the reading: what follows might be its value.
    pub(super) mistakes: Vec<String>,
}

impl Given {
    pub(super) fn text(&self, flag: &str) -> Option<&str> {
        match self.values.get(flag) {
            Some((_, Value::Text(text))) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_on(&self, flag: &str) -> bool {
        matches!(self.values.get(flag), Some((_, Value::Bool(true))))
    }
}

pub(super) fn parse(args: &[OsString]) -> Given {
    let mut given = Given::default();
    let mut texts = Vec::with_capacity(args.len());
    for (index, arg) in args.iter().enumerate() {
        match arg.to_str() {
            Some(text) => texts.push(text),
            None => {
                let text = arg.to_string_lossy();
                given
                    .mistakes
                    .push(format!("argument {} ({text:?}) is not UTF-8", index + 1));
                return given;
            }
        }
    }
    let mut rest = texts.into_iter();
    while let Some(arg) = rest.next() {
        let outcome = if arg == "--" {
            given.positional.extend(rest.by_ref().map(str::to_owned));
            Ok(())
        } else if let Some(long) = arg.strip_prefix("--") {
            parse_long(&mut given, long, &mut rest)
        } else if let Some(short) = arg.strip_prefix('-').filter(|short| !short.is_empty()) {
            parse_short(&mut given, short, &mut rest)
        } else {
            given.positional.push(arg.to_owned());
            Ok(())
        };
        if let Err(mistake) = outcome {
            given.mistakes.push(mistake);
            break;
        }
    }
    given
}

fn parse_long<'a>(
    given: &mut Given,
    long: &str,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    if long.starts_with(['-', '=']) {
        return Err(format!("bad flag syntax: --{long}"));
    }
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (long, None),
    };
    let row = table::by_flag(name).ok_or_else(|| format!("unknown flag: --{name}"))?;
    let value = match (value, row.kind.implied()) {
        (Some(value), _) | (None, Some(value)) => value,
        (None, None) => rest
            .next()
            .ok_or_else(|| format!("flag needs an argument: --{name}"))?,
    };
    set(given, row, value);
    Ok(())
}

/// `-v 2`, `-v2`, `-v=2` and `-h`; letters may stand together.
fn parse_short<'a>(
    given: &mut Given,
    short: &str,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    let mut letters = short;
    while let Some(letter) = letters.chars().next() {
        let tail = &letters[letter.len_utf8()..];
        let row = match letter {
            'v' => table::by_flag("v"),
            'h' => table::by_flag("help"),
            _ => None,
        }
        .ok_or_else(|| format!("unknown shorthand flag: {letter:?} in -{letters}"))?;
        let (value, tail) = match (tail.strip_prefix('='), row.kind.implied()) {
            (Some(value), _) if !value.is_empty() => (value, ""),
            (_, Some(value)) => (value, tail),
            (_, None) if !tail.is_empty() => (tail, ""),
            (_, None) => (
                rest.next()
                    .ok_or_else(|| format!("flag needs an argument: {letter:?} in -{letters}"))?,
                "",
            ),
        };
        set(given, row, value);
        letters = tail;
    }
    Ok(())
}

fn set(given: &mut Given, row: &'static Row, text: &str) {
    let flag = row.flag.unwrap_or_default();
    let before = given.values.remove(flag).map(|(_, value)| value);
    match row.kind.parse(text, before) {
        Ok(value) => {
            given.values.insert(flag, (row, value));
        }
        Err(expected) => {
            let shown = match flag {
                "v" => "-v, --v".to_owned(),
                "help" => "-h, --help".to_owned(),
                _ => format!("--{flag}"),
            };
            // Header values may be secret.
            let text = if flag == "manifest-url-header" {
                "<masked>"
            } else {
                text
            };
            given.mistakes.push(format!(
                "invalid argument {text:?} for {shown:?} flag: {expected}"
            ));
        }
    }
}

/// `--help`: how to call it and every flag of the table.
pub(super) fn usage() -> String {
    let mut text = String::from(
        "The node agent, with the kubelet's flags and configuration file.\n\n\
         Usage:\n  skep run [flags]\n\nFlags:\n",
    );
    let mut rows: Vec<_> = table::rows().filter(|row| row.flag.is_some()).collect();
    rows.sort_by_key(|row| row.flag);
    for row in rows {
        let flag = row.flag.unwrap_or_default();
        let short = match flag {
            "v" => "-v, ",
            "help" => "-h, ",
            _ => "    ",
        };
        let kind = match row.kind.implied() {
            Some(_) => String::new(),
            None => format!(" {}", row.kind),
        };
        text.push_str(&format!("  {short}--{flag}{kind}\n        {}", row.about));
        match row.default_value(table::Defaults::Bare) {
            Some(default) if !default.is_zero() => text.push_str(&format!(" (default {default})")),
            _ => {}
        }
        if let table::Verdict::NotBuilt(subject) = row.verdict {
            text.push_str(&format!(" (not built yet: {subject})"));
        }
        if row.is_deprecated {
            text.push_str(" (deprecated)");
        }
        text.push('\n');
    }
    text
}

/// What a flag that was given and is deprecated says.
pub(super) fn deprecations(given: &Given) -> impl Iterator<Item = String> + '_ {
    given
        .values
        .values()
        .filter(|(row, _)| row.is_deprecated)
        .map(|(row, _)| {
            let flag = row.flag.unwrap_or_default();
            match row.field {
                Some(field) => format!(
                    "Flag --{flag} has been deprecated, set {field} in the file of --config instead"
                ),
                None => format!("Flag --{flag} has been deprecated, it will be removed"),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(args: &[&str]) -> Given {
        parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[rstest]
    #[case(&["--max-pods=20"])]
    #[case(&["--max-pods", "20"])]
    #[case(&["--max_pods", "20"])]
    #[case(&["--max-pods=5", "--max_pods=0x14"])]
    fn a_flag_takes_its_value_in_every_form(#[case] args: &[&str]) {
        let given = read(args);
        assert_eq!(given.mistakes, Vec::<String>::new());
        assert_eq!(given.values["max-pods"].1, Value::Int(20));
    }

    #[rstest]
    #[case(&["-v", "2"])]
    #[case(&["-v2"])]
    #[case(&["-v=2"])]
    #[case(&["--v", "2"])]
    fn the_short_verbosity_is_read_in_every_form(#[case] args: &[&str]) {
        assert_eq!(read(args).values["v"].1, Value::Int(2));
    }

    #[test]
    fn a_bool_flag_takes_no_value_from_the_next_argument() {
        let given = read(&["--fail-swap-on", "false"]);
        assert!(given.is_on("fail-swap-on"));
        assert_eq!(given.positional, ["false"]);
        assert!(!read(&["--fail-swap-on=false"]).is_on("fail-swap-on"));
    }

    #[test]
    fn what_follows_two_dashes_is_no_flag() {
        assert_eq!(read(&["--", "--max-pods=1"]).positional, ["--max-pods=1"]);
    }

    #[rstest]
    #[case(&["--foo"], "unknown flag: --foo")]
    #[case(&["--foo=1", "--max-pods=x"], "unknown flag: --foo")]
    #[case(&["--=x"], "bad flag syntax: --=x")]
    #[case(&["---x"], "bad flag syntax: ---x")]
    #[case(&["--max-pods"], "flag needs an argument: --max-pods")]
    #[case(&["-v"], "flag needs an argument: 'v' in -v")]
    #[case(&["-x"], "unknown shorthand flag: 'x' in -x")]
    #[case(
        &["--max-pods=ten"],
        "invalid argument \"ten\" for \"--max-pods\" flag: expected a whole number"
    )]
    #[case(
        &["--max-pods=3000000000"],
        "invalid argument \"3000000000\" for \"--max-pods\" flag: expected a whole number of 32 bits"
    )]
    #[case(
        &["--fail-swap-on=no"],
        "invalid argument \"no\" for \"--fail-swap-on\" flag: expected true or false"
    )]
    #[case(
        &["--sync-frequency=20"],
        "invalid argument \"20\" for \"--sync-frequency\" flag: expected a duration like 20s, 1m30s or 300ms"
    )]
    #[case(
        &["--address=localhost"],
        "invalid argument \"localhost\" for \"--address\" flag: expected an IP address like 127.0.0.1 or ::"
    )]
    #[case(
        &["--system-reserved=cpu"],
        "invalid argument \"cpu\" for \"--system-reserved\" flag: expected key=value, not \"cpu\""
    )]
    #[case(
        &["--feature-gates=NodeSwap=maybe"],
        "invalid argument \"NodeSwap=maybe\" for \"--feature-gates\" flag: expected true or false for NodeSwap, not \"maybe\""
    )]
    #[case(
        &["--manifest-url-header=my-secret"],
        "invalid argument \"<masked>\" for \"--manifest-url-header\" flag: expected name:value"
    )]
    #[case(&["--v=loud"], "invalid argument \"loud\" for \"-v, --v\" flag: expected a whole number")]
    fn a_bad_flag_gives_one_line(#[case] args: &[&str], #[case] line: &str) {
        assert_eq!(read(args).mistakes, [line]);
    }

    #[test]
    fn every_bad_value_is_told_at_once() {
        let given = read(&["--max-pods=a", "--healthz-port=b", "--v=1"]);
        assert_eq!(given.mistakes.len(), 2);
        assert_eq!(given.values["v"].1, Value::Int(1));
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_named() {
        use std::os::unix::ffi::OsStringExt as _;
        let given = parse(&["--v=1".into(), OsString::from_vec(vec![0x2d, 0xff])]);
        assert_eq!(given.mistakes, ["argument 2 (\"-\u{fffd}\") is not UTF-8"]);
    }

    #[test]
    fn help_names_every_flag() {
        let text = usage();
        for row in table::rows() {
            if let Some(flag) = row.flag {
                assert!(text.contains(&format!("--{flag}")), "{flag}");
            }
        }
    }
}
