//! A containerd that is not the agent's is stopped for a minute; meanwhile containers end, one pod
//! comes and one goes.

use std::{collections::BTreeMap, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use crate::{
    look,
    node::{Node, send, yaml},
};

const PODS: usize = 10;
/// So many of them are killed.
const KILLED: usize = 5;
const STOP: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept runtime-stop"]
async fn each_exit_during_a_stop_of_the_runtime_is_handled_once() {
    let mut node = Node::builder()
        .max_restart_period("1s")
        .external_containerd()
        .up()
        .await;
    let names: Vec<String> = (0..PODS).map(|n| format!("stop-{n:02}")).collect();
    for name in &names {
        node.write(name, yaml::pod(name).container("main", look::LASTING));
    }
    let once = yaml::pod("once").spec(serde_json::json!({"restartPolicy": "Never"}));
    node.write("once", once.container("main", "sleep 3600"));
    node.write("going", yaml::pod("going").container("main", look::LASTING));
    node.until("all pods run", LIMIT, |pods| {
        look::all_run(pods, &names)?;
        pods.all_run("once").and(pods.all_run("going"))
    })
    .await;
    let pods = node.pods().await;
    let ids: BTreeMap<&String, _> = names
        .iter()
        .map(|name| (name, look::id(pods.running(name, "main").expect("it runs"))))
        .collect();
    let mut pids: Vec<i32> = Vec::new();
    for name in names
        .iter()
        .take(KILLED)
        .map(String::as_str)
        .chain(["once"])
    {
        pids.push(node.main_pid(name, "main").await);
    }

    node.stop_runtime().await;
    let began = Instant::now();
    for (at, pid) in pids.iter().enumerate() {
        // Over the whole minute.
        let second = 5 + 50 * u64::try_from(at).unwrap() / u64::try_from(pids.len()).unwrap();
        sleep_until(began + Duration::from_secs(second)).await;
        send(*pid, Signal::KILL);
        if at == 1 {
            node.remove_manifest("going");
            node.write(
                "coming",
                yaml::pod("coming").container("main", look::LASTING),
            );
        }
        let (health, _) = node.page("/healthz").await;
        let (ready, why) = node.page("/readyz").await;
        assert_eq!((health, ready), (200, 500), "{why}");
        assert!(why.contains("container runtime is down"), "{why}");
        assert!(node.skep(&["pods"]).await.status.success());
    }
    sleep_until(began + STOP).await;
    let pods = node.pods().await;
    for name in names.iter().skip(KILLED) {
        assert!(
            pods.running(name, "main").is_some(),
            "{name} was lost\n{pods}"
        );
    }

    node.start_runtime().await;
    let began = Instant::now();
    node.until_ready().await;
    let took = began.elapsed().as_secs_f64();
    println!("ready {took:.1} s after the runtime's start");
    node.until("all run again", LIMIT, |pods| {
        look::all_run(pods, &names)?;
        pods.all_run("coming")?;
        let is_gone = pods.pod("going").is_none();
        let has_failed = pods.phase("once") == Some("Failed");
        let is_restarted = |name| pods.running(name, "main").map(|s| s.restart_count) == Some(1);
        let are_restarted = names.iter().take(KILLED).all(|name| is_restarted(name));
        (is_gone && has_failed && are_restarted).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("all pods as they should be {took:.1} s after the runtime's start");

    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    let pods = node.pods().await;
    for (at, name) in names.iter().enumerate() {
        let status = pods.running(name, "main").expect("it runs");
        let is_killed = at < KILLED;
        assert_eq!(status.restart_count, i32::from(is_killed), "{name}");
        assert_eq!(look::id(status) == ids[name], !is_killed, "{name}");
        let events = node.events_of(name).await;
        let of = |reason| events.iter().filter(move |entry| entry.reason == reason);
        let expected = (usize::from(is_killed), 1 + usize::from(is_killed));
        let told = (of("Died").count(), of("Started").count());
        assert_eq!(told, expected, "{name}: {events:#?}");
        if is_killed {
            let end = pods.last_end(name, "main").expect("it was killed");
            assert_eq!(end.exit_code, 137, "{name}");
        }
    }
    let end = pods.terminated("once", "main").expect("it has ended");
    assert_eq!(end.exit_code, 137);
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    println!("{} exits during the stop, each handled once", pids.len());
    node.down().await;
}
