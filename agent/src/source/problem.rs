//! What is wrong with a manifest, in the API server's words: a field and a message.
//!
//! The wording is upstream's (`field.Error`), so that people find what they know.

use std::fmt;

use serde::Serialize;

/// One thing that is wrong, or that deserves a warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Path of the field, as `spec.containers[0].image`; empty where it is about the whole file.
    pub field: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl Problem {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }

    /// About the manifest as a whole.
    pub(super) fn of_file(message: impl Into<String>) -> Self {
        Self::new("", message)
    }

    pub(super) fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, with_detail("Required value", detail))
    }

    pub(super) fn invalid(field: impl Into<String>, value: impl Serialize, detail: &str) -> Self {
        Self::new(
            field,
            with_detail(&format!("Invalid value: {}", shown(value)), detail),
        )
    }

    pub(super) fn unsupported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(shown).collect();
        Self::new(
            field,
            format!(
                "Unsupported value: {}: supported values: {}",
                shown(value),
                supported.join(", ")
            ),
        )
    }

    pub(super) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, format!("Duplicate value: {}", shown(value)))
    }

    pub(super) fn not_found(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, format!("Not found: {}", shown(value)))
    }

    pub(super) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, with_detail("Forbidden", detail))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// All problems of one manifest as one line.
pub(super) fn joined(problems: &[Problem]) -> String {
    let all: Vec<String> = problems.iter().map(Problem::to_string).collect();
    all.join("; ")
}

fn with_detail(kind: &str, detail: &str) -> String {
    if detail.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}: {detail}")
    }
}

/// A value as JSON, cut where it is long: a message must stay readable.
fn shown(value: impl Serialize) -> String {
    const LONGEST: usize = 200;
    let text = serde_json::to_string(&value).unwrap_or_default();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
