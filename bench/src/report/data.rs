//! One run's records, put together over its rounds.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    record::{Bench, Line, Record, Subject},
    stats,
};

/// The newest run of a file.
#[derive(Debug)]
pub(super) struct Run {
    /// The file's.
    pub(super) name: String,
    pub(super) id: String,
    pub(super) lines: Vec<Line>,
    groups: BTreeMap<(Series, Subject), Group>,
}

/// What can be compared: one measure under the same parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series {
    pub(super) bench: Bench,
    pub(super) measure: String,
    pub(super) params: Vec<Param>,
}

/// In the order of its number, if it is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Param {
    pub(super) name: String,
    order: u64,
    pub(super) value: String,
}

impl Param {
    fn new(name: &str, value: &Value) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an order only, and parameters are small"
        )]
        let order = value.as_f64().map_or(0, |number| (number * 1e3) as u64);
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => value.to_string(),
        };
        Self {
            name: name.to_owned(),
            order,
            value,
        }
    }

    /// As a reader would say it.
    pub(super) fn words(&self) -> String {
        let (name, value) = (&self.name, &self.value);
        match name.as_str() {
            "pods" => format!("{value} pods"),
            "killed" => format!("{value} killed"),
            "steps" => format!("{value} steps"),
            "spawns" => format!("{value} spawns"),
            "how" => format!("by {value}"),
            "concurrency" => format!("{value} at a time"),
            "window_s" => format!("over {value} s"),
            "spacing_ms" => format!("{value} ms apart"),
            "network" => format!("{value} network"),
            "agent" if value == "true" => "with the agent".to_owned(),
            "agent" => "without the agent".to_owned(),
            "sleep_ms" => format!("of {value} ms"),
            _ => format!("{} {value}", name.replace('_', " ")),
        }
    }
}

impl Series {
    pub(super) fn words(&self) -> String {
        let words: Vec<_> = self.params.iter().map(Param::words).collect();
        words.join(", ")
    }

    /// The parameter as a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        let param = self.params.iter().find(|param| param.name == name)?;
        param.value.parse().ok()
    }
}

/// One subject's samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    pub(super) unit: String,
    pub(super) rounds: BTreeMap<u32, Vec<f64>>,
    lost: BTreeMap<u32, u64>,
    doubled: BTreeMap<u32, u64>,
}

impl Group {
    /// A later line of the same round stands for an earlier one.
    fn add(&mut self, record: &Record) {
        self.unit.clone_from(&record.unit);
        self.rounds.insert(record.round, record.samples.clone());
        self.lost.insert(record.round, record.lost);
        self.doubled.insert(record.round, record.doubled);
    }

    /// Of all rounds.
    pub(super) fn samples(&self) -> Vec<f64> {
        self.rounds.values().flatten().copied().collect()
    }

    pub(super) fn by_round(&self) -> Vec<Vec<f64>> {
        self.rounds.values().cloned().collect()
    }

    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        stats::quantile(&self.samples(), q)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    pub(super) fn doubled(&self) -> u64 {
        self.doubled.values().sum()
    }
}

impl Run {
    /// The run of the last line; none where there are no lines.
    pub(super) fn newest(name: &str, text: &str) -> Result<Option<Self>> {
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line: Line = serde_json::from_str(line)
                .with_context(|| format!("line {} is no record", at + 1))?;
            lines.push(line);
        }
        let Some(last) = lines.last() else {
            return Ok(None);
        };
        let id = last.record.run.clone();
        lines.retain(|line| line.record.run == id);
        let mut groups: BTreeMap<_, Group> = BTreeMap::new();
        for Line { record, .. } in &lines {
            let params = record.params.iter();
            let series = Series {
                bench: record.bench,
                measure: record.measure.clone(),
                params: params
                    .map(|(name, value)| Param::new(name, value))
                    .collect(),
            };
            groups
                .entry((series, record.subject))
                .or_default()
                .add(record);
        }
        Ok(Some(Self {
            name: name.to_owned(),
            id,
            lines,
            groups,
        }))
    }

    pub(super) fn benches(&self) -> BTreeSet<Bench> {
        self.groups.keys().map(|(series, _)| series.bench).collect()
    }

    pub(super) fn subjects(&self) -> BTreeSet<Subject> {
        self.groups.keys().map(|(_, subject)| *subject).collect()
    }

    /// All of a measure, by parameters.
    pub(super) fn series(&self, bench: Bench, measure: &str) -> BTreeSet<&Series> {
        let all = self.groups.keys().map(|(series, _)| series);
        all.filter(|series| series.bench == bench && series.measure == measure)
            .collect()
    }

    pub(super) fn measures(&self, bench: Bench) -> BTreeSet<&str> {
        let all = self.groups.keys().map(|(series, _)| series);
        all.filter(|series| series.bench == bench)
            .map(|series| series.measure.as_str())
            .collect()
    }

    pub(super) fn group(&self, series: &Series, subject: Subject) -> Option<&Group> {
        self.groups.get(&(series.clone(), subject))
    }

    /// The subject's medians of a measure, round by round, over a parameter: (place, value).
    pub(super) fn points(
        &self,
        bench: Bench,
        measure: &str,
        param: &str,
        subject: Subject,
    ) -> BTreeMap<u32, Vec<(f64, f64)>> {
        let mut points: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for series in self.series(bench, measure) {
            let (Some(place), Some(group)) = (series.number(param), self.group(series, subject))
            else {
                continue;
            };
            for (round, samples) in &group.rounds {
                if let Some(value) = stats::median(samples) {
                    points.entry(*round).or_default().push((place, value));
                }
            }
        }
        points
    }
}
