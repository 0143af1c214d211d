//! `exit-storm`: many containers are killed at once.
//!
//! Samples count from the moment before each one's own signal and are sorted. Measures, in ms: `kernel`
//! (processes gone), for agents `detected` (the pod event in the agent's log), `detected_last`, and
//! `behind` (how long after the process was gone, as the bench saw it, the event was logged);
//! `restarted` (CONTAINER_STARTED of the replacement) and `restarted_last`; `list_calls` (count)
//! until the last replacement. Lost are containers that were never detected or replaced; doubled
//! are deaths told, and replacements started, more than once. The floor creates and starts
//! replacements as the kernel tells, four at a time.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures::{TryStreamExt as _, stream::FuturesOrdered};
use rustix::process::{getpriority_process, setpriority_process};
use serde_json::json;
use tokio::{sync::Semaphore, time::sleep};

use super::kills::LIMIT;
use crate::{
    clock::{Nanos, ms_between},
    cost::Reading,
    pods::MAIN,
    process::Victim,
    record::Bench,
    turn::{FLOOR_CONCURRENCY, Group, Turn},
    watch::{Event, Kind},
};

/// Upstream takes ten seconds.
const STORM_LIMIT: Duration = Duration::from_secs(60);
/// The highest priority of ordinary processes.
const FIRST: i32 = -20;
/// For what should not come: a second word, a second replacement.
const AFTER: Duration = Duration::from_secs(2);

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let count: usize = turn.size.pick(30, 110, 110);
    // New pods in place of those that were killed before, which stay: an agent may take a minute to
    // remove a pod.
    let missing = count.saturating_sub(turn.fresh().len());
    turn.grow_to(turn.pod_count() + missing).await?;
    let pods: Vec<_> = turn.fresh().into_iter().take(count).collect();
    let mut containers = Vec::new();
    let mut victims = Vec::new();
    for pod in &pods {
        let container = turn.watch.running(pod, MAIN);
        let container = container.with_context(|| format!("{pod} does not run"))?;
        victims.push(Victim::open(turn.node.cri.main_pid(&container).await?)?);
        containers.push(container);
    }
    // So that what opening them cost is not in the storm.
    sleep(AFTER).await;
    let before = Reading::begin(&turn.node, turn.running.agent(), &turn.bpf).await?;
    let mark = turn.watch.mark();
    let killed = kill_all(&victims)?;
    let kernel = follow(turn, &victims, &pods).await?;
    let is_back = |events: &[Event]| (starts(events, &pods).len() == pods.len()).then_some(());
    turn.watch.find(mark, STORM_LIMIT, is_back).await?;
    let after = Reading::end(&turn.node, turn.running.agent(), &turn.bpf).await?;
    sleep(AFTER).await;

    let events = turn.watch.since(mark);
    let restarted = starts(&events, &pods);
    let all: Vec<_> = pods
        .iter()
        .map(|pod| restarted.get(pod.as_str()).copied())
        .collect();
    let again = count_starts(&events, &pods).saturating_sub(restarted.len());
    let mut behind = Vec::new();
    let mut groups = vec![
        ("kernel", kernel.clone(), 0),
        ("restarted", all, again as u64),
    ];
    if let Some(agent) = turn.running.agent_mut() {
        let ids: Vec<_> = containers.iter().map(String::as_str).collect();
        let deaths = agent.log.deaths(&ids, LIMIT).await?;
        let both = kernel.iter().zip(&deaths);
        behind.extend(both.map(|(gone, told)| Some(ms_between((*gone)?, (*told)?))));
        groups.push(("detected", deaths, agent.log.doubled_deaths(&ids)?));
    }
    let params = json!({"killed": count, "pods": turn.pod_count()});
    for (measure, times, doubled) in groups {
        let times = compute_times(&killed, &times);
        let group = Group::with_lost(Bench::ExitStorm, measure, "ms", &times);
        let (last, lost) = (group.samples.last().copied(), group.lost);
        turn.record(group.params(params.clone()).doubled(doubled))?;
        if measure != "kernel" {
            let name = format!("{measure}_last");
            let last = last.into_iter().collect();
            let group = Group::new(Bench::ExitStorm, &name, "ms", last);
            turn.record(Group { lost, ..group }.params(params.clone()))?;
        }
    }
    if !behind.is_empty() {
        let group = Group::with_lost(Bench::ExitStorm, "behind", "ms", &behind);
        turn.record(group.params(params.clone()))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let listings = after.listings_since(&before) as f64;
    let group = Group::new(Bench::ExitStorm, "list_calls", "count", vec![listings]);
    turn.record(group.params(params))?;
    for pod in &pods {
        turn.mark_killed(pod);
    }
    Ok(())
}

/// Before all else that wants to run: what the first kills set off would hold up the others. Returns
/// when each was killed.
fn kill_all(victims: &[Victim]) -> Result<Vec<Nanos>> {
    let usual = getpriority_process(None)?;
    setpriority_process(None, FIRST)?;
    let killed = victims.iter().map(Victim::kill).collect();
    setpriority_process(None, usual)?;
    killed
}

/// Waits for all ends, and makes the replacements where the bench is what makes them.
async fn follow(turn: &Turn, victims: &[Victim], pods: &[String]) -> Result<Vec<Option<Nanos>>> {
    let room = Semaphore::new(FLOOR_CONCURRENCY);
    let each = victims.iter().zip(pods).map(async |(victim, pod)| {
        let gone = victim.gone(LIMIT).await?;
        if let Some(floor) = turn.running.floor() {
            let _permit = room.acquire().await?;
            floor.replace(pod).await?;
        }
        anyhow::Ok(gone)
    });
    each.collect::<FuturesOrdered<_>>().try_collect().await
}

/// The first start in each of the pods.
fn starts<'a>(events: &[Event], pods: &'a [String]) -> HashMap<&'a str, Nanos> {
    let mut found = HashMap::new();
    for (pod, event) in started(events, pods) {
        found.entry(pod).or_insert(event.at);
    }
    found
}

fn count_starts(events: &[Event], pods: &[String]) -> usize {
    started(events, pods).count()
}

fn started<'a, 'b>(
    events: &'b [Event],
    pods: &'a [String],
) -> impl Iterator<Item = (&'a str, &'b Event)> {
    let names: HashSet<&'a str> = pods.iter().map(String::as_str).collect();
    events
        .iter()
        .filter(|event| event.kind == Kind::Started && event.name == MAIN)
        .filter_map(move |event| Some((*names.get(event.pod.as_str())?, event)))
}

/// Milliseconds from each one's kill, sorted; what never came is last.
fn compute_times(killed: &[Nanos], times: &[Option<Nanos>]) -> Vec<Option<f64>> {
    let mut all: Vec<_> = killed
        .iter()
        .zip(times)
        .map(|(killed, at)| at.map(|at| ms_between(*killed, at)))
        .collect();
    all.sort_by(|one, other| {
        let order = |at: &Option<f64>| at.unwrap_or(f64::INFINITY);
        order(one).total_cmp(&order(other))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_sorted_by_time_and_what_never_came_is_last() {
        let times = [Some(3_000_000), None, Some(2_500_000)];
        let killed = [1_000_000, 1_200_000, 1_500_000];
        assert_eq!(compute_times(&killed, &times), [Some(1.0), Some(2.0), None]);
    }

    #[test]
    fn a_second_start_in_a_pod_is_counted_and_the_first_is_its_time() {
        let event = |at, pod: &str| Event {
            at,
            kind: Kind::Started,
            container: at.to_string(),
            name: MAIN.to_owned(),
            pod: pod.to_owned(),
        };
        let events = [event(1, "a"), event(2, "b"), event(3, "a"), event(4, "x")];
        let pods = ["a".to_owned(), "b".to_owned()];
        assert_eq!(starts(&events, &pods), HashMap::from([("a", 1), ("b", 2)]));
        assert_eq!(count_starts(&events, &pods), 3);
    }
}
