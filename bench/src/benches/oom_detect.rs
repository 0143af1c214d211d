//! `oom-detect`: containers that take more memory than their limit, each once, in pods that are not
//! restarted.
//!
//! `how` is `single` (the main process is killed) or `child` (a child is: on cgroup v1 the container
//! goes on, on v2 upstream's default kills all of it). Measures: `known` (ms, from the end of the
//! main process to the pod event in the agent's log; below 0 where the agent knew before the process
//! was quite gone), and of those containers `right` and `wrong` (count: wrong is where the agent does
//! not tell OOMKilled for one that ended, or tells anything but running for one that goes on; never
//! told at all is lost)
//! and `runtime_wrong` (count: one that ended, and the runtime does not say OOMKilled).

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::kills::LIMIT;
use crate::{
    clock::{Nanos, ms_between},
    pods::{Container, MAIN, Pod},
    process::{Victim, children},
    record::Bench,
    told,
    turn::{GROWTH, Group, Turn},
};

const OOM_KILLED: &str = "OOMKilled";
const MEMORY_MIB: u32 = 32;
/// From the containers' start to the first kill: the bench takes hold of them meanwhile.
const LEAD: f64 = 4.0;
/// Between two kills, in seconds.
const APART: f64 = 0.53;
/// After a child's end, for its parent's.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Single,
    Child,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Child => "child",
        }
    }

    fn pod(self, name: &str, wait: f64) -> Pod {
        let hog = format!("sleep {wait}; exec memhog 256");
        let script = match self {
            Self::Single => hog,
            Self::Child => format!("({hog}) & wait $!; exec sleep 100000"),
        };
        Pod {
            containers: vec![Container {
                memory_mib: Some(MEMORY_MIB),
                ..Container::busybox(MAIN, &["sh", "-c", &script])
            }],
            is_restarted: false,
            ..Pod::pause(name)
        }
    }
}

/// One container.
#[derive(Debug)]
struct Hog {
    pod: String,
    container: String,
    main: Victim,
    /// The process that takes the memory.
    hog: Victim,
}

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let counts = turn.size.pick([4, 2], [10, 5], [30, 10]);
    for (how, count) in [How::Single, How::Child].into_iter().zip(counts) {
        let names: Vec<_> = (0..count).map(|_| turn.name("oom")).collect();
        let done = one(turn, how, &names).await;
        turn.remove(&names).await?;
        done?;
    }
    Ok(())
}

async fn one(turn: &mut Turn, how: How, names: &[String]) -> Result<()> {
    let mark = turn.watch.mark();
    for (place, name) in (0_u32..).zip(names) {
        let wait = LEAD + APART * f64::from(place);
        turn.running.place(&how.pod(name, wait)).await?;
    }
    let waited: Vec<_> = names.iter().map(String::as_str).collect();
    turn.watch.all_started(mark, GROWTH, &waited, MAIN).await?;
    let mut hogs = Vec::new();
    for name in names {
        hogs.push(take_hold(turn, how, name).await?);
    }
    let ends: Vec<Option<Nanos>> = try_join_all(hogs.iter().map(|hog| end(how, hog))).await?;
    let (mut right, mut wrong, mut lost, mut runtime_wrong) = (0, 0, 0, 0);
    for (hog, end) in hogs.iter().zip(&ends) {
        match look(turn, hog, end.is_some()).await? {
            Some(true) => right += 1,
            Some(false) => wrong += 1,
            None => lost += 1,
        }
        if end.is_some() && turn.node.cri.reason(&hog.container).await? != OOM_KILLED {
            runtime_wrong += 1;
        }
    }
    let params = json!({"how": how.name(), "pods": names.len()});
    let ended: Vec<_> = hogs
        .iter()
        .zip(&ends)
        .filter_map(|(hog, end)| Some((hog.container.as_str(), (*end)?)))
        .collect();
    if !ended.is_empty() {
        let ids: Vec<_> = ended.iter().map(|(id, _)| *id).collect();
        let agent = turn.running.agent_mut().context("the floor has no agent")?;
        let deaths = agent.log.deaths(&ids, LIMIT).await?;
        let doubled = agent.log.doubled_deaths(&ids)?;
        let known: Vec<_> = ended
            .iter()
            .zip(deaths)
            .map(|((_, end), death)| Some(ms_between(*end, death?)))
            .collect();
        let group = Group::with_lost(Bench::OomDetect, "known", "ms", &known);
        turn.record(group.params(params.clone()).doubled(doubled))?;
    }
    let counts = [
        ("right", right, 0),
        ("wrong", wrong, lost),
        ("runtime_wrong", runtime_wrong, 0),
    ];
    for (measure, count, lost) in counts {
        let samples = vec![f64::from(count)];
        let group = Group::new(Bench::OomDetect, measure, "count", samples);
        turn.record(Group { lost, ..group }.params(params.clone()))?;
    }
    Ok(())
}

async fn take_hold(turn: &Turn, how: How, pod: &str) -> Result<Hog> {
    let container = turn.watch.running(pod, MAIN);
    let container = container.with_context(|| format!("{pod} does not run"))?;
    let main = turn.node.cri.main_pid(&container).await?;
    let hog = match how {
        How::Single => main,
        How::Child => {
            let child = children(main)?.first().copied();
            child.with_context(|| format!("{pod} has no child"))?
        }
    };
    Ok(Hog {
        pod: pod.to_owned(),
        container,
        main: Victim::open(main)?,
        hog: Victim::open(hog)?,
    })
}

/// Waits for the kill; when the main process ended, none where it goes on.
async fn end(how: How, hog: &Hog) -> Result<Option<Nanos>> {
    let gone = hog.hog.gone(GROWTH).await?;
    let gone = gone.context("a container is not killed for its memory")?;
    match how {
        How::Single => Ok(Some(gone)),
        How::Child => hog.main.gone(SETTLE).await,
    }
}

/// Whether the agent tells what is so; none where it tells nothing within the limit.
async fn look(turn: &Turn, hog: &Hog, has_ended: bool) -> Result<Option<bool>> {
    let agent = turn.running.agent().context("the floor has no agent")?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let told = agent.pods().await?;
        let pod = told.iter().find(|pod| pod.name == hog.pod);
        let is_right = pod.and_then(|pod| compute_is_right(pod, &hog.container, has_ended));
        if is_right.is_some() || Instant::now() >= deadline {
            return Ok(is_right);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// None where the end is not told yet.
fn compute_is_right(pod: &told::Pod, id: &str, has_ended: bool) -> Option<bool> {
    match (pod.end(id), has_ended) {
        (Some(end), true) => Some(end.reason == OOM_KILLED),
        (None, true) => None,
        (end, false) => Some(end.is_none() && pod.is_running(id)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::killed(true, false, Some("OOMKilled"), Some(true))]
    #[case::killed_for_another_reason(true, false, Some("Error"), Some(false))]
    #[case::not_told_yet(true, true, None, None)]
    #[case::goes_on(false, true, None, Some(true))]
    #[case::goes_on_but_is_told_dead(false, false, Some("OOMKilled"), Some(false))]
    fn what_is_told_is_right_where_it_is_what_happened(
        #[case] has_ended: bool,
        #[case] is_running: bool,
        #[case] reason: Option<&str>,
        #[case] right: Option<bool>,
    ) {
        let end = reason.map(|reason| told::End {
            id: "a".to_owned(),
            reason: reason.to_owned(),
        });
        let pod = told::Pod {
            name: "p".to_owned(),
            phase: "Running".to_owned(),
            containers: vec![told::Container {
                id: "a".to_owned(),
                is_running,
                ends: end.into_iter().collect(),
            }],
        };
        assert_eq!(compute_is_right(&pod, "a", has_ended), right);
    }
}
