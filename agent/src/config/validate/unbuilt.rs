//! What is not built yet, or has no effect: refused by name, warned about, or said once.

use super::{
    super::{
        table::{self, Defaults, Row, Verdict},
        value::Value,
    },
    Check,
};

impl Check<'_> {
    /// Settings that are read but have no effect are said; their values are still checked.
    pub(super) fn refuse_what_is_not_built(&mut self) {
        for row in table::rows() {
            let key = row.key();
            if !self.settings.is_made(key) {
                continue;
            }
            match row.verdict {
                Verdict::Built(_) | Verdict::Action => {}
                Verdict::NoEffect(why) => self.no_effect(row, why),
                Verdict::NotBuilt(subject) => {
                    let value = self.settings.value(key);
                    if !is_default(row, value.as_ref()) {
                        let leave = match row.default_value(self.settings.defaults()) {
                            Some(default) if is_short(&default) => {
                                format!("leave it unset, or at {default}")
                            }
                            _ => "leave it unset".to_owned(),
                        };
                        self.refuse_row(row, subject, &leave);
                    }
                }
            }
        }
    }

    fn refuse_row(&mut self, row: &Row, subject: &str, leave: &str) {
        let place = self
            .settings
            .origin(row.key())
            .map_or_else(String::new, |origin| format!(" ({origin})"));
        self.lines.push(format!(
            "invalid configuration: {}: {subject} is not built yet; {leave}{place}",
            row.name()
        ));
    }

    fn no_effect(&mut self, row: &Row, why: &str) {
        let key = row.key();
        let value = self.settings.value(key);
        match (key, &value) {
            ("runOnce", Some(Value::Bool(true))) => self.refuse(
                key,
                "true, Runonce mode has been deprecated and should not be set",
            ),
            ("iptablesMasqueradeBit" | "iptablesDropBit", Some(Value::Int(bit)))
                if !(0..=31).contains(bit) =>
            {
                self.refuse(
                    key,
                    format_args!("{bit} must be between 0 and 31, inclusive"),
                );
            }
            ("hairpinMode", Some(Value::Text(mode)))
                if !matches!(
                    mode.as_str(),
                    "promiscuous-bridge" | "hairpin-veth" | "none"
                ) =>
            {
                self.refuse(
                    key,
                    format_args!("{mode:?} must be promiscuous-bridge, hairpin-veth or none"),
                );
            }
            _ if !is_default(row, value.as_ref()) => {
                self.warnings
                    .push(format!("{} has no effect: {why}", row.name()));
            }
            _ => {}
        }
    }

    /// One line for what a kubelet would do by default and Skep does not do yet.
    pub(super) fn say_what_is_not_in_force(&mut self) {
        let wanted: Vec<String> = table::rows()
            .filter(|row| row.is_wanted)
            .filter(|row| {
                let value = self.settings.value(row.key());
                value.is_some() && value != row.off_value()
            })
            .filter_map(|row| match row.verdict {
                Verdict::NotBuilt(subject) => Some(format!("{subject} ({})", row.key())),
                Verdict::Built(_) | Verdict::Action | Verdict::NoEffect(_) => None,
            })
            .collect();
        if !wanted.is_empty() {
            self.warnings.push(format!(
                "not built yet, so these defaults are not in force: {}",
                wanted.join(", ")
            ));
        }
    }
}

/// Holds the default of either kind (they differ for a server that is not built), or says that the
/// subject is not wanted.
fn is_default(row: &Row, value: Option<&Value>) -> bool {
    let is = |default: Option<Value>| match (value, &default) {
        (Some(value), None) => value.is_zero() || is_empty(value),
        (value, default) => value == default.as_ref(),
    };
    is(row.default_value(Defaults::OfFile))
        || is(row.default_value(Defaults::Bare))
        || (row.off.is_some() && value == row.off_value().as_ref())
}

/// Worth repeating in a message.
fn is_short(value: &Value) -> bool {
    !value.is_zero() && !matches!(value, Value::Pairs(_) | Value::Raw(_))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::List(list) => list.is_empty(),
        Value::Pairs(map) => map.is_empty(),
        Value::Gates(map) => map.is_empty(),
        Value::Headers(map) => map.is_empty(),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Duration(_)
        | Value::Raw(_) => false,
    }
}
