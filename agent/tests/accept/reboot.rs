//! A reboot's picture: the agent, containerd, all shims and all sandboxes are gone, and so is what
//! lies in memory; the folders on disk are kept.

use std::{collections::BTreeMap, time::Duration};

use rustix::process::Signal;
use tokio::time::Instant;

use crate::{
    look,
    node::{Node, yaml},
};

const PODS: usize = 5;
const LIMIT: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept reboot"]
async fn pods_come_back_with_their_counts_after_a_reboot() {
    let mut node = Node::builder().max_restart_period("1s").up().await;
    let names: Vec<String> = (0..PODS).map(|n| format!("boot-{n}")).collect();
    for name in &names {
        let pod = yaml::pod(name)
            .init("prepare", "echo kept > /data/file")
            .with(mount())
            .container("main", look::LASTING)
            .with(mount());
        let volumes = serde_json::json!({"volumes": [{"name": "data", "emptyDir": {}}]});
        node.write(name, pod.spec(volumes));
    }
    let once = yaml::pod("once").spec(serde_json::json!({"restartPolicy": "Never"}));
    node.write("once", once.container("main", "exit 3"));
    node.until("all pods run", LIMIT, |pods| {
        look::all_run(pods, &names)?;
        (pods.phase("once") == Some("Failed")).then_some(())
    })
    .await;
    // The first pod restarts not at all, the second once, and so on.
    for (at, name) in names.iter().enumerate() {
        for kill in 1..=at {
            node.kill_main(name, "main", Signal::KILL).await;
            node.until("it runs again", LIMIT, |pods| {
                let status = pods.running(name, "main")?;
                (usize::try_from(status.restart_count) == Ok(kill)).then_some(())
            })
            .await;
        }
    }
    let before = counts(&node, &names).await;
    println!("restarts before: {before:?}");

    node.pull_the_plug().await;
    let began = Instant::now();
    node.start_agent_again().await;
    node.until("all pods run again", LIMIT, |pods| {
        look::all_run(pods, &names)
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("all pods run {took:.1} s after the agent's start");
    let after = counts(&node, &names).await;
    println!("restarts after: {after:?}");
    for name in &names {
        assert_eq!(after[name], before[name] + 1, "{name}");
    }
    // A pod that has ended stays so.
    node.until("the ended pod is known", LIMIT, |pods| {
        (pods.phase("once") == Some("Failed")).then_some(())
    })
    .await;
    let end = node.pods().await;
    let end = end.terminated("once", "main").expect("it has ended");
    assert_eq!(end.exit_code, 3);
    assert_eq!(
        node.events_of("once")
            .await
            .iter()
            .filter(|e| e.reason == "Started")
            .count(),
        1
    );
    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    node.down().await;
}

fn mount() -> serde_json::Value {
    serde_json::json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]})
}

async fn counts(node: &Node, names: &[String]) -> BTreeMap<String, i32> {
    let pods = node.pods().await;
    let count = |name: &String| pods.running(name, "main").expect("it runs").restart_count;
    names
        .iter()
        .map(|name| (name.clone(), count(name)))
        .collect()
}
