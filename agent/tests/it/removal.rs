//! A pod's end when its manifest goes: first SIGTERM, then SIGKILL, and nothing stays.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

#[tokio::test]
async fn a_container_that_ignores_sigterm_is_killed_after_its_grace() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("deaf")
        .spec(json!({"terminationGracePeriodSeconds": 3}))
        .container("app", "trap 'echo heard' TERM; while :; do sleep 0.2; done");
    node.write("deaf.yaml", manifest);
    node.until_running("deaf").await;
    let pid = node.main_pid("deaf", "app").await;
    node.remove_manifest("deaf.yaml");
    let asked = Instant::now();
    node.until_gone("deaf").await;
    let took = asked.elapsed();
    let (least, most) = (Duration::from_secs(3), Duration::from_secs(9));
    assert!((least..most).contains(&took), "{took:?}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let killing = node.until_event("deaf", "Killing").await;
    assert_eq!(killing.message, "Stopping container app");
    node.down().await;
}

#[tokio::test]
async fn a_container_that_hears_sigterm_ends_at_once() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("polite")
        .spec(json!({"terminationGracePeriodSeconds": 50}))
        .container("app", STAY);
    node.write("polite.yaml", manifest);
    node.until_running("polite").await;
    node.remove_manifest("polite.yaml");
    let asked = Instant::now();
    node.until_gone("polite").await;
    assert!(
        asked.elapsed() < Duration::from_secs(10),
        "{:?}",
        asked.elapsed()
    );
    node.down().await;
}

#[tokio::test]
async fn nothing_of_a_removed_pod_stays() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("web")
        .spec(json!({"volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]}))
        .init("prepare", "true")
        .container("app", STAY)
        .with(json!({"volumeMounts": [{"name": "memory", "mountPath": "/memory", "subPath": "part"}]}));
    node.write("web.yaml", manifest);
    node.until_running("web").await;
    let uid = node
        .pods()
        .await
        .pod("web")
        .unwrap()
        .object
        .metadata
        .uid
        .clone()
        .unwrap();
    let dir = node.root.join("pods").join(&uid);
    let logs = node.root.join(format!("log/pods/default_web-node_{uid}"));
    let cgroup = node.pod_cgroup("web", "besteffort/").await;
    assert!(dir.is_dir() && logs.is_dir());
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    node.until_true("its folder, mounts and cgroup are gone", SOON, async || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_cgroup_there = std::fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .any(|hierarchy| hierarchy.unwrap().path().join(&cgroup).exists());
        !dir.exists() && !mounts.contains(&uid) && !is_cgroup_there
    })
    .await;
    // Sandbox, containers and logs are collected by the minute's round.
    let limit = Duration::from_secs(100);
    node.until_true("the runtime has nothing of it", limit, async || {
        node.client.list_pods().await.unwrap().is_empty() && !logs.exists()
    })
    .await;
    node.down().await;
}

#[tokio::test]
async fn pods_removed_while_they_start_leave_nothing() {
    let node = Node::builder().up().await;
    let delays = [0, 20, 60, 120, 200, 300, 450, 700].map(Duration::from_millis);
    let start = Instant::now();
    for number in 0..delays.len() {
        let name = format!("p{number}");
        let manifest = yaml::pod(&name)
            .init("prepare", "true")
            .container("app", STAY);
        node.write(&format!("{name}.yaml"), manifest);
    }
    for (number, delay) in delays.into_iter().enumerate() {
        // The delay is what is tested here.
        tokio::time::sleep_until(start + delay).await;
        node.remove_manifest(&format!("p{number}.yaml"));
    }
    node.until("all are gone", SOON, |pods| pods.0.is_empty().then_some(()))
        .await;
    node.until_true("nothing runs", SOON, async || {
        let pods = node.client.list_pods().await.unwrap();
        !pods.iter().any(|pod| {
            let runs = |state| state == agent::cri::ListedState::Running;
            pod.containers.iter().any(|container| runs(container.state))
                || pod.sandboxes.iter().any(|sandbox| sandbox.is_ready)
        })
    })
    .await;
    node.down().await;
}

#[tokio::test]
async fn down_while_pods_start_leaves_nothing() {
    let node = Node::builder().up().await;
    for number in 0..6 {
        let name = format!("p{number}");
        let manifest = yaml::pod(&name)
            .init("prepare", "sleep 0.3")
            .container("app", STAY);
        node.write(&format!("{name}.yaml"), manifest);
    }
    node.until("one has begun", SOON, |pods| {
        pods.0
            .iter()
            .any(|pod| {
                pod.object
                    .status
                    .as_ref()
                    .is_some_and(|status| status.pod_ip.is_some())
            })
            .then_some(())
    })
    .await;
    node.down().await;
}

#[tokio::test]
async fn a_pod_more_than_the_node_takes_is_refused_and_the_others_run_on() {
    let node = Node::builder()
        .run()
        .config(json!({"maxPods": 1}))
        .up()
        .await;
    node.write("first.yaml", yaml::pod("first").container("app", STAY));
    node.until_running("first").await;
    node.write("second.yaml", yaml::pod("second").container("app", STAY));
    let message = node
        .until("the second is refused", SOON, |pods| {
            let status = pods.pod("second")?.object.status.as_ref()?;
            (status.reason.as_deref() == Some("OutOfpods")).then(|| status.message.clone())
        })
        .await;
    let expected = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, \
                    used: 1, capacity: 1";
    assert_eq!(message.as_deref(), Some(expected));
    node.until_running("first").await;
    node.remove_manifest("second.yaml");
    node.until_gone("second").await;
    node.down().await;
}

#[tokio::test]
async fn an_agent_that_ends_does_not_wait_for_a_long_grace() {
    let mut node = Node::builder().up().await;
    let manifest = yaml::pod("deaf")
        .spec(json!({"terminationGracePeriodSeconds": 600}))
        .container("app", "trap 'echo heard' TERM; while :; do sleep 0.2; done");
    node.write("deaf.yaml", manifest);
    node.until_running("deaf").await;
    node.remove_manifest("deaf.yaml");
    node.until_event("deaf", "Killing").await;
    let told = Instant::now();
    node.stop_agent().await;
    let took = told.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    // The next start finds a pod that nobody wants.
    node.start_agent_again().await;
    node.until_true("the pod is stopped", SOON, async || {
        let pods = node.client.list_pods().await.unwrap();
        pods.iter()
            .flat_map(|pod| &pod.containers)
            .all(|container| container.state == agent::cri::ListedState::Exited)
    })
    .await;
    node.down().await;
}

#[tokio::test]
async fn down_says_that_the_runtime_stands_still_and_goes_on_when_it_is_back() {
    let mut node = Node::builder().external_containerd().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.pause_runtime().await;
    let output = node.skep(&["down"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let expected = "1 pod is left; the agent goes on once the runtime answers";
    assert!(said.contains(expected), "{said}");
    node.resume_runtime().await;
    // What was asked for is still to be done.
    let ended = node.agent_end().await;
    assert!(ended.success(), "{ended}");
    node.down().await;
}

#[tokio::test]
async fn down_without_an_agent_says_that_the_runtime_stands_still() {
    let mut node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let runtime = node.runtime_pid().await;
    node.kill_agent().await;
    crate::node::send(runtime, Signal::STOP);
    let output = node.skep(&["down"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("stands still: no answer within 10 seconds"),
        "{said}"
    );
    crate::node::send(runtime, Signal::CONT);
    let output = node.skep(&["down"]).await;
    let said = crate::node::printed(&output);
    assert!(said.contains("pod default/web-node stopped"), "{said}");
    node.down().await;
}
