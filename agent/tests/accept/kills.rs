//! 200 main processes are killed from outside, over 20 pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use agent::types::timeline::Entry;
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    figures::{Times, between},
    look,
    node::{Node, send, yaml},
};

const PODS: usize = 20;
const ROUNDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(300);

/// One pod's place in the run.
#[derive(Default)]
struct Target {
    kills: usize,
    /// When to kill it next; none until its current instance is seen running.
    due: Option<Instant>,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept kills"]
async fn each_of_200_kills_is_followed_by_one_restart() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let names: Vec<String> = (0..PODS).map(|n| format!("kill-{n:02}")).collect();
    let began = Instant::now();
    for name in &names {
        node.write(name, yaml::pod(name).container("main", look::LASTING));
    }
    node.until("all pods run", LIMIT, |pods| look::all_run(pods, &names))
        .await;
    let took = began.elapsed().as_secs_f64();
    println!("{PODS} pods running after {took:.1} s");

    let began = Instant::now();
    kill_all(&node, &names).await;
    node.until("all run again", LIMIT, |pods| {
        let mut running = names.iter().filter_map(|name| pods.running(name, "main"));
        let count = running.by_ref().filter(|status| count(status) == ROUNDS);
        (count.count() == PODS).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("{} kills in {took:.1} s", PODS * ROUNDS);

    let listing = node.relist().await;
    println!(
        "a forced listing of {} containers found missed: {}",
        listing.containers,
        listing.missed.len()
    );
    assert_eq!(listing.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_pleg_missed_total", &[]).await, 0.0);
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    let pods = node.pods().await;
    for name in &names {
        let status = pods.running(name, "main").expect("it still runs");
        assert_eq!(count(status), ROUNDS, "{name}");
    }
    check_timeline(&node.events().await, &names);
    node.down().await;
}

fn count(status: &k8s_openapi::api::core::v1::ContainerStatus) -> usize {
    usize::try_from(status.restart_count).unwrap()
}

/// Kills each container once an instance, a while after that was seen running.
async fn kill_all(node: &Node, names: &[String]) {
    let mut targets: BTreeMap<&String, Target> =
        names.iter().map(|name| (name, Target::default())).collect();
    let began = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while targets.values().any(|target| target.kills < ROUNDS) {
        tick.tick().await;
        assert!(began.elapsed() < LIMIT, "the kills take too long");
        let pods = node.pods().await;
        for (at, (name, target)) in targets.iter_mut().enumerate() {
            let status = pods.container(name, "main").expect("it stays");
            assert!(count(status) <= target.kills, "{name} restarted by itself");
            // In its back-off, or on its way.
            if count(status) < target.kills || pods.running(name, "main").is_none() {
                continue;
            }
            if target.kills > 0 {
                let end = pods.last_end(name, "main").expect("it was killed");
                assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("Error")));
            }
            let Some(due) = target.due else {
                // Spread, so that some kills meet and others are alone.
                let wait = 200 + (at * 397 + target.kills * 731) % 3800;
                let wait = Duration::from_millis(u64::try_from(wait).unwrap());
                target.due = Some(Instant::now() + wait);
                continue;
            };
            if target.kills < ROUNDS && due <= Instant::now() {
                let pid = node.client.container_pid(&look::id(status)).await.unwrap();
                let pid = pid.expect("it runs").try_into().unwrap();
                send(pid, Signal::KILL);
                target.kills += 1;
                target.due = None;
            }
        }
    }
}

/// Each end told once, with its code; and how long it took until the agent knew, and until the next
/// instance was started.
fn check_timeline(events: &[Entry], names: &[String]) {
    let (mut known, mut first, mut later) = (Times::default(), Times::default(), Times::default());
    for name in names {
        let of_pod = |reason: &str| -> Vec<&Entry> {
            let is_pods = |entry: &&Entry| {
                let key = entry.pod.as_ref();
                key.is_some_and(|key| key.name.starts_with(&**name)) && entry.reason == reason
            };
            events.iter().filter(is_pods).collect()
        };
        let (deaths, starts) = (of_pod("Died"), of_pod("Started"));
        assert_eq!(deaths.len(), ROUNDS, "{name}: {deaths:#?}");
        assert_eq!(starts.len(), ROUNDS + 1, "{name}: {starts:#?}");
        let ids: BTreeSet<_> = deaths.iter().map(|death| &death.container_id).collect();
        assert_eq!(
            ids.len(),
            ROUNDS,
            "{name}: an end was told twice: {deaths:#?}"
        );
        for (at, death) in deaths.iter().enumerate() {
            let expected = "exit code 137 (signal 9), Error";
            assert_eq!(death.message, expected, "{name}");
            let kernel_at = death.kernel_at.expect("the kernel's time");
            known.add(between(kernel_at, death.agent_at));
            let restart = between(kernel_at, starts[at + 1].agent_at);
            if at == 0 { &mut first } else { &mut later }.add(restart);
        }
    }
    known.print("kernel -> agent");
    first.print("kernel -> new container started, no back-off");
    later.print("kernel -> new container started, after a back-off of 1 s");
}
