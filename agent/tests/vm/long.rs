//! All that is different on v2, and many memory kills.

use std::{fs, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use crate::{
    files::{Cgroup, pod},
    node::{Node, SOON, yaml::STAY},
};

/// Of memory.
const LIMIT: &str = "32Mi";
const KILLS: usize = 100;
const PODS: usize = 4;
/// For all of them.
const PATIENCE: Duration = Duration::from_secs(240);

fn limit() -> serde_json::Value {
    json!({"resources": {"limits": {"memory": LIMIT}}})
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn each_of_100_memory_kills_is_told_as_one() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let folder = node.dir.join("counts");
    fs::create_dir(&folder).unwrap();
    let began = Instant::now();
    let each = i32::try_from(KILLS / PODS).unwrap();
    let names: Vec<String> = (0..PODS).map(|n| format!("oom-{n}")).collect();
    for name in &names {
        // A byte of the pod's file for each start; after the last kill it only waits.
        let script = format!(
            "n=$(cat /host/{name} 2>/dev/null); [ ${{#n}} -lt {each} ] || {{ {STAY}; }}; \
             printf x >> /host/{name}; exec memhog 256"
        );
        let mounts = json!({"volumeMounts": [{"name": "host", "mountPath": "/host"}]});
        let volumes = json!({"volumes": [{"name": "host", "hostPath": {"path": folder}}]});
        let pod = pod(name).container("main", &script);
        node.write(name, pod.with(limit()).with(mounts).spec(volumes));
    }
    let mut shown = 0;
    node.until("each was killed so often", PATIENCE, |pods| {
        let containers = names.iter().filter_map(|name| pods.container(name, "main"));
        let kills: i32 = containers.map(|status| status.restart_count).sum();
        if kills >= shown + 10 {
            println!("{kills} kills");
            shown = kills;
        }
        let waiting = names
            .iter()
            .filter_map(|name| pods.running(name, "main"))
            .filter(|status| status.restart_count >= each);
        (waiting.count() == PODS).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("{KILLS} memory kills in {took:.1} s");

    let events = node.events().await;
    let ends: Vec<_> = events
        .iter()
        .filter(|entry| entry.message.starts_with("exit code"))
        .collect();
    for end in &ends {
        assert_eq!(end.message, "exit code 137 (signal 9), OOMKilled");
        assert!(end.kernel_at.is_some(), "{end:?}");
    }
    println!("told as OOMKilled: {}", ends.len());
    assert_eq!(ends.len(), KILLS);
    let corrected = node.metric("skep_oom_reason_corrected_total", &[]).await;
    println!("the runtime gave another reason: {corrected} times");
    let pods = node.pods().await;
    for name in &names {
        let status = pods.running(name, "main").expect("it waits");
        assert_eq!(status.restart_count, each, "{name}");
        let end = pods.last_end(name, "main").expect("it was killed");
        let told = (end.exit_code, end.reason.as_deref());
        assert_eq!(told, (137, Some("OOMKilled")), "{name}");
    }
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    node.down().await;
}

/// The kernel ends all of a container whose cgroup is a group to its memory killer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn a_childs_memory_kill_ends_the_whole_container_by_default() {
    let node = Node::builder().up().await;
    let script = format!("memhog 256 60; echo child ended with $?; {STAY}");
    let parent = pod("parent")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", &script)
        .with(limit());
    node.write("parent", parent);
    let end = node
        .until("it failed", SOON, |pods| {
            (pods.phase("parent") == Some("Failed"))
                .then(|| pods.terminated("parent", "app").cloned())?
        })
        .await;
    let told = (end.exit_code, end.reason.as_deref());
    assert_eq!(told, (137, Some("OOMKilled")));
    let died = node.until_event("parent", "Died").await;
    assert_eq!(died.message, "exit code 137 (signal 9), OOMKilled");
    assert!(died.kernel_at.is_some(), "{died:?}");
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn with_single_process_oom_kill_a_killed_child_is_told_and_the_container_goes_on() {
    let node = Node::builder()
        .run()
        .config(json!({"singleProcessOOMKill": true}))
        .up()
        .await;
    let script = format!("memhog 256 60; echo child ended with $?; {STAY}");
    node.write(
        "parent",
        pod("parent").container("app", &script).with(limit()),
    );
    let told = node.until_event("parent", "ChildOomKilled").await;
    let victim = "(memhog) of container \"app\"";
    assert!(told.message.contains(victim), "{}", told.message);
    let hit = "the container's limit of 32Mi was hit";
    assert!(told.message.ends_with(hit), "{}", told.message);
    node.until_true("the container goes on", SOON, async || {
        let output = node.skep(&["logs", "parent"]).await;
        String::from_utf8_lossy(&output.stdout).contains("child ended with 137")
    })
    .await;
    let status = node.container("parent", "app").await;
    assert_eq!(status.restart_count, 0);
    assert!(status.state.unwrap().running.is_some());
    let cgroup = Cgroup::of(&node, "parent", "burstable/", "app").await;
    assert_eq!(cgroup.read(["memory.oom.group"]), ["0"]);
    let kills = node
        .metric("skep_child_oom_kills_total", &[("limit", "container")])
        .await;
    assert_eq!(kills, 1.0);
    node.remove_manifest("parent");
    node.until_gone("parent").await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn init_containers_run_one_after_the_other_before_the_others() {
    let node = Node::builder().up().await;
    let volume = json!({"name": "record", "emptyDir": {}});
    let mount = json!({"volumeMounts": [{"name": "record", "mountPath": "/record"}]});
    let mut chain = pod("chain").spec(json!({"volumes": [volume]}));
    let mut expected = String::new();
    for n in 1..=5 {
        let script = format!("echo {n} starts >> /record/r; echo {n} ends >> /record/r");
        chain = chain
            .init(&format!("init-{n}"), &script)
            .with(mount.clone());
        expected.push_str(&format!("{n} starts\n{n} ends\n"));
    }
    let app = format!("echo app starts >> /record/r; {STAY}");
    node.write("chain", chain.container("app", &app).with(mount.clone()));
    expected.push_str("app starts\n");
    node.until_running("chain").await;
    node.until_true("the app has started", SOON, async || {
        node.sh("chain", "cat /record/r").await.contains("app")
    })
    .await;
    assert_eq!(node.sh("chain", "cat /record/r").await, expected);
    let pods = node.pods().await;
    for n in 1..=5 {
        let name = format!("init-{n}");
        let end = pods.terminated("chain", &name).unwrap();
        let told = (end.exit_code, end.reason.as_deref());
        assert_eq!(told, (0, Some("Completed")), "{name}");
        let status = pods.container("chain", &name).unwrap();
        assert_eq!(status.restart_count, 0, "{name}");
    }
    let ends = node.events_of("chain").await;
    let ends: Vec<_> = ends.iter().filter(|entry| entry.reason == "Died").collect();
    assert_eq!(ends.len(), 5);
    for end in ends {
        assert!(end.kernel_at.is_some(), "{end:?}");
    }
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    node.down().await;
}
