//! The one table of settings: every `KubeletConfiguration` field, every kubelet flag and every
//! flag of Skep's own, with type, defaults and what Skep does with it.
//!
//! Flags are parsed, the file is read, defaults are found, what is not built is refused, help and
//! docs/CONFIG.md are written: all from here. Names and defaults are those of Kubernetes 1.37.2
//! (`KubeletConfiguration` v1beta1 and the kubelet's flags; CFG-08, CFG-09, CFG-12).

mod fields;
mod flags;

use super::value::{Kind, Value};

/// One setting. It has a field, a flag, or both.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Path in the file, dotted.
    pub field: Option<&'static str>,
    /// Flag without its dashes.
    pub flag: Option<&'static str>,
    pub kind: Kind,
    /// The default as the flag would say it; none: unset.
    pub default: Option<&'static str>,
    /// The default without `--config`, where it differs (CFG-09).
    pub bare: Option<Option<&'static str>>,
    /// The zero value in a file is a value of its own, and not the default (a pointer in Go).
    pub is_pointer: bool,
    /// The flag still works, with a warning.
    pub is_deprecated: bool,
    pub verdict: Verdict,
    /// A value that says that the subject, which is not built, is not wanted either.
    pub off: Option<&'static str>,
    /// The default wants a subject that is not built: said once at start.
    pub is_wanted: bool,
    pub about: &'static str,
}

/// What Skep does with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is acted on; the field of [`super::Config`] that it sets.
    Built(&'static str),
    /// It is read while the configuration is put together.
    Action,
    /// It is accepted and does nothing, as upstream or for the reason given.
    NoEffect(&'static str),
    /// Its subject is not built yet: any other value than the default is refused.
    NotBuilt(&'static str),
}

impl Row {
    const fn new(kind: Kind) -> Self {
        Self {
            field: None,
            flag: None,
            kind,
            default: None,
            bare: None,
            is_pointer: false,
            is_deprecated: false,
            verdict: Verdict::Action,
            off: None,
            is_wanted: false,
            about: "",
        }
    }

    const fn field(name: &'static str, kind: Kind) -> Self {
        let mut row = Self::new(kind);
        row.field = Some(name);
        row
    }

    const fn flag_only(name: &'static str, kind: Kind) -> Self {
        let mut row = Self::new(kind);
        row.flag = Some(name);
        row
    }

    /// Flags of fields are deprecated, but for a few.
    const fn flag(mut self, name: &'static str) -> Self {
        self.flag = Some(name);
        self.is_deprecated = true;
        self
    }

    const fn lasting_flag(mut self, name: &'static str) -> Self {
        self.flag = Some(name);
        self
    }

    const fn deprecated(mut self) -> Self {
        self.is_deprecated = true;
        self
    }

    const fn default(mut self, text: &'static str) -> Self {
        self.default = Some(text);
        self
    }

    const fn bare(mut self, text: &'static str) -> Self {
        self.bare = Some(Some(text));
        self
    }

    const fn unset_when_bare(mut self) -> Self {
        self.bare = Some(None);
        self
    }

    const fn pointer(mut self) -> Self {
        self.is_pointer = true;
        self
    }

    const fn built(mut self, target: &'static str) -> Self {
        self.verdict = Verdict::Built(target);
        self
    }

    const fn no_effect(mut self, why: &'static str) -> Self {
        self.verdict = Verdict::NoEffect(why);
        self
    }

    const fn not_built(mut self, subject: &'static str) -> Self {
        self.verdict = Verdict::NotBuilt(subject);
        self
    }

    const fn off(mut self, text: &'static str) -> Self {
        self.off = Some(text);
        self
    }

    const fn wanted(mut self) -> Self {
        self.is_wanted = true;
        self
    }

    const fn about(mut self, text: &'static str) -> Self {
        self.about = text;
        self
    }

    /// What the setting is kept under: its field, else its flag.
    pub fn key(&self) -> &'static str {
        self.field
            .or(self.flag)
            .expect("a row has a field or a flag")
    }

    /// As messages call it: `maxPods (--max-pods)`.
    pub fn name(&self) -> String {
        match (self.field, self.flag) {
            (Some(field), Some(flag)) => format!("{field} (--{flag})"),
            (Some(field), None) => field.to_owned(),
            (None, flag) => format!("--{}", flag.unwrap_or_default()),
        }
    }

    pub(super) fn default_value(&self, mode: Defaults) -> Option<Value> {
        let text = match mode {
            Defaults::OfFile => self.default,
            Defaults::Bare => self.bare.unwrap_or(self.default),
        }?;
        Some(self.value_of(text))
    }

    pub(super) fn off_value(&self) -> Option<Value> {
        self.off.map(|text| self.value_of(text))
    }

    fn value_of(&self, text: &str) -> Value {
        self.kind
            .parse(text, None)
            .expect("a test parses every default of the table")
    }
}

/// Which defaults hold: those of the file, or the older ones of a command line without `--config`
/// (CFG-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defaults {
    OfFile,
    Bare,
}

/// Every row: fields in the order of `KubeletConfiguration`, then the kubelet's other flags, then
/// Skep's own.
pub fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    fields::FIELDS
        .iter()
        .chain(flags::KUBELET)
        .chain(flags::SKEP)
}

/// The flags that no kubelet has.
pub fn own_rows() -> impl Iterator<Item = &'static Row> + Clone {
    flags::SKEP.iter()
}

pub(super) fn by_key(key: &str) -> Option<&'static Row> {
    rows().find(|row| row.key() == key)
}

/// A flag by its name, with underscores read as dashes.
pub(super) fn by_flag(name: &str) -> Option<&'static Row> {
    let name = name.replace('_', "-");
    rows().find(|row| row.flag == Some(name.as_str()))
}

#[cfg(test)]
mod tests;
