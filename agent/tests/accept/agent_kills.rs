//! The agent is killed 20 times while pods run, start and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use agent::types::id::ContainerId;
use tokio::time::{Instant, sleep};

use crate::{
    look::{self, Instances},
    node::{Node, yaml},
};

const KEPT: usize = 20;
const KILLS: usize = 20;
/// Pods of the churn that are wanted at one time.
const CHURNING: usize = 6;
const LIMIT: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept agent-kills"]
async fn no_container_notices_that_the_agent_was_killed() {
    let mut node = Node::builder().up().await;
    let names: Vec<String> = (0..KEPT).map(|n| format!("kept-{n:02}")).collect();
    for name in &names {
        node.write(name, yaml::pod(name).container("main", look::LASTING));
    }
    node.until("all pods run", LIMIT, |pods| look::all_run(pods, &names))
        .await;
    let before = ids(&node, &names).await;

    let mut instances = Instances::default();
    let mut churn: Vec<String> = Vec::new();
    let mut made = 0;
    let mut restart_times = crate::figures::Times::default();
    for round in 0..KILLS {
        for _ in 0..2 {
            let name = format!("churn-{made:02}");
            made += 1;
            let pod = yaml::pod(&name)
                .init("prepare", "true")
                .container("one", look::LASTING)
                // Ends at SIGKILL only: its pod takes its time to go.
                .container("two", "sleep 3600");
            node.write(&name, pod);
            churn.push(name);
        }
        while churn.len() > CHURNING {
            node.remove_manifest(&churn.remove(0));
        }
        let wait = random_up_to(2000);
        sleep(wait).await;
        node.kill_agent().await;
        println!(
            "kill {}: {} ms after the last start",
            round + 1,
            wait.as_millis()
        );
        instances.check(&node).await;
        let began = Instant::now();
        // Ready or not: the next kill comes at any moment of the start.
        node.start_agent_only().await;
        restart_times.add(began.elapsed());
        instances.check(&node).await;
    }
    restart_times.print("agent's start until its socket answers");
    node.until_ready().await;
    node.until("the last pods of the churn run", LIMIT, |pods| {
        look::all_run(pods, &churn)
    })
    .await;
    instances.check(&node).await;

    for name in churn.drain(..) {
        node.remove_manifest(&name);
    }
    let began = Instant::now();
    let listed = async || node.client.list_pods().await.unwrap();
    node.until_true("only the kept pods are left", LIMIT, async || {
        listed().await.len() == KEPT
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("nothing of {made} other pods in the runtime {took:.1} s after the last was unwanted");
    instances.check(&node).await;
    let (ran, cut_off) = instances.counts();
    println!("{ran} containers were seen to run, {cut_off} starts were cut off before that");
    let restarted = instances.restarted();
    println!(
        "containers that ran and were restarted: {}",
        restarted.len()
    );
    assert!(restarted.is_empty(), "{restarted:?}");
    let mut starts = BTreeMap::new();
    for entry in node.events().await {
        if entry.reason == "Started" {
            let place = (entry.pod.map(|key| key.to_string()), entry.container);
            *starts.entry(place).or_insert(0) += 1;
        }
    }
    starts.retain(|_, count| *count > 1);
    assert!(starts.is_empty(), "started again: {starts:?}");

    assert_eq!(ids(&node, &names).await, before);
    let pods = node.pods().await;
    for name in &names {
        let status = pods.running(name, "main").expect("it runs");
        assert_eq!(status.restart_count, 0, "{name}");
    }
    let uids: BTreeSet<String> = listed()
        .await
        .iter()
        .map(|pod| pod.uid.to_string())
        .collect();
    let folders = || -> BTreeSet<String> {
        fs::read_dir(node.root.join("pods"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect()
    };
    // Folders of the gone pods go with the next look of the housekeeping.
    node.until_true("no folder is left over", LIMIT, async || folders() == uids)
        .await;
    println!(
        "kept: {KEPT} of {KEPT} containers with their ids; folders: {}",
        folders().len()
    );
    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    assert_eq!((listing.sandboxes, listing.containers), (KEPT, KEPT));
    node.down().await;
}

async fn ids(node: &Node, names: &[String]) -> BTreeMap<String, ContainerId> {
    let pods = node.pods().await;
    names
        .iter()
        .map(|name| {
            let status = pods.running(name, "main").expect("it runs");
            (name.clone(), look::id(status))
        })
        .collect()
}

/// Another one each time; std's hashers are seeded by chance.
fn random_up_to(most_ms: u64) -> Duration {
    Duration::from_millis(RandomState::new().hash_one(0) % most_ms)
}
