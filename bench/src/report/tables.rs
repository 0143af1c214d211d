//! The page: environment, targets and a table for each measure.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    data::{Run, Series},
    judge::{self, Outcome, compare, slope_words},
    measures,
};
use crate::{
    record::{Bench, Subject},
    stats::{self, Ratio, quantile},
};

pub(super) const HEAD: &str = "\
# Benchmark results

Written by `cargo xtask bench` from the records in `results/`; how each bench works is told in the \
modules of `src/benches`, and all subjects' settings stand in `src/subject/settings.rs`. A ratio is \
the subject's median over the peer's in the same run, with its 95 % confidence interval (bootstrap \
within rounds; over rounds where a round has one sample). Absolute figures of different runs should \
not be compared. `floor` is the bare runtime, driven as fast as that goes.
";

/// Beside every figure of CPU and memory.
const NOT_YET: &str = "Skep does not do all that the kubelet does yet: no statistics (cAdvisor's \
                       part), no eviction, no probes, no API server. No subject had an API server, \
                       and no pod had probes.";

const PEERS: [Subject; 3] = [Subject::Kubelet, Subject::KubeletEvented, Subject::Floor];

pub(super) fn subject_name(subject: Subject) -> String {
    let name = match subject {
        Subject::Kubelet => "kubelet",
        Subject::KubeletEvented => "kubelet-evented",
        Subject::SkepKernel => "skep-kernel",
        Subject::SkepStream => "skep-stream",
        Subject::SkepListing => "skep-listing",
        Subject::Floor => "floor",
    };
    format!("`{name}`")
}

fn bench_name(bench: Bench) -> String {
    let value = clap::ValueEnum::to_possible_value(&bench).expect("no bench is hidden");
    value.get_name().to_owned()
}

/// Three digits that mean something, none of them behind the whole ones of a large number.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 6"
    )]
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

pub(super) fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "" | "count" | "ratio" => number(value),
        "ms" if value.abs() >= 10_000.0 => format!("{} s", number(value / 1e3)),
        _ => format!("{} {unit}", number(value)),
    }
}

pub(super) fn ratio_words(ratio: &Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!(
            "{} [{}, {}]",
            number(ratio.value),
            number(low),
            number(high)
        ),
        None => number(ratio.value),
    }
}

/// One run. `plots` are those of its benches: bench, title, file.
pub(super) fn section(run: &Run, plots: &[(Bench, &str, String)]) -> String {
    let mut page = format!("\n## `{}`\n\n", run.name);
    page.push_str(&environment(run));
    page.push_str(&targets(run));
    for bench in run.benches() {
        let _ = writeln!(
            page,
            "\n### {}\n\n{}",
            bench_name(bench),
            measures::about(bench)
        );
        for (_, title, file) in plots.iter().filter(|(of, _, _)| *of == bench) {
            let _ = writeln!(page, "\n![{title}]({file})");
        }
        let mut names: Vec<_> = run.measures(bench).into_iter().collect();
        names.sort_by_key(|name| measures::place(bench, name));
        for measure in names {
            page.push_str(&measure_table(run, bench, measure));
        }
    }
    page
}

/// Different values, in order.
fn distinct(values: impl Iterator<Item = String>) -> String {
    let values: BTreeSet<_> = values.filter(|value| !value.is_empty()).collect();
    values.into_iter().collect::<Vec<_>>().join("; ")
}

fn range(values: &[f64]) -> Option<String> {
    let (low, high) = quantile(values, 0.0).zip(quantile(values, 1.0))?;
    Some(format!("{low:.2} to {high:.2}"))
}

fn environment(run: &Run) -> String {
    let hosts = || run.lines.iter().map(|line| &line.record.host);
    let versions = || run.lines.iter().map(|line| &line.record.versions);
    let driven = || run.lines.iter().filter_map(|line| line.driven.as_ref());
    let rounds: BTreeSet<_> = run.lines.iter().map(|line| line.record.round).collect();
    let loads: Vec<_> = hosts().map(|host| host.load).collect();
    let pressures: Vec<_> = hosts().filter_map(|host| host.psi).collect();
    let mut rows = vec![
        ("run", run.id.clone()),
        ("rounds", rounds.len().to_string()),
        (
            "size, seed of the order",
            distinct(driven().map(|driven| format!("{}, {}", driven.size, driven.seed))),
        ),
        ("kernel", distinct(hosts().map(|host| host.kernel.clone()))),
        ("cgroups", distinct(hosts().map(|host| host.cgroup.clone()))),
        (
            "machine",
            distinct(hosts().map(|host| {
                let cores = if host.cores == 1 { "core" } else { "cores" };
                format!("{} {cores}, {} MiB", host.cores, host.memory_mib)
            })),
        ),
        (
            "load average when a turn began (the one before is still in it)",
            range(&loads).unwrap_or_default(),
        ),
        (
            "CPU pressure when a turn began",
            range(&pressures).unwrap_or_else(|| "not told by this kernel".to_owned()),
        ),
        (
            "containerd",
            distinct(versions().map(|versions| versions.containerd.clone())),
        ),
        (
            "runc",
            distinct(versions().map(|versions| versions.runc.clone())),
        ),
    ];
    let busy = driven().filter(|driven| !driven.quiet).count();
    if driven().any(|driven| driven.busy_ok) {
        rows.push(("busy machine", "accepted (`--busy-ok`)".to_owned()));
    }
    if busy > 0 {
        let words = format!("{busy} of {} records", run.lines.len());
        rows.push(("taken while other things ran", words));
    }
    let mut agents = String::new();
    for subject in run.subjects() {
        let of_subject = || {
            let lines = run.lines.iter();
            lines.filter(move |line| line.record.subject == subject)
        };
        let agent = distinct(of_subject().map(|line| line.record.versions.agent.clone()));
        let gates = distinct(of_subject().map(|line| {
            let gates = line.record.gates.iter();
            let words: Vec<_> = gates.map(|(name, on)| format!("{name}={on}")).collect();
            words.join(", ")
        }));
        let _ = writeln!(agents, "| {} | {agent} | {gates} |", subject_name(subject));
    }
    let mut text = "| | |\n| --- | --- |\n".to_owned();
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let _ = writeln!(
        text,
        "\n| subject | version | feature gates |\n| --- | --- | --- |\n{agents}"
    );
    text
}

fn targets(run: &Run) -> String {
    let verdicts = judge::judge(run);
    if verdicts.is_empty() {
        return String::new();
    }
    let count = |outcome| {
        let same = verdicts.iter().filter(|verdict| verdict.outcome == outcome);
        same.count()
    };
    let mut text = format!(
        "### Targets\n\n{} met, {} not met, {} not told apart, {} not compared.\n\n\
         | bench | measure | subject | target | figure | |\n| --- | --- | --- | --- | --- | --- |\n",
        count(Outcome::Met),
        count(Outcome::NotMet),
        count(Outcome::NotSure),
        count(Outcome::NotCompared)
    );
    let mut has_cost = false;
    for verdict in &verdicts {
        let target = verdict.target;
        let is_cost = measures::known(target.bench, target.measure).is_some_and(|it| it.is_cost);
        has_cost |= is_cost;
        let params = if verdict.params.is_empty() {
            String::new()
        } else {
            format!(" ({})", verdict.params)
        };
        let outcome = match verdict.outcome {
            Outcome::Met => "met",
            Outcome::NotMet => "**not met**",
            Outcome::NotSure => "not told apart: the interval holds the limit",
            Outcome::NotCompared => "not compared",
        };
        let _ = writeln!(
            text,
            "| {} | {}{params}{} | {} | {} | {} | {outcome} |",
            bench_name(target.bench),
            judge::title(target),
            if is_cost { " †" } else { "" },
            subject_name(target.subject),
            verdict.limit,
            verdict.figure,
        );
    }
    if has_cost {
        let _ = writeln!(text, "\n† {NOT_YET}");
    }
    text
}

/// All subjects under all parameters. Columns that would say nothing are left out.
fn measure_table(run: &Run, bench: Bench, measure: &str) -> String {
    let known = measures::known(bench, measure);
    let title = known.map_or(measure, |known| known.title);
    let all = run.series(bench, measure);
    let subjects = run.subjects();
    let rows: Vec<_> = all
        .iter()
        .flat_map(|series| subjects.iter().map(move |subject| (*series, *subject)))
        .filter_map(|(series, subject)| Some((series, subject, run.group(series, subject)?)))
        .collect();
    let has_params = all.iter().any(|series| !series.words().is_empty());
    let has_lost = rows
        .iter()
        .any(|(_, _, group)| group.lost() + group.doubled() > 0);
    let peers: Vec<_> = PEERS
        .into_iter()
        .filter(|peer| rows.iter().any(|(_, subject, _)| subject == peer))
        .collect();

    let mut head = vec!["subject".to_owned()];
    if has_params {
        head.insert(0, "with".to_owned());
    }
    head.extend(["median", "p99", "max", "n"].map(str::to_owned));
    if has_lost {
        head.extend(["lost", "doubled"].map(str::to_owned));
    }
    head.extend(
        peers
            .iter()
            .map(|peer| format!("to {}", subject_name(*peer))),
    );
    let mut text = format!("\n**{title}** (`{measure}`)\n\n");
    row(&mut text, &head);
    row(&mut text, &vec!["---".to_owned(); head.len()]);
    let mut before: Option<&Series> = None;
    for (series, subject, group) in rows {
        let mut cells = Vec::new();
        if has_params {
            let is_new = before != Some(series);
            cells.push(if is_new {
                series.words()
            } else {
                String::new()
            });
            before = Some(series);
        }
        cells.push(subject_name(subject));
        for q in [0.5, 0.99, 1.0] {
            let value = group.quantile(q);
            cells.push(value.map_or("–".to_owned(), |value| quantity(value, &group.unit)));
        }
        cells.push(group.samples().len().to_string());
        if has_lost {
            cells.push(group.lost().to_string());
            cells.push(group.doubled().to_string());
        }
        for &peer in &peers {
            let other = run.group(series, peer);
            let ratio = other.and_then(|other| compare(group, other));
            cells.push(match ratio {
                _ if peer == subject => "1".to_owned(),
                Some(ratio) => ratio_words(&ratio),
                None => "not compared".to_owned(),
            });
        }
        row(&mut text, &cells);
    }
    if !has_lost
        && matches!(
            bench,
            Bench::ExitDetect | Bench::CrashRestart | Bench::ExitStorm
        )
    {
        text.push_str("\nNothing was lost, nothing doubled.\n");
    }
    if bench == Bench::IdleCost && measure.ends_with("_cpu") {
        text.push_str(&slopes(run, measure));
    }
    if known.is_some_and(|known| known.is_cost) {
        let _ = writeln!(text, "\n{NOT_YET}");
    }
    text
}

fn row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// How the idle cost rises with pods.
fn slopes(run: &Run, measure: &str) -> String {
    let mut words = Vec::new();
    for subject in run.subjects() {
        let points = run.points(Bench::IdleCost, measure, "pods", subject);
        let all: Vec<_> = points.values().flatten().copied().collect();
        if let Some(slope) = stats::slope(&all) {
            let name = subject_name(subject);
            words.push(format!("{name} {}", slope_words(slope, &points)));
        }
    }
    if words.is_empty() {
        return String::new();
    }
    format!("\nRise: {}.\n", words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{Lines, run_of};

    #[test]
    fn numbers_have_three_digits_that_mean_something() {
        let cases = [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.25, "0.25"),
            (1.0, "1"),
            (12.345, "12.3"),
            (123.4, "123"),
            (10_140.0, "10140"),
            (-2.5, "-2.5"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(quantity(10_140.0, "ms"), "10.1 s");
        assert_eq!(quantity(3.0, "count"), "3");
    }

    #[test]
    fn a_table_has_medians_and_ratios_over_all_rounds() {
        let mut lines = Lines::default();
        for round in 1..=2 {
            lines.add("exit-detect", "known", "kubelet", round, &[500.0, 500.0]);
            lines.add("exit-detect", "known", "skep-kernel", round, &[1.0, 1.0]);
        }
        let page = section(&run_of(&lines), &[]);
        assert!(
            page.contains("| `skep-kernel` | 1 ms | 1 ms | 1 ms | 4 | 0.002 [0.002, 0.002] |"),
            "{page}"
        );
        assert!(
            page.contains("Nothing was lost, nothing doubled."),
            "{page}"
        );
        assert!(
            page.contains("`kubelet-evented` is missing | not compared |"),
            "{page}"
        );
    }

    #[test]
    fn what_was_lost_or_doubled_is_in_the_table() {
        let mut lines = Lines::default();
        lines.add("exit-storm", "detected", "skep-kernel", 1, &[1.0]);
        lines.last()["lost"] = 3.into();
        lines.last()["doubled"] = 2.into();
        let page = section(&run_of(&lines), &[]);
        assert!(
            page.contains("| `skep-kernel` | 1 ms | 1 ms | 1 ms | 1 | 3 | 2 |"),
            "{page}"
        );
    }

    #[test]
    fn every_table_of_cpu_or_memory_says_what_is_missing() {
        let mut lines = Lines::default();
        for measure in ["agent_cpu", "sum_cpu", "agent_rss", "threads"] {
            lines.add("idle-cost", measure, "skep-kernel", 1, &[1.0]);
        }
        let page = section(&run_of(&lines), &[]);
        let tables: Vec<_> = page.split("\n**").skip(1).collect();
        let notes: Vec<_> = tables.iter().map(|table| table.contains(NOT_YET)).collect();
        assert_eq!(notes, [true, true, true, false]);
    }

    #[test]
    fn an_accepted_busy_machine_is_told() {
        let mut lines = Lines::default();
        lines.add("footprint", "rss", "skep-kernel", 1, &[1.0]);
        lines.last()["driven"] =
            serde_json::json!({"seed": 5, "size": "quick", "busy_ok": true, "quiet": false});
        let page = section(&run_of(&lines), &[]);
        assert!(page.contains("accepted (`--busy-ok`)"), "{page}");
        assert!(page.contains("quick, 5"), "{page}");
        assert!(page.contains("1 of 1 records"), "{page}");
    }
}
