//! Which turns there are, in which order, and which of them an earlier run has done: decisions
//! only.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use serde_json::Value;

/// What is measured; the bench's own program knows what each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Subject {
    Kubelet,
    KubeletEvented,
    SkepKernel,
    SkepStream,
    SkepListing,
    Floor,
}

pub(super) const SUBJECTS: [Subject; 6] = [
    Subject::Kubelet,
    Subject::KubeletEvented,
    Subject::SkepKernel,
    Subject::SkepStream,
    Subject::SkepListing,
    Subject::Floor,
];

impl Subject {
    pub(super) fn name(self) -> String {
        name_of(&self)
    }

    pub(super) fn is_kubelet(self) -> bool {
        match self {
            Self::Kubelet | Self::KubeletEvented => true,
            Self::SkepKernel | Self::SkepStream | Self::SkepListing | Self::Floor => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bench {
    CriFloor,
    IdleCost,
    ExitDetect,
    CrashRestart,
    InitChain,
    OomDetect,
    ExitStorm,
    PodStartSeq,
    PodStartBatch,
    AgentRestart,
    BpfOverhead,
    Footprint,
}

impl Bench {
    pub(super) fn name(self) -> String {
        name_of(&self)
    }

    /// Whether it means anything for the subject. The bare runtime knows no restarts of an agent,
    /// and only one subject has kernel programs.
    fn has(self, subject: Subject) -> bool {
        match self {
            Self::CriFloor => subject == Subject::Floor,
            Self::BpfOverhead => subject == Subject::SkepKernel,
            Self::OomDetect | Self::AgentRestart | Self::Footprint => subject != Subject::Floor,
            Self::IdleCost
            | Self::ExitDetect
            | Self::CrashRestart
            | Self::InitChain
            | Self::ExitStorm
            | Self::PodStartSeq
            | Self::PodStartBatch => true,
        }
    }
}

fn name_of(value: &impl clap::ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}

/// What the command line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Those of the PLEG.
    Pleg,
    One(Bench),
}

const PLEG: [Bench; 5] = [
    Bench::IdleCost,
    Bench::ExitDetect,
    Bench::CrashRestart,
    Bench::InitChain,
    Bench::ExitStorm,
];

pub(super) fn parse_asked(text: &str) -> Result<Asked, String> {
    if text == "pleg" {
        return Ok(Asked::Pleg);
    }
    Bench::from_str(text, false)
        .map(Asked::One)
        .map_err(|_error| {
            let names: Vec<_> = Bench::value_variants()
                .iter()
                .map(|bench| bench.name())
                .collect();
            format!("the benches are: pleg, {}", names.join(", "))
        })
}

/// Each once; all where none is asked for.
pub(super) fn compute_benches(asked: &[Asked]) -> Vec<Bench> {
    let is_asked = |bench: &Bench| {
        asked.is_empty()
            || asked.iter().any(|asked| match asked {
                Asked::Pleg => PLEG.contains(bench),
                Asked::One(one) => one == bench,
            })
    };
    let all = Bench::value_variants().iter().copied();
    all.filter(is_asked).collect()
}

/// What the file of records is called.
pub(super) fn compute_name(asked: &[Asked]) -> String {
    if asked.is_empty() {
        return "all".to_owned();
    }
    let names: Vec<_> = asked
        .iter()
        .map(|asked| match asked {
            Asked::Pleg => "pleg".to_owned(),
            Asked::One(bench) => bench.name(),
        })
        .collect();
    names.join("+")
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Size {
    Quick,
    Pleg,
    Full,
}

impl Size {
    pub(super) fn name(self) -> String {
        name_of(&self)
    }

    pub(super) fn rounds(self) -> u32 {
        match self {
            Self::Quick => 1,
            Self::Pleg => 3,
            Self::Full => 5,
        }
    }

    /// A turn that takes longer hangs.
    pub(super) fn limit(self) -> Duration {
        let minutes = match self {
            Self::Quick => 10,
            Self::Pleg => 20,
            Self::Full => 90,
        };
        Duration::from_secs(minutes * 60)
    }
}

/// One subject in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// From 1.
    pub(super) round: u32,
    pub(super) subject: Subject,
    /// Never empty.
    pub(super) benches: Vec<Bench>,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let benches: Vec<_> = self.benches.iter().map(|bench| bench.name()).collect();
        let (subject, round) = (self.subject.name(), self.round);
        write!(f, "{subject}, round {round} ({})", benches.join(" "))
    }
}

/// A bench of a turn that has records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    round: u64,
    subject: String,
    bench: String,
}

impl Done {
    /// What a line of records is part of.
    pub(super) fn of(line: &Value) -> Option<Self> {
        let text = |name: &str| line.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            round: line.get("round")?.as_u64()?,
            subject: text("subject")?,
            bench: text("bench")?,
        })
    }
}

/// Rounds one after the other, each with all subjects in an order of its own that comes from the
/// seed: nothing that changes with time falls on one subject alone. What is done is left out, and
/// the order of the rest stays what it was.
pub(super) fn plan_turns(
    seed: u64,
    rounds: u32,
    subjects: &[Subject],
    benches: &[Bench],
    done: &[Done],
) -> Vec<Turn> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut turns = Vec::new();
    for round in 1..=rounds {
        let mut subjects = subjects.to_vec();
        random.shuffle(&mut subjects);
        for subject in subjects {
            let is_open = |bench: &Bench| {
                let is_it = |done: &Done| {
                    done.round == u64::from(round)
                        && done.subject == subject.name()
                        && done.bench == bench.name()
                };
                bench.has(subject) && !done.iter().any(is_it)
            };
            let benches: Vec<_> = benches.iter().copied().filter(is_open).collect();
            if !benches.is_empty() {
                turns.push(Turn {
                    round,
                    subject,
                    benches,
                });
            }
        }
    }
    turns
}

/// The id of the run that wrote the last line, and its lines. Lines that are no JSON are none.
pub(super) fn last_run(records: &str) -> Option<(String, Vec<Value>)> {
    let mut lines: Vec<Value> = records
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let run = lines.last()?.get("run")?.as_str()?.to_owned();
    lines.retain(|line| line.get("run").is_some_and(|it| *it == *run));
    Some((run, lines))
}

/// The same lines, each with how the turn was driven. A last line that was cut off is left out.
pub(super) fn add_driven(records: &str, driven: &Value) -> Result<String> {
    let (whole, _cut) = records.rsplit_once('\n').unwrap_or_default();
    let mut lines = String::new();
    for line in whole.lines() {
        let open = line.trim_end().strip_suffix('}');
        let open = open.with_context(|| format!("the turn wrote no record: {line}"))?;
        lines.push_str(&format!("{open},\"driven\":{driven}}}\n"));
    }
    Ok(lines)
}

/// Why a turn failed, from what it printed: its error, else what it said last.
pub(super) fn reason_in(output: &str) -> &str {
    let error = output.lines().find_map(|line| line.strip_prefix("Error: "));
    error.or(output.lines().last()).unwrap_or("it said nothing")
}

/// How long the rest will take, going by what was done.
pub(super) fn compute_left(elapsed: Duration, done: usize, all: usize) -> Duration {
    let turns = u32::try_from(done).unwrap_or(u32::MAX).max(1);
    let left = u32::try_from(all.saturating_sub(done)).unwrap_or(u32::MAX);
    elapsed / turns * left
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn names(turns: &[Turn]) -> BTreeSet<String> {
        turns.iter().map(ToString::to_string).collect()
    }

    fn turns(seed: u64, done: &[Done]) -> Vec<Turn> {
        plan_turns(seed, 3, &SUBJECTS, &PLEG, done)
    }

    #[test]
    fn each_subject_has_one_turn_in_each_round_and_rounds_do_not_mix() {
        let turns = turns(7, &[]);
        assert_eq!(turns.len(), 18);
        assert_eq!(names(&turns).len(), 18);
        let rounds: Vec<_> = turns.iter().map(|turn| turn.round).collect();
        assert!(rounds.is_sorted());
    }

    #[test]
    fn the_order_comes_from_the_seed_and_differs_between_rounds() {
        assert_eq!(turns(7, &[]), turns(7, &[]));
        assert_ne!(turns(7, &[]), turns(8, &[]));
        let order = |round| -> Vec<_> {
            let turns = turns(7, &[]);
            let of_round = turns.iter().filter(|turn| turn.round == round);
            of_round.map(|turn| turn.subject).collect()
        };
        assert!(order(1) != order(2) || order(2) != order(3));
    }

    #[test]
    fn a_resumed_run_does_what_has_no_records_in_the_same_order() {
        let all = turns(7, &[]);
        let done_of = |turn: &Turn, benches: &[Bench]| -> Vec<_> {
            let benches = benches.iter();
            benches
                .map(|bench| {
                    let line = json!({
                        "round": turn.round,
                        "subject": turn.subject.name(),
                        "bench": bench.name(),
                    });
                    Done::of(&line).unwrap()
                })
                .collect()
        };
        let mut done = done_of(&all[0], &PLEG);
        done.extend(done_of(&all[1], &PLEG[..3]));
        let rest = turns(7, &done);
        assert_eq!(rest.len(), 17);
        assert_eq!(rest[0].subject, all[1].subject);
        assert_eq!(rest[0].benches, PLEG[3..]);
        assert_eq!(rest[1..], all[2..]);
    }

    #[test]
    fn a_bench_that_means_nothing_for_a_subject_is_left_out() {
        let benches = [Bench::CriFloor, Bench::BpfOverhead];
        let turns = plan_turns(1, 1, &SUBJECTS, &benches, &[]);
        let expected = BTreeSet::from([
            "floor, round 1 (cri-floor)".to_owned(),
            "skep-kernel, round 1 (bpf-overhead)".to_owned(),
        ]);
        assert_eq!(names(&turns), expected);
    }

    #[test]
    fn what_is_asked_for_names_benches_and_the_file() {
        let asked = [
            parse_asked("footprint").unwrap(),
            parse_asked("pleg").unwrap(),
        ];
        assert_eq!(compute_benches(&asked).len(), 6);
        assert_eq!(compute_name(&asked), "footprint+pleg");
        assert_eq!(compute_benches(&[]).len(), 12);
        assert_eq!(compute_name(&[]), "all");
        let error = parse_asked("idle").unwrap_err();
        assert!(error.contains("idle-cost"), "{error}");
    }

    #[test]
    fn the_last_run_is_that_of_the_last_line() {
        let text = "{\"run\":\"a\",\"round\":1}\n{\"run\":\"b\",\"round\":1}\n\
                    {\"run\":\"b\",\"round\":2}\nnot JSON\n";
        let (run, lines) = last_run(text).unwrap();
        assert_eq!((run.as_str(), lines.len()), ("b", 2));
        assert!(last_run("").is_none());
    }

    #[test]
    fn a_record_gets_how_it_was_driven_and_a_cut_line_is_left_out() {
        let lines = add_driven("{\"n\":1}\n{\"n\":2", &json!({"seed": 7})).unwrap();
        assert_eq!(lines, "{\"n\":1,\"driven\":{\"seed\":7}}\n");
        assert!(add_driven("oops\n", &json!({})).is_err());
        assert_eq!(add_driven("", &json!({})).unwrap(), "");
    }

    #[test]
    fn a_turn_fails_for_its_own_error_not_for_what_a_log_says_below_it() {
        let output = "working\nError: skep ended by itself\nError: a line of its log\n";
        assert_eq!(reason_in(output), "skep ended by itself");
        assert_eq!(reason_in("working\nkilled after 5 s\n"), "killed after 5 s");
        assert_eq!(reason_in(""), "it said nothing");
    }

    #[test]
    fn the_time_left_goes_by_the_turns_done() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        assert_eq!(compute_left(minutes(6), 2, 18), minutes(48));
        assert_eq!(compute_left(minutes(6), 18, 18), minutes(0));
    }

    /// The bench's program has lists of its own, which records are written by.
    #[test]
    fn the_names_are_those_of_the_records() {
        let file = crate::command::workspace().join("bench/src/record.rs");
        let text = std::fs::read_to_string(file).unwrap();
        for subject in SUBJECTS {
            assert!(text.contains(&format!("    {subject:?},\n")), "{subject:?}");
        }
        for bench in Bench::value_variants() {
            assert!(text.contains(&format!("    {bench:?},\n")), "{bench:?}");
        }
    }
}
