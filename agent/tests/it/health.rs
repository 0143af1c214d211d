//! What the node says of its own health, above all while the runtime is away.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

/// How soon trouble must show.
const SHOWN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_runtime_that_stops_is_told_by_readyz_alone_and_is_used_again() {
    let mut node = Node::builder()
        .external_containerd()
        .max_restart_period("1s")
        .up()
        .await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let pid = node.main_pid("web", "app").await;
    node.stop_runtime().await;
    let stopped = Instant::now();
    node.until_true("readyz fails", SHOWN, async || {
        assert_eq!(node.page("/healthz").await.0, 200);
        node.page("/readyz").await.0 == 500
    })
    .await;
    let (_, said) = node.page("/readyz").await;
    assert!(
        said.lines()
            .any(|line| line.starts_with("[-]runtime failed: ")),
        "{said}"
    );
    assert!(stopped.elapsed() < SHOWN);
    // An end that nobody can tell of but the kernel.
    crate::node::send(pid, Signal::KILL);
    assert_eq!(node.page("/healthz").await, (200, "ok".to_owned()));
    let (status, said) = node.page("/healthz?verbose").await;
    assert_eq!(status, 200);
    assert!(
        said.contains("[-]runtime failed: ") && said.ends_with("healthz check passed\n"),
        "{said}"
    );
    node.start_runtime().await;
    node.until_ready().await;
    let end = node
        .until("it runs again", SOON, |pods| {
            (pods.running("web", "app")?.restart_count == 1)
                .then(|| pods.last_end("web", "app").cloned())?
        })
        .await;
    assert_eq!(end.exit_code, 137);
    node.down().await;
}

#[tokio::test]
async fn a_runtime_that_hangs_is_told_and_the_agent_answers_on() {
    let node = Node::builder().external_containerd().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.pause_runtime().await;
    node.until_true("readyz fails", SHOWN, async || {
        assert_eq!(node.page("/healthz").await.0, 200);
        node.page("/readyz").await.0 == 500
    })
    .await;
    let asked = Instant::now();
    assert!(node.pods().await.running("web", "app").is_some());
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    node.resume_runtime().await;
    node.until_ready().await;
    node.write("late.yaml", yaml::pod("late").container("app", STAY));
    node.until_running("late").await;
    assert_eq!(node.container("web", "app").await.restart_count, 0);
    node.down().await;
}

#[tokio::test]
async fn run_waits_for_a_runtime_that_is_not_there() {
    let mut node = Node::builder()
        .run()
        .without_runtime()
        .manifest("web.yaml", yaml::pod("web").container("app", STAY))
        .up()
        .await;
    node.until_true("it says what it waits for", SHOWN, async || {
        let (status, said) = node.page("/readyz").await;
        status == 500 && said.contains("[-]runtime failed: waiting for the runtime at unix://")
    })
    .await;
    assert_eq!(node.page("/healthz").await, (200, "ok".to_owned()));
    node.start_runtime().await;
    node.until_ready().await;
    node.until_running("web").await;
    node.down().await;
}

#[tokio::test]
async fn a_containerd_of_the_agents_own_that_dies_is_started_again() {
    let node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let id = node.container_id("web", "app").await;
    let first = node.runtime_pid().await;
    crate::node::send(first, Signal::KILL);
    node.until_true("containerd runs again", SOON, async || {
        let status: agent::server::wire::Status = node.get("/v1/status").await;
        let pid = status.agent.pids.get("containerd");
        pid.is_some_and(|pid| i32::try_from(*pid) != Ok(first))
    })
    .await;
    node.until_ready().await;
    node.write("late.yaml", yaml::pod("late").container("app", STAY));
    node.until_running("late").await;
    assert_eq!(node.container_id("web", "app").await, id);
    assert_eq!(node.container("web", "app").await.restart_count, 0);
    node.down().await;
}

#[tokio::test]
async fn metrics_have_the_kubelets_names_and_skeps_own() {
    let node = Node::builder().max_restart_period("1s").up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.kill_main("web", "app", Signal::KILL).await;
    node.until("it runs again", SOON, |pods| {
        (pods.running("web", "app")?.restart_count == 1).then_some(())
    })
    .await;
    assert_eq!(node.metric("kubelet_started_pods_total", &[]).await, 1.0);
    assert_eq!(
        node.metric(
            "kubelet_started_containers_total",
            &[("container_type", "container")]
        )
        .await,
        2.0
    );
    node.until_true("the gauge follows", SOON, async || {
        node.metric("kubelet_desired_pods", &[("static", "true")])
            .await
            == 1.0
    })
    .await;
    assert!(node.metric("skep_kernel_events_total", &[]).await > 0.0);
    assert_eq!(node.metric("skep_kernel_events_lost_total", &[]).await, 0.0);
    assert!(node.metric("skep_event_to_sync_seconds_count", &[]).await > 0.0);
    assert!(node.metric("skep_runtime_lag_seconds_count", &[]).await > 0.0);
    let (status, text) = node.page("/metrics").await;
    assert_eq!(status, 200);
    for name in [
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_last_seen_seconds",
        "kubelet_pod_worker_duration_seconds_count",
        "kubelet_pod_start_duration_seconds_count",
        "kubelet_runtime_operations_total",
        "kubelet_runtime_operations_duration_seconds_count",
        "kubelet_running_pods",
        "kubelet_running_containers",
        "skep_pleg_listings_total",
        "skep_pleg_rereads_total",
    ] {
        let is_there = |line: &str| line.starts_with(name);
        assert!(text.lines().any(is_there), "{name} is missing");
    }
    node.down().await;
}
