//! Whether the machine is quiet enough to measure on, and what keeps it busy where it is not.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result};

/// Processes that want to run, on average over the last minute.
const MAX_LOAD: f64 = 1.5;
/// Of all processors, while the bench itself only waits.
const MAX_BUSY: f64 = 0.15;
const SAMPLE: Duration = Duration::from_secs(3);

/// What the machine was doing for a moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// The average of the last minute.
    average: f64,
    /// The part of the processors' time that was used, 0 to 1.
    busy: f64,
    /// The processes that used most, with the part of one processor each.
    busiest: Vec<(String, f64)>,
}

impl Load {
    /// Takes three seconds.
    pub(super) fn look() -> Result<Self> {
        let (times, processes) = (Times::read()?, read_processes());
        std::thread::sleep(SAMPLE);
        let later = Times::read()?;
        let ticks = later.total.saturating_sub(times.total);
        Ok(Self {
            average: read_average()?,
            busy: times.compute_busy(later),
            busiest: compute_busiest(&processes, &read_processes(), ticks),
        })
    }

    /// Why nothing should be measured now; none where it is quiet.
    pub(super) fn compute_refusal(&self) -> Option<String> {
        if self.average <= MAX_LOAD && self.is_idle() {
            return None;
        }
        Some(format!(
            "the machine is busy: load average {:.2} (limit {MAX_LOAD}), processors used {:.0} % \
             (limit {:.0} %), busiest: {}",
            self.average,
            self.busy * 100.0,
            MAX_BUSY * 100.0,
            self.busiest()
        ))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.busy <= MAX_BUSY
    }

    pub(super) fn busiest(&self) -> String {
        if self.busiest.is_empty() {
            return "nothing now".to_owned();
        }
        let each = self.busiest.iter();
        let words: Vec<_> = each
            .map(|(name, part)| format!("{name} {:.0} %", part * 100.0))
            .collect();
        words.join(", ")
    }
}

fn read_average() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.context("/proc/loadavg does not begin with a number")
}

/// Of all processors since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    total: u64,
    idle: u64,
}

impl Times {
    fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Self::parse(&text).context("/proc/stat has no line for all processors")
    }

    /// Fields by proc_stat(5): user nice system idle iowait irq softirq steal.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let numbers = line.split_whitespace().take(8);
        let numbers: Vec<u64> = numbers
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        Some(Self {
            total: numbers.iter().sum(),
            idle: numbers.get(3)? + numbers.get(4)?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn compute_busy(self, later: Self) -> f64 {
        let total = later.total.saturating_sub(self.total).max(1);
        let idle = later.idle.saturating_sub(self.idle).min(total);
        (total - idle) as f64 / total as f64
    }
}

/// Ticks used by each process, by pid, with its name.
type Processes = BTreeMap<u32, (String, u64)>;

fn read_processes() -> Processes {
    let dirs = fs::read_dir("/proc").into_iter().flatten();
    dirs.filter_map(Result::ok)
        .filter_map(|dir| {
            let pid = dir.file_name().to_str()?.parse().ok()?;
            // One that has ended since is not busy.
            let text = fs::read_to_string(dir.path().join("stat")).ok()?;
            Some((pid, parse_process(&text)?))
        })
        .collect()
}

/// The name and the ticks in user and kernel mode, by proc_pid_stat(5). The name may hold blanks
/// and brackets.
fn parse_process(text: &str) -> Option<(String, u64)> {
    let (head, rest) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut words = rest.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some((name.to_owned(), next()? + next()?))
}

/// The three that used most, if it is worth a word. `ticks` are those of all processors between.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn compute_busiest(before: &Processes, after: &Processes, ticks: u64) -> Vec<(String, f64)> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let of_one = ticks as f64 / processors as f64;
    let mut used: Vec<_> = after
        .iter()
        .map(|(pid, (name, ticks))| {
            let earlier = before.get(pid).map_or(0, |(_, ticks)| *ticks);
            let part = ticks.saturating_sub(earlier) as f64 / of_one.max(1.0);
            (format!("{name} ({pid})"), part)
        })
        .filter(|(_, part)| *part >= 0.01)
        .collect();
    used.sort_by(|one, other| other.1.total_cmp(&one.1));
    used.truncate(3);
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(average: f64, busy: f64) -> Load {
        Load {
            average,
            busy,
            busiest: vec![("rustc (7)".to_owned(), 0.93)],
        }
    }

    #[test]
    fn a_busy_machine_is_refused_and_what_keeps_it_busy_is_named() {
        assert_eq!(load(1.5, 0.15).compute_refusal(), None);
        let refusal = load(0.3, 0.5).compute_refusal().unwrap();
        assert!(refusal.contains("used 50 %"), "{refusal}");
        assert!(refusal.contains("rustc (7) 93 %"), "{refusal}");
        let refusal = load(1.6, 0.0).compute_refusal().unwrap();
        assert!(refusal.contains("load average 1.60"), "{refusal}");
    }

    #[test]
    fn waiting_for_a_disk_is_idle() {
        let text = "cpu  100 0 100 700 100 0 0 0 5 5\ncpu0 1 1 1 1 1 1 1 1\n";
        let earlier = Times { total: 0, idle: 0 };
        let times = Times::parse(text).unwrap();
        assert!((earlier.compute_busy(times) - 0.2).abs() < 1e-9);
        assert_eq!(Times::parse("intr 1\n"), None);
    }

    #[test]
    fn a_process_may_have_any_name() {
        let text = "12 (a) b (c)) S 1 12 12 0 -1 4194560 1 2 3 4 250 50 0 0 20 0";
        assert_eq!(parse_process(text), Some(("a) b (c)".to_owned(), 300)));
    }

    #[test]
    fn the_busiest_are_those_that_used_most_in_between() {
        let one = |name: &str, ticks| (name.to_owned(), ticks);
        let before = Processes::from([(1, one("old", 1000)), (2, one("quiet", 5))]);
        let after = Processes::from([
            (1, one("old", 1010)),
            (2, one("quiet", 5)),
            (3, one("new", 100)),
        ]);
        let busiest = compute_busiest(&before, &after, 600);
        let names: Vec<_> = busiest.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["new (3)", "old (1)"]);
    }
}
