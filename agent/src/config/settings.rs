//! The settings that were made, before they are checked: one flat map from row to value and place.
//!
//! What was not set takes the default of the table when it is read, so that a later layer can put a
//! setting back to its default. Later layers win: file, drop-ins, flags (CFG-10).

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::types::duration::GoDuration;

use super::{
    table::{self, Defaults, Row},
    value::Value,
};

/// Where a setting was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(Arc<Path>),
    Flag(&'static str),
    Option,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "set in {}", path.display()),
            Self::Flag(name) => write!(f, "set by --{name}"),
            Self::Option => f.write_str("set by an option"),
        }
    }
}

/// What a layer says of one row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Value(Value),
    /// Back to the default: null, or the zero value where that means the default.
    Default,
}

pub(super) type Layer = BTreeMap<&'static str, Said>;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    defaults: Defaults,
    made: BTreeMap<&'static str, (Value, Origin)>,
}

impl Settings {
    pub(super) fn new(defaults: Defaults) -> Self {
        Self {
            defaults,
            made: BTreeMap::new(),
        }
    }

    /// The main file: it replaces defaults.
    pub(super) fn load(&mut self, layer: Layer, path: &Path) {
        for (key, said) in layer {
            if let Said::Value(value) = said {
                self.set_by_file(key, value, path);
            }
        }
    }

    /// A drop-in over what stands (JSON merge patch): maps are merged, everything else is replaced. `nulls` are the keys
    /// of maps that the layer takes away.
    pub(super) fn merge(&mut self, layer: Layer, nulls: &[(&'static str, String)], path: &Path) {
        let origin = Origin::File(path.into());
        for (key, said) in layer {
            match said {
                // The default of a file, also where the older ones of a bare command line hold: a
                // drop-in with `readOnlyPort: 0` means 0.
                Said::Default => match row(key).default_value(Defaults::OfFile) {
                    Some(value) => {
                        self.made.insert(key, (value, origin.clone()));
                    }
                    None => {
                        self.made.remove(key);
                    }
                },
                Said::Value(value) => {
                    let value = merge_maps(self.value(key), value);
                    self.made.insert(key, (value, origin.clone()));
                }
            }
        }
        for (key, name) in nulls {
            match self.made.get_mut(key).map(|(value, _)| value) {
                Some(Value::Pairs(map)) => drop(map.remove(name)),
                Some(Value::Gates(map)) => drop(map.remove(name)),
                Some(Value::Headers(map)) => drop(map.remove(name)),
                _ => {}
            }
        }
    }

    /// A flag replaces what the files say, but for gates, which are merged one by one.
    pub(super) fn set_flag(&mut self, row: &'static Row, value: Value) {
        let key = row.key();
        let value = match (self.made.remove(key), value) {
            (Some((before @ Value::Gates(_), _)), value @ Value::Gates(_)) => {
                merge_maps(Some(before), value)
            }
            (_, value) => value,
        };
        let origin = Origin::Flag(row.flag.unwrap_or_default());
        self.made.insert(key, (value, origin));
    }

    /// An option of a command that is no flag of this table.
    pub(super) fn set_option(&mut self, key: &'static str, value: Value) {
        self.made.insert(key, (value, Origin::Option));
    }

    pub(super) fn set_by_file(&mut self, key: &'static str, value: Value, path: &Path) {
        self.made.insert(key, (value, Origin::File(path.into())));
    }

    pub(super) fn is_made(&self, key: &str) -> bool {
        self.made.contains_key(key)
    }

    pub(super) fn origin(&self, key: &str) -> Option<&Origin> {
        self.made.get(key).map(|(_, origin)| origin)
    }

    pub(super) fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// The value in force; none where it is unset.
    pub(super) fn value(&self, key: &str) -> Option<Value> {
        match self.made.get(key) {
            Some((value, _)) => Some(value.clone()),
            None => row(key).default_value(self.defaults),
        }
    }

    // What follows reads a row as the type that its kind stands for. Asking for another type, or
    // for a name that the table lacks, is a mistake in this program; a test reads every row.

    pub(super) fn bool(&self, key: &str) -> bool {
        matches!(self.value(key), Some(Value::Bool(true)))
    }

    pub(super) fn optional_bool(&self, key: &str) -> Option<bool> {
        match self.value(key) {
            Some(Value::Bool(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn optional_int(&self, key: &str) -> Option<i64> {
        match self.value(key) {
            Some(Value::Int(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn int(&self, key: &str) -> i64 {
        self.optional_int(key).unwrap_or_default()
    }

    pub(super) fn text(&self, key: &str) -> String {
        match self.value(key) {
            Some(Value::Text(text)) => text,
            _ => String::new(),
        }
    }

    /// None where it is empty.
    pub(super) fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.text(key))
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
    }

    pub(super) fn duration(&self, key: &str) -> GoDuration {
        match self.value(key) {
            Some(Value::Duration(duration)) => duration,
            _ => GoDuration::default(),
        }
    }

    pub(super) fn list(&self, key: &str) -> Vec<String> {
        match self.value(key) {
            Some(Value::List(list)) => list,
            _ => Vec::new(),
        }
    }

    pub(super) fn pairs(&self, key: &str) -> BTreeMap<String, String> {
        match self.value(key) {
            Some(Value::Pairs(map)) => map,
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn gates(&self) -> BTreeMap<String, bool> {
        match self.value("featureGates") {
            Some(Value::Gates(map)) => map,
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn headers(&self, key: &str) -> BTreeMap<String, Vec<String>> {
        match self.value(key) {
            Some(Value::Headers(map)) => map,
            _ => BTreeMap::new(),
        }
    }
}

pub(super) fn row(key: &str) -> &'static Row {
    table::by_key(key).expect("settings are asked for by names of the table")
}

fn merge_maps(before: Option<Value>, over: Value) -> Value {
    match (before, over) {
        (Some(Value::Pairs(mut map)), Value::Pairs(over)) => {
            map.extend(over);
            Value::Pairs(map)
        }
        (Some(Value::Gates(mut map)), Value::Gates(over)) => {
            map.extend(over);
            Value::Gates(map)
        }
        (Some(Value::Headers(mut map)), Value::Headers(over)) => {
            map.extend(over);
            Value::Headers(map)
        }
        (_, over) => over,
    }
}
