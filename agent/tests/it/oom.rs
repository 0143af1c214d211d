//! Memory kills: of a container's main process, and of another of its processes.

use serde_json::{Value, json};

use crate::node::{Node, SOON, yaml};

fn limit(memory: &str) -> Value {
    json!({"resources": {"limits": {"memory": memory}}})
}

#[tokio::test]
async fn a_memory_kill_of_the_main_process_is_told_and_it_is_restarted() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let manifest = yaml::pod("hog")
        .container("app", "exec memhog 256 60")
        .with(limit("32Mi"));
    node.write("hog.yaml", manifest);
    let end = node
        .until("it was killed twice", SOON, |pods| {
            let status = pods.container("hog", "app")?;
            (status.restart_count >= 2).then(|| pods.last_end("hog", "app").cloned())?
        })
        .await;
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (137, Some("OOMKilled"))
    );
    let told = node.until_event("hog", "OomKilled").await;
    assert!(
        told.message
            .contains("the container's limit of 32Mi was hit"),
        "{}",
        told.message
    );
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    node.down().await;
}

#[tokio::test]
async fn a_killed_child_is_told_with_its_limit_and_the_container_goes_on() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("parent")
        .container(
            "app",
            "memhog 256 60; echo child ended with $?; sleep 100000 & wait",
        )
        .with(limit("32Mi"));
    node.write("parent.yaml", manifest);
    let told = node.until_event("parent", "ChildOomKilled").await;
    assert!(
        told.message.contains("(memhog) of container \"app\""),
        "{}",
        told.message
    );
    assert!(
        told.message
            .ends_with("the container's limit of 32Mi was hit"),
        "{}",
        told.message
    );
    node.until_true("the container goes on", SOON, async || {
        let output = node.skep(&["logs", "parent"]).await;
        String::from_utf8_lossy(&output.stdout).contains("child ended with 137")
    })
    .await;
    let status = node.container("parent", "app").await;
    assert_eq!(status.restart_count, 0);
    assert!(status.state.unwrap().running.is_some());
    let kills = node
        .metric("skep_child_oom_kills_total", &[("limit", "container")])
        .await;
    assert_eq!(kills, 1.0);
    node.down().await;
}

#[tokio::test]
async fn a_memory_kill_fails_a_pod_that_never_restarts() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("hog")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", "exec memhog 256 60")
        .with(limit("32Mi"));
    node.write("hog.yaml", manifest);
    let end = node
        .until("it failed", SOON, |pods| {
            (pods.phase("hog") == Some("Failed")).then(|| pods.terminated("hog", "app").cloned())?
        })
        .await;
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (137, Some("OOMKilled"))
    );
    assert_eq!(node.container("hog", "app").await.restart_count, 0);
    node.down().await;
}
