//! Feature gates: one table of names, stages and defaults, and the checks that a kubelet makes
//! (CFG-26).
//!
//! A gate whose subject is not built yet is accepted only with its default.

mod table;

use std::collections::BTreeMap;

/// One gate of the table.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub name: &'static str,
    pub default: bool,
    pub stage: Stage,
    /// Another value than the default is an error.
    pub is_locked: bool,
    /// Gates that must be on where this one is.
    pub needs: &'static [&'static str],
    used: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Stage {
    Alpha,
    Beta,
    #[strum(serialize = "GA")]
    Ga,
    Deprecated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Settings depend on it.
    Built,
    /// It changes nothing on a node of Skep's.
    NoEffect,
    NotBuilt,
}

impl Gate {
    const fn new(name: &'static str, default: bool, stage: Stage, used: Use) -> Self {
        Self {
            name,
            default,
            stage,
            is_locked: false,
            needs: &[],
            used,
        }
    }

    const fn locked(mut self) -> Self {
        self.is_locked = true;
        self
    }

    const fn needs(mut self, names: &'static [&'static str]) -> Self {
        self.needs = names;
        self
    }
}

/// The gates in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates(BTreeMap<String, bool>);

impl Gates {
    /// A name that no table has counts as on, as most gates of other components are.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.0
            .get(name)
            .copied()
            .or_else(|| find(name).map(|gate| gate.default))
            .unwrap_or(true)
    }

    /// Every gate that a kubelet reads, with its value: for `kubernetes_feature_enabled`.
    pub fn all(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        table::GATES
            .iter()
            .map(|gate| (gate, self.is_enabled(gate.name)))
    }
}

/// Checks the gates that were set. Every mistake is one line; warnings likewise.
pub(super) fn check(set: &BTreeMap<String, bool>) -> (Gates, Vec<String>, Vec<String>) {
    let (mut mistakes, mut warnings) = (Vec::new(), Vec::new());
    let mut gates = Gates::default();
    for (name, &value) in set.iter().filter(|(name, _)| !is_all(name)) {
        gates.0.insert(name.clone(), value);
        let Some(gate) = find(name) else {
            if !table::FOREIGN.contains(&name.as_str()) {
                mistakes.push(format!("unrecognized feature gate: {name}"));
            }
            continue;
        };
        if gate.is_locked && value != gate.default {
            mistakes.push(format!(
                "cannot set feature gate {name} to {value}, feature is locked to {}",
                gate.default
            ));
        } else if gate.used == Use::NotBuilt && value != gate.default {
            mistakes.push(not_built(gate, value, ""));
        } else if matches!(gate.stage, Stage::Ga | Stage::Deprecated) {
            let stage = match gate.stage {
                Stage::Deprecated => "deprecated",
                Stage::Ga | Stage::Alpha | Stage::Beta => "GA",
            };
            warnings.push(format!(
                "setting {stage} feature gate {name}={value}: it will be removed in a future release"
            ));
        }
    }
    for (name, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
        let Some(&value) = set.get(name) else {
            continue;
        };
        for gate in table::GATES.iter().filter(|gate| gate.stage == stage) {
            if set.contains_key(gate.name) {
                continue;
            }
            gates.0.insert(gate.name.to_owned(), value);
            if gate.used == Use::NotBuilt && value != gate.default {
                mistakes.push(not_built(gate, value, &format!(" (by {name}={value})")));
            }
        }
    }
    for (gate, is_enabled) in gates.all() {
        let missing: Vec<&str> = gate
            .needs
            .iter()
            .copied()
            .filter(|name| is_enabled && !gates.is_enabled(name))
            .collect();
        if !missing.is_empty() {
            mistakes.push(format!(
                "{} is enabled, but depends on features that are disabled: [{}]",
                gate.name,
                missing.join(" ")
            ));
        }
    }
    (gates, mistakes, warnings)
}

fn not_built(gate: &Gate, value: bool, by: &str) -> String {
    format!(
        "feature gate {}={value}{by}: it is not built yet; leave it at {}",
        gate.name, gate.default
    )
}

fn is_all(name: &str) -> bool {
    matches!(name, "AllAlpha" | "AllBeta")
}

fn find(name: &str) -> Option<&'static Gate> {
    table::GATES.iter().find(|gate| gate.name == name)
}

/// The table as docs/CONFIG.md shows it: name, default, stage, what Skep does.
pub(super) fn documented() -> impl Iterator<Item = (&'static Gate, &'static str)> {
    table::GATES.iter().map(|gate| {
        let used = match gate.used {
            Use::Built => "acted on",
            Use::NoEffect => "no effect",
            Use::NotBuilt if gate.is_locked => "locked",
            Use::NotBuilt => "only its default",
        };
        (gate, used)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn mistakes(set: &[(&str, bool)]) -> Vec<String> {
        let set = set
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        check(&set).1
    }

    #[rstest]
    #[case(&[("NoSuchGate", true)], "unrecognized feature gate: NoSuchGate")]
    #[case(
        &[("NodeSwap", false)],
        "cannot set feature gate NodeSwap to false, feature is locked to true"
    )]
    #[case(
        &[("EventedPLEG", true)],
        "feature gate EventedPLEG=true: it is not built yet; leave it at false"
    )]
    #[case(
        &[("KubeletInUserNamespace", false)],
        "feature gate KubeletInUserNamespace=false: it is not built yet; leave it at true"
    )]
    fn a_bad_gate_is_named(#[case] set: &[(&str, bool)], #[case] message: &str) {
        assert_eq!(mistakes(set), [message]);
    }

    #[test]
    fn a_gate_that_depends_on_one_that_is_off_is_named() {
        let all = mistakes(&[("GracefulNodeShutdown", false)]);
        assert!(
            all.contains(
                &"GracefulNodeShutdownBasedOnPodPriority is enabled, but depends on features that are disabled: [GracefulNodeShutdown]"
                    .to_owned()
            ),
            "{all:?}"
        );
    }

    #[test]
    fn all_alpha_names_what_it_would_switch_on() {
        let all = mistakes(&[("AllAlpha", true), ("EventedPLEG", false)]);
        assert!(all.iter().all(|line| line.contains("by AllAlpha=true")));
        assert!(!all.iter().any(|line| line.contains("EventedPLEG")));
        assert!(all.len() > 20);
        assert_eq!(mistakes(&[("AllAlpha", false)]), Vec::<String>::new());
    }

    #[test]
    fn defaults_and_gates_of_other_components_are_accepted() {
        assert_eq!(
            mistakes(&[
                ("NodeSwap", true),
                ("KubeletTracing", true),
                ("HPAScaleToZero", false),
                ("KubeletCrashLoopBackOffMax", false),
            ]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn every_gate_stands_once_in_the_table() {
        let mut names: Vec<_> = table::GATES.iter().map(|gate| gate.name).collect();
        names.extend(table::FOREIGN);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(count, 251, "as in Kubernetes 1.37.2");
    }

    #[test]
    fn the_defaults_depend_on_nothing_that_is_off() {
        assert_eq!(mistakes(&[]), Vec::<String>::new());
    }
}
