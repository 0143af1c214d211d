//! Manifests that are wrong, beside some that are right.

use std::time::Duration;

use agent::server::wire;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

async fn refusals(node: &Node) -> Vec<wire::SourceRefusal> {
    let status: wire::Status = node.get("/v1/status").await;
    status.agent.refusals
}

/// Waits until the file is refused; why.
async fn refused(node: &Node, file: &str) -> String {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let all = refusals(node).await;
        if let Some(refusal) = all.iter().find(|refusal| refusal.origin.ends_with(file)) {
            return refusal.message.clone();
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{file} is not refused: {all:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn bad_manifests_are_told_of_and_the_others_run_on() {
    let node = Node::builder().up().await;
    node.write("good.yaml", yaml::pod("good").container("app", STAY));
    node.until_running("good").await;
    let id = node.container_id("good", "app").await;
    let bad = yaml::pod("bad").container("app", STAY).to_string();
    let cases = [
        ("syntax.yaml", "apiVersion: v1\nkind: [Pod".to_owned(), ""),
        (
            "kind.yaml",
            bad.replace("\"Pod\"", "\"Deployment\""),
            "Deployment",
        ),
        (
            "field.yaml",
            bad.replace("\"image\":", "\"imago\":"),
            "imago",
        ),
        (
            "name.yaml",
            bad.replace("\"bad\"", "\"Bad_Name\""),
            "metadata.name",
        ),
        ("empty.yaml", String::new(), ""),
        (
            "policy.yaml",
            bad.replace("\"IfNotPresent\"", "\"Sometimes\""),
            "imagePullPolicy",
        ),
    ];
    for (file, text, _) in &cases {
        node.write(file, text);
    }
    std::os::unix::fs::symlink("/proc/self/mem", node.manifests.join("mem.yaml")).unwrap();
    for (file, _, word) in &cases {
        let message = refused(&node, file).await;
        assert!(
            message.contains(word) && !message.contains('\n'),
            "{file}: {message}"
        );
    }
    refused(&node, "mem.yaml").await;
    node.write("late.yaml", yaml::pod("late").container("app", STAY));
    node.until_running("late").await;
    assert_eq!(node.container_id("good", "app").await, id);
    for (file, _, _) in &cases {
        node.remove_manifest(file);
    }
    node.remove_manifest("mem.yaml");
    node.until_true("nothing is refused any more", SOON, async || {
        refusals(&node).await.is_empty()
    })
    .await;
    assert_eq!(node.pods().await.0.len(), 2);
    node.down().await;
}

#[tokio::test]
async fn a_pod_whose_manifest_becomes_invalid_runs_until_it_is_gone() {
    let node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let id = node.container_id("web", "app").await;
    node.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  na");
    refused(&node, "web.yaml").await;
    assert_eq!(node.container_id("web", "app").await, id);
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_true("the file is good again", SOON, async || {
        refusals(&node).await.is_empty()
    })
    .await;
    assert_eq!(node.container_id("web", "app").await, id);
    node.write("web.yaml", "broken: [");
    refused(&node, "web.yaml").await;
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    node.down().await;
}

#[tokio::test]
async fn of_two_files_with_one_pod_one_runs_and_the_other_is_named() {
    let node = Node::builder().up().await;
    node.write("second.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let id = node.container_id("web", "app").await;
    node.write("first.yaml", yaml::pod("web").container("app", STAY));
    let message = refused(&node, "first.yaml").await;
    assert!(
        message.contains("default/web-node is also in second.yaml"),
        "{message}"
    );
    let pods = node.pods().await;
    assert_eq!(pods.0.len(), 1, "{pods}");
    assert_eq!(node.container_id("web", "app").await, id);
    node.down().await;
}

#[tokio::test]
async fn pods_come_from_an_address_as_well() {
    use std::sync::{Arc, Mutex};

    let served = Arc::new(Mutex::new(
        yaml::pod("far").container("app", STAY).to_string(),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let answer = served.clone();
    let router = axum::Router::new().route(
        "/pods",
        axum::routing::get(async move || answer.lock().unwrap().clone()),
    );
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let node = Node::builder()
        .run()
        .args(&[
            "--http-check-frequency=1s",
            &format!("--manifest-url={url}"),
        ])
        .up()
        .await;
    node.write("near.yaml", yaml::pod("near").container("app", STAY));
    node.until_running("far").await;
    node.until_running("near").await;
    let near = node.container_id("near", "app").await;
    "no pod at all".clone_into(&mut served.lock().unwrap());
    refused(&node, &url).await;
    assert!(node.pods().await.running("far", "app").is_some());
    *served.lock().unwrap() = yaml::pod("farther").container("app", STAY).to_string();
    node.until_running("farther").await;
    node.until_gone("far").await;
    assert_eq!(node.container_id("near", "app").await, near);
    node.down().await;
}
