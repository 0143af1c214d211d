//! A pod's life, and what its containers see.

use crate::node::{Node, yaml};

#[tokio::test]
async fn a_pod_runs_and_is_gone_with_its_manifest() {
    let node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", "sleep 1000"));
    node.until_running("web").await;
    let status = node.container("web", "app").await;
    assert_eq!(status.restart_count, 0);
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    node.down().await;
}
