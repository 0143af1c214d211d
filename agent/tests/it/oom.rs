//! Memory kills: of a container's main process, and of another of its processes.

use serde_json::json;

use crate::node::{
    Node, SOON,
    memory_kills::{limit, until_killed_child_is_told, with_killed_child},
    yaml,
};

#[tokio::test]
async fn a_memory_kill_of_the_main_process_is_told_and_it_is_restarted() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let manifest = yaml::pod("hog")
        .container("app", "exec memhog 256 60")
        .with(limit());
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
    node.write("parent.yaml", with_killed_child(yaml::pod("parent")));
    until_killed_child_is_told(&node, "parent").await;
    node.down().await;
}

#[tokio::test]
async fn a_memory_kill_fails_a_pod_that_never_restarts() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("hog")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", "exec memhog 256 60")
        .with(limit());
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
