//! `agent-restart`: the agent is killed (SIGKILL) beside running pods, some containers are killed
//! while it is away, and it is started again.
//!
//! Measures, in ms from the start: `known` (its read-only port tells all other pods as running, with
//! their containers' ids), `noticed` (the same port tells a killed container's end) and `restarted`
//! (CONTAINER_STARTED of its replacement). `touched` (count): containers that were replaced, stopped
//! or removed though nobody had killed them. The port is asked each [`POLL`], whoever listens.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    clock::{Nanos, ms_between, now},
    pods::MAIN,
    process::Victim,
    record::Bench,
    told,
    turn::{Group, Turn},
    watch::{Event, Kind},
};

const KILLED: usize = 3;
const POLL: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(60);
/// Before the kill, and after all is known, for what should not come.
const SETTLE: Duration = Duration::from_secs(3);

/// What one restart came to; none where it did not come.
#[derive(Debug)]
struct Restart {
    known: Option<f64>,
    noticed: Vec<Option<f64>>,
    restarted: Vec<Option<f64>>,
    touched: usize,
}

pub(super) async fn run(turn: &mut Turn) -> Result<()> {
    let pods = turn.size.pick(30, 100, 110);
    let times = turn.size.pick(2, 3, 5);
    turn.grow_to(pods).await?;
    let mut restarts = Vec::new();
    for _ in 0..times {
        restarts.push(one(turn).await?);
    }
    let known: Vec<_> = restarts.iter().map(|restart| restart.known).collect();
    let each = |of: fn(&Restart) -> &Vec<Option<f64>>| -> Vec<_> {
        restarts.iter().flat_map(of).copied().collect()
    };
    let measures = [
        ("known", known),
        ("noticed", each(|restart| &restart.noticed)),
        ("restarted", each(|restart| &restart.restarted)),
    ];
    let params = json!({"pods": turn.pod_count(), "killed": KILLED});
    for (measure, samples) in measures {
        let group = Group::with_lost(Bench::AgentRestart, measure, "ms", &samples);
        turn.record(group.params(params.clone()))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let touched = restarts.iter().map(|restart| restart.touched as f64);
    let group = Group::new(Bench::AgentRestart, "touched", "count", touched.collect());
    turn.record(group.params(params))
}

async fn one(turn: &mut Turn) -> Result<Restart> {
    sleep(SETTLE).await;
    // Fresh ones first: what was killed before may be held back.
    let mut pods = turn.fresh();
    pods.extend(
        turn.pods()
            .into_iter()
            .filter(|pod| !turn.fresh().contains(pod)),
    );
    let mut others = HashMap::new();
    for pod in pods {
        let container = turn.watch.running(&pod, MAIN);
        let container = container.with_context(|| format!("{pod} does not run"))?;
        others.insert(pod, container);
    }
    let mut killed = HashMap::new();
    let mut victims = Vec::new();
    for pod in turn.fresh().into_iter().take(KILLED) {
        let container = others.remove(&pod).context("it runs")?;
        victims.push(Victim::open(turn.node.cri.main_pid(&container).await?)?);
        killed.insert(pod, container);
    }
    let agent = turn.running.agent_mut().context("the floor has no agent")?;
    agent.kill().await?;
    for victim in &victims {
        victim.kill()?;
    }
    for container in killed.values() {
        let stopped = turn.watch.event(0, LIMIT, Kind::Stopped, container).await?;
        stopped.context("a killed container does not end")?;
    }
    let mark = turn.watch.mark();
    let began = agent.start_again(&turn.node).await?;

    let (mut known, mut noticed) = (None, HashMap::new());
    let deadline = Instant::now() + LIMIT;
    while (known.is_none() || noticed.len() < killed.len()) && Instant::now() < deadline {
        // It does not listen from the beginning.
        if let Ok(told) = agent.pods().await {
            let at = now();
            if knows_all(&told, &others) {
                known.get_or_insert(at);
            }
            let ends = told.iter().filter(|pod| {
                let id = killed.get(&pod.name);
                id.is_some_and(|id| pod.end(id).is_some())
            });
            for pod in ends {
                noticed.entry(pod.name.clone()).or_insert(at);
            }
        }
        sleep(POLL).await;
    }
    let mut restarted = Vec::new();
    for pod in killed.keys() {
        let event = turn.watch.start(mark, LIMIT, pod, MAIN).await?;
        restarted.push(event.map(|event| ms_between(began, event.at)));
    }
    sleep(SETTLE).await;
    let touched = count_touched(&turn.watch.since(mark), &killed);
    for pod in killed.keys() {
        turn.mark_killed(pod);
    }
    let after = |at: Option<&Nanos>| at.map(|&at| ms_between(began, at));
    Ok(Restart {
        known: after(known.as_ref()),
        noticed: killed.keys().map(|pod| after(noticed.get(pod))).collect(),
        restarted,
        touched,
    })
}

/// `pods` are container ids by pod.
fn knows_all(told: &[told::Pod], pods: &HashMap<String, String>) -> bool {
    let told: HashMap<_, _> = told.iter().map(|pod| (&pod.name, pod)).collect();
    pods.iter()
        .all(|(pod, id)| told.get(pod).is_some_and(|pod| pod.is_running(id)))
}

/// Everything that happened to containers, apart from those killed and their replacements: `killed`
/// are ids by pod. A second replacement is one too many.
fn count_touched(events: &[Event], killed: &HashMap<String, String>) -> usize {
    let mut replaced = HashMap::new();
    events
        .iter()
        .filter(|event| {
            if killed.values().any(|id| *id == event.container) {
                return false;
            }
            let is_its_own = killed.contains_key(&event.pod)
                && event.kind != Kind::Stopped
                && *replaced
                    .entry(event.pod.clone())
                    .or_insert_with(|| event.container.clone())
                    == event.container;
            !is_its_own
        })
        .map(|event| &event.container)
        .collect::<std::collections::HashSet<_>>()
        .len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, pod: &str, container: &str) -> Event {
        Event {
            at: 0,
            kind,
            container: container.to_owned(),
            name: MAIN.to_owned(),
            pod: pod.to_owned(),
        }
    }

    #[test]
    fn a_killed_containers_one_replacement_is_as_it_should_be() {
        let killed = HashMap::from([("p".to_owned(), "a".to_owned())]);
        let mut events = vec![
            event(Kind::Deleted, "p", "a"),
            event(Kind::Created, "p", "b"),
            event(Kind::Started, "p", "b"),
        ];
        assert_eq!(count_touched(&events, &killed), 0);
        events.push(event(Kind::Started, "p", "c"));
        events.push(event(Kind::Stopped, "q", "d"));
        events.push(event(Kind::Deleted, "q", "d"));
        assert_eq!(count_touched(&events, &killed), 2);
    }

    #[test]
    fn all_is_known_when_each_pod_is_told_with_its_container() {
        let told = |id: &str| told::Pod {
            name: "p".to_owned(),
            phase: "Running".to_owned(),
            containers: vec![told::Container {
                id: id.to_owned(),
                is_running: true,
                ends: Vec::new(),
            }],
        };
        let pods = HashMap::from([("p".to_owned(), "a".to_owned())]);
        assert!(knows_all(&[told("a")], &pods));
        assert!(!knows_all(&[told("b")], &pods));
        assert!(!knows_all(&[], &pods));
    }
}
