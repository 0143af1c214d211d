//! The agents' own word: pod events in what they write to stderr, with the time at which they say
//! they knew.
//!
//! Read after the fact, so that reading costs nothing while something is measured. Input: the file
//! that the agent's stderr goes to. Both agents write one line for a pod event at `--v=2`:
//!
//! - upstream: `I1130 00:51:02.123456 42 kubelet.go:2788] "SyncLoop (PLEG): event for pod" pod="..."
//!   event={"ID":"...","Type":"ContainerDied","Data":"..."}` (microseconds, the process's time zone,
//!   which [`crate::subject`] sets to UTC);
//! - Skep: `2026-11-30T00:51:02.123456Z  INFO ...: PLEG event pod=... event="ContainerDied"
//!   container="..."`.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{Timestamp, civil, tz::TimeZone};
use tokio::time::{Instant, sleep};

use crate::clock::{self, Nanos};

/// Between two looks at the file while a line is awaited: long after it should be there.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Started,
    Died,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub at: Nanos,
    pub kind: Kind,
    /// The runtime's id of the container, or of the pod's sandbox.
    pub container: String,
}

/// All pod events of one agent, from its start.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    read: u64,
    /// The beginning of a line whose end was not there yet.
    rest: Vec<u8>,
    events: Vec<PodEvent>,
}

impl Log {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: 0,
            rest: Vec::new(),
            events: Vec::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All events so far.
    pub fn events(&mut self) -> io::Result<&[PodEvent]> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = std::mem::take(&mut self.rest);
        self.read += file.read_to_end(&mut text)? as u64;
        let whole = text.iter().rposition(|&byte| byte == b'\n');
        self.rest = text.split_off(whole.map_or(0, |end| end + 1));
        let (year, text) = (year_of(clock::now()), String::from_utf8_lossy(&text));
        self.events
            .extend(text.lines().filter_map(|line| parse(line, year)));
        Ok(&self.events)
    }

    /// When each of these containers was first said to have died, in their order; none where that
    /// was not said within `limit` from now.
    pub async fn deaths(
        &mut self,
        containers: &[&str],
        limit: Duration,
    ) -> io::Result<Vec<Option<Nanos>>> {
        let deadline = Instant::now() + limit;
        loop {
            let deaths = compute_deaths(self.events()?, containers);
            if deaths.iter().all(Option::is_some) || Instant::now() >= deadline {
                return Ok(deaths);
            }
            sleep(LOOK).await;
        }
    }

    /// How often deaths of these containers were told again.
    pub fn doubled_deaths(&mut self, containers: &[&str]) -> io::Result<u64> {
        Ok(count_doubled(self.events()?, containers))
    }
}

fn compute_deaths(events: &[PodEvent], containers: &[&str]) -> Vec<Option<Nanos>> {
    containers
        .iter()
        .map(|&id| deaths_of(events, id).map(|event| event.at).next())
        .collect()
}

fn count_doubled(events: &[PodEvent], containers: &[&str]) -> u64 {
    let times = containers.iter().map(|&id| deaths_of(events, id).count());
    times.map(|times| times.saturating_sub(1) as u64).sum()
}

fn deaths_of<'a>(events: &'a [PodEvent], id: &'a str) -> impl Iterator<Item = &'a PodEvent> {
    events
        .iter()
        .filter(move |event| event.kind == Kind::Died && event.container == id)
}

fn year_of(now: Nanos) -> i16 {
    Timestamp::from_nanosecond(now.into()).map_or(1970, |time| time.to_zoned(TimeZone::UTC).year())
}

/// The pod event in a line of either agent's; none where the line tells something else. `year` is
/// the current one: upstream's lines have none.
fn parse(line: &str, year: i16) -> Option<PodEvent> {
    if line.contains("\"SyncLoop (PLEG): event for pod\"") {
        return parse_klog(line, year);
    }
    let (head, fields) = line.split_once(": PLEG event")?;
    let at = head.split(' ').next()?.parse::<Timestamp>().ok()?;
    let field = |name| quoted(fields, name);
    Some(PodEvent {
        at: nanos(at)?,
        kind: kind(field(" event=")?),
        container: field(" container=").unwrap_or_default().to_owned(),
    })
}

fn parse_klog(line: &str, year: i16) -> Option<PodEvent> {
    let mut words = line.split(' ');
    let date = words.next()?.strip_prefix(['I', 'W', 'E'])?;
    let (month, day) = date.split_at_checked(2)?;
    let clock: civil::Time = words.next()?.parse().ok()?;
    let date = civil::Date::new(year, month.parse().ok()?, day.parse().ok()?).ok()?;
    let at = date.to_datetime(clock).to_zoned(TimeZone::UTC).ok()?;
    let (_, event) = line.split_once(" event=")?;
    let event: serde_json::Value = serde_json::Deserializer::from_str(event)
        .into_iter()
        .next()?
        .ok()?;
    Some(PodEvent {
        at: nanos(at.timestamp())?,
        kind: kind(event["Type"].as_str()?),
        container: event["Data"].as_str().unwrap_or_default().to_owned(),
    })
}

fn kind(name: &str) -> Kind {
    match name {
        "ContainerDied" => Kind::Died,
        "ContainerStarted" => Kind::Started,
        _other => Kind::Other,
    }
}

/// What stands behind a field's name, up to a blank, without quotes.
fn quoted<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = fields.split_once(name)?;
    match value.strip_prefix('"') {
        Some(text) => text.split('"').next(),
        None => value.split(' ').next(),
    }
}

fn nanos(time: Timestamp) -> Option<Nanos> {
    time.as_nanosecond().try_into().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Nanos {
        nanos(text.parse().unwrap()).unwrap()
    }

    #[rstest]
    #[case::upstream(
        r#"I1130 00:51:02.123456   42 kubelet.go:2788] "SyncLoop (PLEG): event for pod" pod="default/p1-node" event={"ID":"u1","Type":"ContainerDied","Data":"c1"}"#
    )]
    #[case::upstream_with_more_behind(
        r#"I1130 00:51:02.123456   42 kubelet.go:2788] "SyncLoop (PLEG): event for pod" pod="default/p1-node" event={"ID":"u1","Type":"ContainerDied","Data":"c1"} x="y""#
    )]
    #[case::skep(
        r#"2026-11-30T00:51:02.123456Z  INFO agent::pleg: PLEG event pod=default/p1-node event="ContainerDied" container="c1""#
    )]
    #[case::skep_unquoted(
        r"2026-11-30T00:51:02.123456Z  INFO agent::sync: PLEG event pod=default/p1-node event=ContainerDied container=c1"
    )]
    fn a_death_is_read_to_the_microsecond(#[case] line: &str) {
        let event = parse(line, 2026).unwrap();
        assert_eq!(event.at, at("2026-11-30T00:51:02.123456Z"));
        assert_eq!(event.kind, Kind::Died);
        assert_eq!(event.container, "c1");
    }

    #[rstest]
    #[case("I1130 00:51:02.123456   42 kubelet.go:2788] \"SyncLoop ADD\" pods=[]")]
    #[case("I1399 00:51:02.1 42 kubelet.go:1] \"SyncLoop (PLEG): event for pod\" event={}")]
    #[case("2026-11-30T00:51:02.123456Z  INFO agent::sync: the pod is new pod=default/p1")]
    #[case("yesterday  INFO agent::sync: PLEG event event=ContainerDied container=c1")]
    #[case("")]
    fn another_line_is_no_event(#[case] line: &str) {
        assert_eq!(parse(line, 2026), None);
    }

    #[test]
    fn the_first_death_counts_and_a_second_is_a_double() {
        let event = |at, kind, container: &str| PodEvent {
            at,
            kind,
            container: container.to_owned(),
        };
        let events = [
            event(1, Kind::Started, "a"),
            event(5, Kind::Died, "a"),
            event(6, Kind::Died, "b"),
            event(7, Kind::Died, "a"),
        ];
        let asked = ["b", "a", "c"];
        assert_eq!(compute_deaths(&events, &asked), [Some(6), Some(5), None]);
        assert_eq!(count_doubled(&events, &asked), 1);
    }

    #[test]
    fn a_line_that_comes_in_two_halves_is_read_once_whole() {
        let dir = std::env::temp_dir().join(format!("skep-bench-log-{}", std::process::id()));
        let line = "2026-11-30T00:51:02Z  INFO a: PLEG event event=ContainerDied container=c1\n";
        std::fs::write(&dir, &line[..40]).unwrap();
        let mut log = Log::new(dir.clone());
        assert_eq!(log.events().unwrap(), []);
        std::fs::write(&dir, line).unwrap();
        assert_eq!(log.events().unwrap().len(), 1);
        assert_eq!(log.events().unwrap().len(), 1);
        std::fs::remove_file(&dir).unwrap();
    }
}
