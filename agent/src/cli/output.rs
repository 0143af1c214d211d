//! Printing: tables for people, JSON and YAML for programs.

use std::io::{self, Write as _};

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    #[default]
    Table,
    Json,
    Yaml,
}

/// Writes to stdout at once. A reader that is gone is an error, and ends the command.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

pub(super) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Prints `value` as JSON or YAML, or what `table` makes.
pub(super) fn show<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => table(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(value)?),
        Format::Yaml => yaml(value)?,
    };
    Ok(print(&text)?)
}

/// One of a row of values that come one after the other: a line of JSON, or a YAML document.
pub(super) fn show_one<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => table(),
        Format::Json => format!("{}\n", serde_json::to_string(value)?),
        Format::Yaml => format!("---\n{}", yaml(value)?),
    };
    Ok(print(&text)?)
}

fn yaml<T: Serialize>(value: &T) -> anyhow::Result<String> {
    // By way of JSON: the API's objects are written for it.
    let value = serde_json::to_value(value)?;
    let mut text = serde_saphyr::to_string(&value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_read_back_as_what_it_was() {
        let value = serde_json::json!({
            "name": "web", "yes": "no", "number": "012", "list": [1, 2.5, null, true],
            "text": "two\nlines: #x", "empty": {},
        });
        let text = yaml(&value).unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, value, "{text}");
    }
}
