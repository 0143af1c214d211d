//! docs/CONFIG.md, written from the table, so that it cannot say anything else than the program.

use std::fmt::Write as _;

use super::{
    gates,
    table::{self, Defaults, Row, Verdict},
};

const INTRODUCTION: &str = "\
# Configuration

`skep run` takes the kubelet's flags and its configuration file (`KubeletConfiguration`,
`kubelet.config.k8s.io/v1beta1`, YAML or JSON), by the names and defaults of Kubernetes 1.37.2.

- Flags win over the files of `--config-dir`, those over the file of `--config`, that over defaults.
- A setting whose subject is not built yet is accepted while it holds its default (or says that the
  subject is not wanted); with any other value Skep does not start and names it.
- Unknown fields are warned about and passed over; a value of the wrong type is an error.
- All mistakes are told at once, one line each, with the file or the flag that made them.
- Relative paths in the file of `--config` start at its folder.
- The authenticated API on port 10250 is not served yet. So the defaults that a file brings for it
  (authentication and authorization by the API server) are accepted without a cluster, where a
  kubelet would refuse to start.

This file is written from the program's own table: `SKEP_BLESS=1 cargo test -p agent --lib config`.
";

/// The whole document.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    section(
        &mut text,
        "Fields",
        "The default is that of a file; the one without `--config` stands in brackets where it \
         differs.",
        table::rows().filter(|row| row.field.is_some()),
    );
    section(
        &mut text,
        "Other flags of the kubelet",
        "No field stands behind these.",
        table::rows().filter(|row| {
            row.field.is_none() && !table::own_rows().any(|own| own.flag == row.flag)
        }),
    );
    section(
        &mut text,
        "Flags of Skep's own",
        "No kubelet has these.",
        table::own_rows(),
    );
    text.push_str(
        "\n## Feature gates\n\nGates of other components are accepted and do nothing here; \
         unknown names are errors.\n\n| gate | default | stage | Skep |\n|---|---|---|---|\n",
    );
    for (gate, used) in gates::documented() {
        line(
            &mut text,
            format_args!(
                "| {} | {} | {} | {used} |",
                gate.name, gate.default, gate.stage
            ),
        );
    }
    text
}

fn section<'a>(text: &mut String, title: &str, about: &str, rows: impl Iterator<Item = &'a Row>) {
    line(
        text,
        format_args!(
            "\n## {title}\n\n{about}\n\n| setting | type | default | what it is | Skep |\n\
         |---|---|---|---|---|"
        ),
    );
    for row in rows {
        let mut name = row
            .field
            .map_or_else(String::new, |field| format!("`{field}`"));
        if let Some(flag) = row.flag {
            if !name.is_empty() {
                name.push_str("<br>");
            }
            name.push_str(&format!("`--{flag}`"));
        }
        let mut default = shown(row, Defaults::OfFile);
        if row.bare.is_some() {
            default.push_str(&format!(" ({})", shown(row, Defaults::Bare)));
        }
        let skep = match row.verdict {
            Verdict::Built(_) | Verdict::Action => "acted on".to_owned(),
            Verdict::NoEffect(why) => format!("no effect: {why}"),
            Verdict::NotBuilt(subject) => {
                let off = match row.off {
                    Some("") => ", or empty".to_owned(),
                    Some(off) => format!(", or {off}"),
                    None => String::new(),
                };
                format!("only its default{off}: {subject} is not built yet")
            }
        };
        line(
            text,
            format_args!(
                "| {name} | {} | {default} | {} | {} |",
                row.kind,
                escaped(row.about),
                escaped(&skep)
            ),
        );
    }
}

fn shown(row: &Row, defaults: Defaults) -> String {
    match row.default_value(defaults) {
        Some(value) => escaped(&value.to_string()),
        None => "unset".to_owned(),
    }
}

/// Table cells hold no bars and no tags.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONFIG.md");
        let text = markdown();
        if std::env::var_os("SKEP_BLESS").is_some() {
            std::fs::create_dir_all(std::path::Path::new(path).parent().expect("a folder"))
                .expect("docs can be made");
            std::fs::write(path, &text).expect("docs can be written");
        }
        let on_disk = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            on_disk == text,
            "docs/CONFIG.md is not what the table says: run the tests with SKEP_BLESS=1"
        );
    }
}
