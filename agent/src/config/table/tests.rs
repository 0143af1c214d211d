use std::collections::BTreeSet;

use super::*;

/// `field NAME DEFAULT` and `flag NAME DEFAULT FIELD D`, parted by tabs.
const UPSTREAM: &str = include_str!("upstream.tsv");

fn upstream(what: &str) -> impl Iterator<Item = Vec<&'static str>> + '_ {
    UPSTREAM
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(move |cells| cells[0] == what)
}

/// What the text of the reference stands for: `none` is unset for a flag that is no text.
fn expected(row: &Row, text: &str) -> Option<Value> {
    let text = match text {
        "none" if row.kind != Kind::Text => return None,
        "unset" | "" => return None,
        quoted => quoted.trim_matches('"'),
    };
    Some(row.kind.parse(text, None).expect("a default"))
}

#[test]
fn every_field_of_kubernetes_has_a_row_with_its_default() {
    let mut count = 0;
    for cells in upstream("field") {
        let (name, default) = (cells[1], cells[2]);
        count += 1;
        if default == "(structure)" {
            let parent = name.split("[]").next().unwrap_or(name);
            assert!(
                rows().any(|row| row.field.is_some_and(
                    |field| field == parent || field.starts_with(&format!("{parent}."))
                )),
                "{name}"
            );
            continue;
        }
        let row = rows()
            .find(|row| row.field == Some(name))
            .unwrap_or_else(|| panic!("no row for the field {name}"));
        assert_eq!(
            row.default_value(Defaults::OfFile),
            expected(row, default),
            "{name}"
        );
    }
    assert_eq!(count, 142);
}

#[test]
fn every_flag_of_the_kubelet_has_a_row_with_its_default_and_field() {
    let mut count = 0;
    for cells in upstream("flag") {
        let (name, default, field, deprecated) = (cells[1], cells[2], cells[3], cells[4]);
        count += 1;
        let row = by_flag(name).unwrap_or_else(|| panic!("no row for the flag --{name}"));
        assert_eq!(row.field.unwrap_or_default(), field, "--{name}");
        assert_eq!(row.is_deprecated, deprecated == "D", "--{name}");
        assert_eq!(
            row.default_value(Defaults::Bare),
            expected(row, default).or_else(|| match row.kind {
                Kind::Text | Kind::Path => Some(Value::Text(String::new())),
                _ => None,
            }),
            "--{name}"
        );
    }
    assert_eq!(count, 131);
}

#[test]
fn the_table_has_no_row_that_kubernetes_lacks_but_for_skeps_own_flags() {
    let fields: BTreeSet<_> = upstream("field").map(|cells| cells[1]).collect();
    let flags: BTreeSet<_> = upstream("flag").map(|cells| cells[1]).collect();
    for row in rows() {
        if let Some(field) = row.field {
            assert!(
                fields.contains(field) || field.starts_with("logging."),
                "{field}"
            );
        }
        if let Some(flag) = row.flag {
            assert!(
                flags.contains(flag) || own_rows().any(|own| own.flag == Some(flag)),
                "--{flag}"
            );
        }
    }
}

#[test]
fn every_name_stands_once_and_every_row_says_what_it_is() {
    let mut names = BTreeSet::new();
    for row in rows() {
        for name in [row.field, row.flag.filter(|_| row.field.is_none())]
            .into_iter()
            .flatten()
        {
            assert!(names.insert(name), "{name} stands twice");
        }
        assert!(!row.about.is_empty(), "{}", row.key());
        let _ = (
            row.default_value(Defaults::OfFile),
            row.default_value(Defaults::Bare),
            row.off_value(),
        );
    }
}
