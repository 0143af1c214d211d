//! Init containers and sidecars: their order at start and at end.

use serde_json::{Value, json};

use crate::node::{
    Node, SOON,
    yaml::{self, Manifest, STAY},
};

/// A folder of the host in which containers note what they do.
fn recording(node: &Node, manifest: Manifest) -> Manifest {
    let path = node.dir.join("record");
    manifest.spec(json!({"volumes": [{"name": "record", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]}))
}

fn mount() -> Value {
    json!({"volumeMounts": [{"name": "record", "mountPath": "/record"}]})
}

fn record(node: &Node) -> String {
    std::fs::read_to_string(node.dir.join("record/r")).unwrap_or_default()
}

#[tokio::test]
async fn init_containers_run_one_after_the_other_before_the_others() {
    let node = Node::builder().up().await;
    let note = |word: &str| {
        format!("echo {word} starts >> /record/r; sleep 0.3; echo {word} ends >> /record/r")
    };
    let manifest = yaml::pod("chain")
        .init("one", &note("one"))
        .with(mount())
        .init("two", &note("two"))
        .with(mount())
        .container("app", &format!("echo app starts >> /record/r; {STAY}"))
        .with(mount());
    node.write("chain.yaml", recording(&node, manifest));
    node.until_running("chain").await;
    node.until_true("the app has started", SOON, async || {
        record(&node).contains("app")
    })
    .await;
    assert_eq!(
        record(&node),
        "one starts\none ends\ntwo starts\ntwo ends\napp starts\n"
    );
    let pods = node.pods().await;
    for name in ["one", "two"] {
        let end = pods.terminated("chain", name).unwrap();
        assert_eq!(
            (end.exit_code, end.reason.as_deref()),
            (0, Some("Completed"))
        );
        assert_eq!(pods.container("chain", name).unwrap().restart_count, 0);
    }
    node.down().await;
}

#[tokio::test]
async fn an_init_container_that_fails_is_tried_again_and_holds_the_others_back() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let manifest = yaml::pod("stuck")
        .init(
            "fail",
            "echo try >> /record/r; [ $(wc -l < /record/r) -ge 3 ]",
        )
        .with(mount())
        .container("app", &format!("echo app >> /record/r; {STAY}"))
        .with(mount());
    node.write("stuck.yaml", recording(&node, manifest));
    node.until("it has failed", SOON, |pods| {
        let ended = pods
            .last_end("stuck", "fail")
            .or(pods.terminated("stuck", "fail"));
        ended.filter(|end| end.exit_code == 1)?;
        assert_ne!(pods.phase("stuck"), Some("Running"));
        Some(())
    })
    .await;
    node.until_running("stuck").await;
    node.until_true("the app has started", SOON, async || {
        record(&node).contains("app")
    })
    .await;
    assert_eq!(record(&node), "try\ntry\ntry\napp\n");
    node.down().await;
}

#[tokio::test]
async fn an_init_container_that_fails_fails_a_pod_that_never_restarts() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("failed")
        .spec(json!({"restartPolicy": "Never"}))
        .init("fail", "exit 9")
        .container("app", STAY);
    node.write("failed.yaml", manifest);
    node.until("it failed", SOON, |pods| {
        (pods.phase("failed") == Some("Failed")).then_some(())
    })
    .await;
    let pods = node.pods().await;
    assert_eq!(pods.terminated("failed", "fail").unwrap().exit_code, 9);
    assert_eq!(pods.waiting("failed", "app"), Some("PodInitializing"));
    node.down().await;
}

#[tokio::test]
async fn a_sidecar_starts_before_the_containers_and_ends_after_them() {
    let node = Node::builder().up().await;
    let sidecar = "echo sidecar starts >> /record/r; \
                   trap 'echo sidecar ends >> /record/r; exit 0' TERM; sleep 100000 & wait";
    let manifest = yaml::pod("job")
        .spec(json!({"restartPolicy": "Never"}))
        .sidecar("side", sidecar)
        .with(mount())
        .init("between", "echo between >> /record/r")
        .with(mount())
        .container(
            "app",
            "echo app starts >> /record/r; sleep 0.5; echo app ends >> /record/r",
        )
        .with(mount());
    // `spec` replaces only what it names.
    node.write("job.yaml", recording(&node, manifest));
    node.until("the job is done", SOON, |pods| {
        (pods.phase("job") == Some("Succeeded")).then_some(())
    })
    .await;
    assert_eq!(
        record(&node),
        "sidecar starts\nbetween\napp starts\napp ends\nsidecar ends\n"
    );
    node.down().await;
}

#[tokio::test]
async fn at_removal_sidecars_end_in_reverse_order_after_the_containers() {
    let node = Node::builder().up().await;
    let note = |word: &str| {
        format!(
            "echo {word} starts >> /record/r; trap 'sleep 0.2; echo {word} ends >> /record/r; exit 0' TERM; sleep 100000 & wait"
        )
    };
    let manifest = yaml::pod("web")
        .spec(json!({"terminationGracePeriodSeconds": 20}))
        .sidecar("one", &note("one"))
        .with(mount())
        .sidecar("two", &note("two"))
        .with(mount())
        .container("app", &note("app"))
        .with(mount());
    node.write("web.yaml", recording(&node, manifest));
    node.until_running("web").await;
    node.until_true("the app has started", SOON, async || {
        record(&node).contains("app")
    })
    .await;
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    assert_eq!(
        record(&node),
        "one starts\ntwo starts\napp starts\napp ends\ntwo ends\none ends\n"
    );
    node.down().await;
}
