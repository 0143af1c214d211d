//! Whether the targets are met. A missing peer is never a pass.

use std::collections::BTreeMap;

use super::{
    data::{Group, Run, Series},
    measures::{self, Limit, OVER_FLOOR, TARGETS, Target},
    tables::{number, quantity, ratio_words, subject_name},
};
use crate::{
    record::Subject,
    stats::{self, Ratio},
};

/// What came of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Met,
    NotMet,
    /// The limit lies within what the samples leave open.
    NotSure,
    /// Something to compare with is missing.
    NotCompared,
}

impl Outcome {
    fn of(is_met: bool) -> Self {
        if is_met { Self::Met } else { Self::NotMet }
    }

    fn of_ratio(ratio: &Ratio, limit: f64) -> Self {
        match ratio.interval {
            Some((low, high)) if low <= limit && limit < high => Self::NotSure,
            _ => Self::of(ratio.value <= limit),
        }
    }
}

/// A target's row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) target: &'static Target,
    /// What the figure was taken under.
    pub(super) params: String,
    pub(super) limit: String,
    pub(super) figure: String,
    pub(super) outcome: Outcome,
}

/// Of all targets of benches that the run has.
pub(super) fn judge(run: &Run) -> Vec<Verdict> {
    let benches = run.benches();
    let of_run = TARGETS
        .iter()
        .filter(|target| benches.contains(&target.bench));
    of_run.flat_map(|target| rows(run, target)).collect()
}

/// One for each set of parameters.
fn rows(run: &Run, target: &'static Target) -> Vec<Verdict> {
    if let Limit::PerPod(limit) = target.limit {
        return vec![per_pod(run, target, limit)];
    }
    let is_asked = |series: &&&Series| {
        target.only.is_none_or(|(name, values)| {
            let number = series.number(name);
            number.is_some_and(|number| values.contains(&number))
        })
    };
    let all = run.series(target.bench, target.measure);
    let rows: Vec<_> = all
        .iter()
        .filter(is_asked)
        .map(|series| one(run, target, series))
        .collect();
    if rows.is_empty() {
        return vec![not_compared(target, String::new(), "", "not measured")];
    }
    rows
}

fn not_compared(target: &'static Target, params: String, unit: &str, why: &str) -> Verdict {
    Verdict {
        target,
        params,
        limit: limit_words(target.limit, unit),
        figure: why.to_owned(),
        outcome: Outcome::NotCompared,
    }
}

fn one(run: &Run, target: &'static Target, series: &Series) -> Verdict {
    let params = series.words();
    let of = |subject| run.group(series, subject);
    let any = run.subjects().into_iter().find_map(of);
    let unit = any.map_or("", |group| group.unit.as_str());
    let Some(ours) = of(target.subject) else {
        let why = format!("{} was not measured", subject_name(target.subject));
        return not_compared(target, params, unit, &why);
    };
    let came_to = |figure: String, outcome: Outcome| Verdict {
        target,
        params: params.clone(),
        limit: limit_words(target.limit, unit),
        figure,
        outcome,
    };
    let verdict = |figure: String, is_met: bool| came_to(figure, Outcome::of(is_met));
    let median = ours.quantile(0.5);
    if median.is_none() && !matches!(target.limit, Limit::Wrong(_)) {
        // Everything was lost, which meets nothing.
        return verdict("never seen".to_owned(), false);
    }
    let median = median.unwrap_or_default();
    let at_most = |figure: f64, limit: f64| verdict(quantity(figure, unit), figure <= limit);
    match target.limit {
        Limit::Median(limit) => at_most(median, limit),
        Limit::P99(limit) => at_most(ours.quantile(0.99).unwrap_or(median), limit),
        Limit::Max(limit) => at_most(ours.quantile(1.0).unwrap_or(median), limit),
        Limit::Ratio(peer, times) => match of(peer).and_then(|peer| compare(ours, peer)) {
            Some(ratio) => came_to(ratio_words(&ratio), Outcome::of_ratio(&ratio, times)),
            None => not_compared(target, params, unit, &missing(peer)),
        },
        Limit::RatioOrFloor(peer, times) => {
            let Some(ratio) = of(peer).and_then(|peer| compare(ours, peer)) else {
                return not_compared(target, params, unit, &missing(peer));
            };
            let floor = of(Subject::Floor).and_then(|floor| floor.quantile(0.5));
            let by_floor = floor.map(|floor| OVER_FLOOR * floor);
            let outcome = if by_floor.is_some_and(|limit| median <= limit) {
                Outcome::Met
            } else {
                Outcome::of_ratio(&ratio, times)
            };
            let floor = by_floor.map_or_else(
                || "floor missing".to_owned(),
                |limit| format!("{OVER_FLOOR} × floor is {}", quantity(limit, unit)),
            );
            let figure = format!(
                "{}; {}, {floor}",
                ratio_words(&ratio),
                quantity(median, unit)
            );
            came_to(figure, outcome)
        }
        Limit::OverFloor(limit) => match of(Subject::Floor).and_then(|floor| floor.quantile(0.5)) {
            Some(floor) => at_most(median - floor, limit),
            None => not_compared(target, params, unit, &missing(Subject::Floor)),
        },
        Limit::PerPod(limit) => per_pod(run, target, limit),
        Limit::Wrong(limit) => {
            let (lost, doubled) = (ours.lost(), ours.doubled());
            let figure = format!("{lost} lost, {doubled} doubled");
            verdict(figure, lost + doubled <= limit)
        }
    }
}

pub(super) fn compare(ours: &Group, other: &Group) -> Option<Ratio> {
    stats::ratio_of_medians(&ours.by_round(), &other.by_round())
}

fn missing(peer: Subject) -> String {
    format!("{} is missing", subject_name(peer))
}

fn per_pod(run: &Run, target: &'static Target, limit: f64) -> Verdict {
    let points = run.points(target.bench, target.measure, "pods", target.subject);
    let all: Vec<_> = points.values().flatten().copied().collect();
    let Some(slope) = stats::slope(&all) else {
        return not_compared(
            target,
            String::new(),
            "mcores",
            "not measured at two counts of pods",
        );
    };
    Verdict {
        target,
        params: String::new(),
        limit: limit_words(target.limit, "mcores"),
        figure: slope_words(slope, &points),
        outcome: Outcome::of(slope <= limit),
    }
}

/// The slope, with those of single rounds where there are several.
pub(super) fn slope_words(slope: f64, rounds: &BTreeMap<u32, Vec<(f64, f64)>>) -> String {
    let each: Vec<_> = rounds
        .values()
        .filter_map(|points| stats::slope(points))
        .collect();
    let ends = stats::quantile(&each, 0.0).zip(stats::quantile(&each, 1.0));
    match ends {
        Some((low, high)) if each.len() > 1 => format!(
            "{} mcores a pod (rounds: {} to {})",
            number(slope),
            number(low),
            number(high)
        ),
        _ => format!("{} mcores a pod", number(slope)),
    }
}

fn limit_words(limit: Limit, unit: &str) -> String {
    let quantity = |value: f64| quantity(value, unit);
    match limit {
        Limit::Median(value) => format!("median at most {}", quantity(value)),
        Limit::P99(value) => format!("p99 at most {}", quantity(value)),
        Limit::Max(value) => format!("at most {}", quantity(value)),
        Limit::Ratio(peer, times) => format!("at most {times} of {}", subject_name(peer)),
        Limit::RatioOrFloor(peer, times) => format!(
            "at most {times} of {}, or {OVER_FLOOR} × floor",
            subject_name(peer)
        ),
        Limit::OverFloor(value) => format!("at most {} over the floor", quantity(value)),
        Limit::PerPod(value) => format!("at most {value} mcores a pod"),
        Limit::Wrong(value) => format!("{value} lost or doubled"),
    }
}

/// What a target is about.
pub(super) fn title(target: &Target) -> &'static str {
    measures::known(target.bench, target.measure).map_or(target.measure, |known| known.title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{Lines, run_of};

    fn of(run: &Run, measure: &str, limit: fn(&Limit) -> bool) -> Verdict {
        let verdicts = judge(run);
        let mut found = verdicts.into_iter().filter(|verdict| {
            let target = verdict.target;
            target.measure == measure
                && target.subject == Subject::SkepKernel
                && limit(&target.limit)
        });
        found.next().expect("the target is judged")
    }

    #[test]
    fn a_ratio_below_its_limit_is_met_and_one_above_is_not() {
        let mut lines = Lines::default();
        lines.add("exit-detect", "known", "kubelet", 1, &[500.0, 600.0, 700.0]);
        lines.add(
            "exit-detect",
            "known",
            "kubelet-evented",
            1,
            &[5.0, 6.0, 7.0],
        );
        lines.add("exit-detect", "known", "skep-kernel", 1, &[1.0, 1.0, 1.0]);
        let run = run_of(&lines);
        let default = of(&run, "known", |it| {
            matches!(it, Limit::Ratio(Subject::Kubelet, _))
        });
        assert_eq!(default.outcome, Outcome::Met);
        assert!(default.figure.starts_with("0.00167 "), "{}", default.figure);
        let is_evented = |it: &Limit| matches!(it, Limit::Ratio(Subject::KubeletEvented, _));
        assert_eq!(of(&run, "known", is_evented).outcome, Outcome::NotMet);
        let median = of(&run, "known", |it| matches!(it, Limit::Median(_)));
        assert_eq!(
            (median.outcome, median.figure.as_str()),
            (Outcome::Met, "1 ms")
        );
    }

    #[test]
    fn a_limit_within_the_interval_is_neither_met_nor_missed() {
        let mut lines = Lines::default();
        let spread = [80.0, 90.0, 100.0, 110.0, 120.0];
        lines.add("exit-detect", "known", "kubelet-evented", 1, &spread);
        lines.add("exit-detect", "known", "skep-stream", 1, &spread);
        let verdicts = judge(&run_of(&lines));
        let stream = verdicts.iter().find(|verdict| {
            verdict.target.measure == "known" && verdict.target.subject == Subject::SkepStream
        });
        assert_eq!(stream.unwrap().outcome, Outcome::NotSure);
    }

    #[test]
    fn without_the_peer_nothing_is_met() {
        let mut lines = Lines::default();
        lines.add("exit-detect", "known", "skep-kernel", 1, &[1.0, 1.0]);
        let run = run_of(&lines);
        let verdict = of(&run, "known", |it| matches!(it, Limit::Ratio(..)));
        assert_eq!(verdict.outcome, Outcome::NotCompared);
        assert_eq!(verdict.figure, "`kubelet` is missing");
    }

    #[test]
    fn the_floor_is_the_limit_where_it_is_more() {
        let mut lines = Lines::default();
        lines.add("init-chain", "chain", "kubelet", 1, &[1000.0, 1000.0]);
        lines.add("init-chain", "chain", "skep-kernel", 1, &[220.0, 220.0]);
        let is_default = |it: &Limit| matches!(it, Limit::RatioOrFloor(Subject::Kubelet, _));
        assert_eq!(
            of(&run_of(&lines), "chain", is_default).outcome,
            Outcome::NotMet
        );
        lines.add("init-chain", "chain", "floor", 1, &[180.0, 180.0]);
        assert_eq!(
            of(&run_of(&lines), "chain", is_default).outcome,
            Outcome::Met
        );
    }

    #[test]
    fn what_was_lost_or_never_seen_meets_nothing() {
        let mut lines = Lines::default();
        lines.add("exit-storm", "detected", "skep-kernel", 1, &[1.0]);
        lines.last()["lost"] = 1.into();
        lines.add("exit-storm", "detected_last", "skep-kernel", 1, &[]);
        let run = run_of(&lines);
        let lost = of(&run, "detected", |it| matches!(it, Limit::Wrong(_)));
        assert_eq!(
            (lost.outcome, lost.figure.as_str()),
            (Outcome::NotMet, "1 lost, 0 doubled")
        );
        let last = of(&run, "detected_last", |it| matches!(it, Limit::Max(_)));
        assert_eq!(
            (last.outcome, last.figure.as_str()),
            (Outcome::NotMet, "never seen")
        );
    }

    #[test]
    fn the_rise_with_each_pod_is_judged_over_all_rounds() {
        let mut lines = Lines::default();
        for round in 1..=2 {
            for pods in [0, 20, 100] {
                let cpu = 1.0 + 0.01 * f64::from(pods) * f64::from(round);
                lines.add("idle-cost", "agent_cpu", "skep-kernel", round, &[cpu]);
                lines.last()["params"] = serde_json::json!({"pods": pods});
            }
        }
        let verdict = of(&run_of(&lines), "agent_cpu", |it| {
            matches!(it, Limit::PerPod(_))
        });
        assert_eq!(verdict.outcome, Outcome::Met);
        assert_eq!(verdict.figure, "0.015 mcores a pod (rounds: 0.01 to 0.02)");
    }
}
