//! All that is different on v2, and many memory kills.

use std::time::Duration;

use serde_json::json;

use crate::{
    files::{Cgroup, pod},
    node::{
        Node, SOON,
        memory_kills::{MemoryKills, until_killed_child_is_told, with_killed_child},
        yaml::STAY,
    },
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn each_of_100_memory_kills_is_told_as_one() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let load = MemoryKills {
        kills: 100,
        pods: 4,
        pod,
        patience: Duration::from_secs(240),
    };
    load.run(&node).await;
    node.down().await;
}

/// The kernel ends all of a container whose cgroup is a group to its memory killer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn a_childs_memory_kill_ends_the_whole_container_by_default() {
    let node = Node::builder().up().await;
    let parent = pod("parent").spec(json!({"restartPolicy": "Never"}));
    node.write("parent", with_killed_child(parent));
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
    node.write("parent", with_killed_child(pod("parent")));
    until_killed_child_is_told(&node, "parent").await;
    let cgroup = Cgroup::of(&node, "parent", "burstable/", "app").await;
    assert_eq!(cgroup.read(["memory.oom.group"]), ["0"]);
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
