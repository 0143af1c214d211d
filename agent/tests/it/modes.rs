//! The same behaviour, whichever way the agent learns of changes.

use std::collections::BTreeSet;

use rstest::rstest;
use rustix::process::Signal;
use serde_json::json;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

/// An ordinary thread's priority, as `proc_pid_stat(5)` tells it.
const ORDINARY: i64 = 20;

/// Of all, the part that depends on how changes become known.
pub(crate) async fn behaves(node: Node, mode: &str) {
    // The stream may take a moment to connect.
    node.until_true("the mode is in force", SOON, async || {
        node.metric("skep_pleg_mode", &[("mode", mode)]).await == 1.0
    })
    .await;
    node.write(
        "web.yaml",
        yaml::pod("web")
            .init("one", "true")
            .init("two", "true")
            .container("app", STAY),
    );
    node.write(
        "job.yaml",
        yaml::pod("job")
            .spec(json!({"restartPolicy": "OnFailure"}))
            .sidecar("side", STAY)
            .container("app", "sleep 0.2; exit 0"),
    );
    node.write(
        "hog.yaml",
        yaml::pod("hog")
            .spec(json!({"restartPolicy": "Never"}))
            .container("app", "exec memhog 256 60")
            .with(json!({"resources": {"limits": {"memory": "32Mi"}}})),
    );
    node.until_running("web").await;
    for round in 1..=2 {
        node.kill_main("web", "app", Signal::KILL).await;
        let end = node
            .until("it runs again", SOON, |pods| {
                let status = pods.running("web", "app")?;
                (status.restart_count == round).then(|| pods.last_end("web", "app").cloned())?
            })
            .await;
        assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("Error")));
    }
    node.until("the job succeeded", SOON, |pods| {
        (pods.phase("job") == Some("Succeeded")).then_some(())
    })
    .await;
    let end = node
        .until("the hog failed", SOON, |pods| {
            (pods.phase("hog") == Some("Failed")).then(|| pods.terminated("hog", "app").cloned())?
        })
        .await;
    assert_eq!(end.exit_code, 137);
    // Without the kernel's word the reason is the runtime's, and containerd gives "Error" where it
    // hears of the end before it hears of the memory kill.
    let mut reasons = vec!["OOMKilled"];
    reasons.extend((mode != "kernel").then_some("Error"));
    let reason = end.reason.as_deref().unwrap_or_default();
    assert!(reasons.contains(&reason), "{reason:?} in mode {mode}");
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_pleg_missed_total", &[]).await, 0.0);
    assert_eq!(node.metric("skep_pleg_mode", &[("mode", mode)]).await, 1.0);
    node.down().await;
}

#[rstest]
#[case::kernel("kernel")]
#[case::stream("stream")]
#[case::listing("listing")]
#[tokio::test]
async fn pods_start_restart_end_and_go(#[case] mode: &str) {
    let node = Node::builder()
        .mode(mode)
        .max_restart_period("1s")
        .up()
        .await;
    behaves(node, mode).await;
}

#[tokio::test]
async fn run_does_as_up_does() {
    let node = Node::builder().run().max_restart_period("1s").up().await;
    behaves(node, "kernel").await;
}

#[tokio::test]
async fn an_overflow_of_the_kernels_buffer_is_made_up_for() {
    let node = Node::builder().ring_bytes(4096).up().await;
    for number in 0..4 {
        let mut pod = yaml::pod(&format!("p{number}")).spec(json!({"restartPolicy": "Never"}));
        for container in 0..5 {
            let code = 1 + number * 5 + container;
            let script = format!(
                "while [ ! -e /go/go ]; do sleep 0.1; done; for i in $(seq 20); do true & done; exit {code}"
            );
            pod = pod
                .container(&format!("c{container}"), &script)
                .with(json!({"volumeMounts": [{"name": "go", "mountPath": "/go"}]}));
        }
        let go = json!({"volumes": [{"name": "go", "hostPath": {"path": node.dir.join("go"), "type": "DirectoryOrCreate"}}]});
        node.write(&format!("p{number}.yaml"), pod.spec(go));
    }
    for number in 0..4 {
        node.until_running(&format!("p{number}")).await;
    }
    node.pause_agent();
    std::fs::write(node.dir.join("go/go"), "").unwrap();
    node.until_true("all have ended", SOON, async || {
        let pods = node.client.list_pods().await.unwrap();
        pods.iter()
            .flat_map(|pod| &pod.containers)
            .all(|container| container.state == agent::cri::ListedState::Exited)
    })
    .await;
    node.resume_agent();
    for number in 0..4 {
        let pod = format!("p{number}");
        for container in 0..5 {
            let name = format!("c{container}");
            let end = node
                .until(&format!("{pod} {name} has ended"), SOON, |pods| {
                    pods.terminated(&pod, &name).cloned()
                })
                .await;
            assert_eq!(end.exit_code, 1 + number * 5 + container);
        }
        node.until(&format!("{pod} failed"), SOON, |pods| {
            (pods.phase(&pod) == Some("Failed")).then_some(())
        })
        .await;
    }
    node.down().await;
}

#[tokio::test]
async fn what_others_remove_is_known_without_a_listing() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("done")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", "exit 5");
    node.write("done.yaml", manifest);
    let end = node
        .until("it failed", SOON, |pods| {
            (pods.phase("done") == Some("Failed"))
                .then(|| pods.terminated("done", "app").cloned())?
        })
        .await;
    // The kernel tells before the runtime has the end on record, and until then that refuses.
    let told = node.until_event("done", "Died").await;
    assert!(told.runtime_known_at.is_some(), "{told:?}");
    let id = end.container_id.unwrap();
    let id = id.strip_prefix("containerd://").unwrap().into();
    let exited = async || {
        let exited = [("container_state", "exited")];
        node.metric("kubelet_running_containers", &exited).await
    };
    assert_eq!(exited().await, 1.0);
    node.client.remove_container(&id).await.unwrap();
    node.until_true("its removal is known", SOON, async || exited().await == 0.0)
        .await;
    assert_eq!(node.metric("skep_pleg_missed_total", &[]).await, 0.0);
    node.down().await;
}

/// On a busy node an ordinary thread waits for a processor.
#[tokio::test]
async fn the_threads_that_tell_of_ends_run_before_ordinary_ones() {
    let node = Node::builder().up().await;
    let status: agent::server::wire::Status = node.get("/v1/status").await;
    let pid = status.agent.pids["agent"].try_into().unwrap();
    let agent = procfs::process::Process::new(pid).unwrap();
    let ahead = || -> BTreeSet<String> {
        // One may end meanwhile.
        let stats = agent
            .tasks()
            .unwrap()
            .filter_map(|task| task.ok()?.stat().ok());
        let ahead = stats.filter(|stat| stat.priority < ORDINARY);
        ahead.map(|stat| stat.comm).collect()
    };
    let expected = ["kernel-events", "pleg", "sync loop"].map(str::to_owned);
    node.until_true("these three and no other", SOON, async || {
        ahead() == BTreeSet::from(expected.clone())
    })
    .await;
    node.down().await;
}
