//! What happens when a container ends: exit codes, restart policies, pauses, replacement.

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::json;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

/// (policy, exit code) and what becomes of the pod: its phase, or none where it restarts.
const MATRIX: [(&str, i32, Option<&str>); 6] = [
    ("Always", 0, None),
    ("Always", 3, None),
    ("OnFailure", 0, Some("Succeeded")),
    ("OnFailure", 7, None),
    ("Never", 0, Some("Succeeded")),
    ("Never", 255, Some("Failed")),
];

#[tokio::test]
async fn the_restart_policy_and_the_exit_code_decide() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let name = |policy: &str, code: i32| format!("{}-{code}", policy.to_lowercase());
    for (policy, code, _) in MATRIX {
        let pod = name(policy, code);
        let manifest = yaml::pod(&pod)
            .spec(json!({"restartPolicy": policy}))
            .container("app", &format!("exit {code}"));
        node.write(&format!("{pod}.yaml"), manifest);
    }
    for (policy, code, phase) in MATRIX {
        let pod = name(policy, code);
        let end = node
            .until(&format!("{pod} shows its end"), SOON, |pods| match phase {
                Some(phase) if pods.phase(&pod) == Some(phase) => {
                    pods.terminated(&pod, "app").cloned()
                }
                Some(_) => None,
                None => {
                    let status = pods.container(&pod, "app")?;
                    (status.restart_count >= 2).then(|| pods.last_end(&pod, "app").cloned())?
                }
            })
            .await;
        assert_eq!(end.exit_code, code, "{pod}");
        let reason = if code == 0 { "Completed" } else { "Error" };
        assert_eq!(end.reason.as_deref(), Some(reason), "{pod}");
        if phase.is_some() {
            assert_eq!(node.container(&pod, "app").await.restart_count, 0, "{pod}");
        } else {
            assert_eq!(
                node.status(&pod).await.phase.as_deref(),
                Some("Running"),
                "{pod}"
            );
        }
    }
    node.down().await;
}

#[tokio::test]
async fn a_crash_loop_pauses_10_and_then_20_seconds_to_the_moment() {
    let node = Node::builder().up().await;
    node.write("crash.yaml", yaml::pod("crash").container("app", "exit 3"));
    node.until("it restarted 3 times", SOON, |pods| {
        (pods.container("crash", "app")?.restart_count == 3
            && pods.waiting("crash", "app") == Some("CrashLoopBackOff"))
        .then_some(())
    })
    .await;
    node.until_true("the fourth end is told", SOON, async || {
        let events = node.events_of("crash").await;
        events.iter().filter(|entry| entry.reason == "Died").count() == 4
    })
    .await;
    let events = node.events_of("crash").await;
    let times = |reason: &str| -> Vec<Timestamp> {
        let of = events.iter().filter(|entry| entry.reason == reason);
        of.map(|entry| entry.kernel_at.unwrap_or(entry.agent_at))
            .collect()
    };
    let (starts, ends) = (times("Started"), times("Died"));
    assert_eq!((starts.len(), ends.len()), (4, 4), "{events:#?}");
    let pauses: Vec<_> = ends
        .iter()
        .zip(&starts[1..])
        .map(|(end, start)| start.duration_since(*end).as_secs_f64())
        .collect();
    for (pause, expected) in pauses.iter().zip([0.0, 10.0, 20.0]) {
        // Creation takes its time on a busy machine.
        assert!((expected..expected + 3.0).contains(pause), "{pauses:?}");
    }
    let back_off = node.until_event("crash", "BackOff").await;
    let expected = "Back-off restarting failed container app in pod crash-node_default";
    assert!(
        back_off.message.starts_with(expected),
        "{}",
        back_off.message
    );
    node.down().await;
}

#[tokio::test]
async fn a_killed_main_process_is_replaced_exactly_once() {
    let node = Node::builder().max_restart_period("1s").up().await;
    node.write(
        "web.yaml",
        yaml::pod("web")
            .container("app", STAY)
            .container("other", STAY),
    );
    node.until_running("web").await;
    let other = node.container_id("web", "other").await;
    for round in 1..=3 {
        node.kill_main("web", "app", Signal::KILL).await;
        let end = node
            .until("it runs again", SOON, |pods| {
                let status = pods.running("web", "app")?;
                (status.restart_count == round).then(|| pods.last_end("web", "app").cloned())?
            })
            .await;
        assert_eq!(end.exit_code, 137);
        assert_eq!(end.reason.as_deref(), Some("Error"));
    }
    // A second restart of one end would show by now.
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_pleg_missed_total", &[]).await, 0.0);
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    assert_eq!(node.container("web", "app").await.restart_count, 3);
    assert_eq!(node.container_id("web", "other").await, other);
    assert_eq!(node.container("web", "other").await.restart_count, 0);
    node.down().await;
}

#[tokio::test]
async fn a_signal_shows_in_the_exit_code() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("web")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", "trap 'exit 42' USR1; sleep 100000 & wait");
    node.write("web.yaml", manifest);
    node.until_running("web").await;
    node.kill_main("web", "app", Signal::USR1).await;
    let end = node
        .until("it ended", SOON, |pods| {
            pods.terminated("web", "app").cloned()
        })
        .await;
    assert_eq!(end.exit_code, 42);
    let died = node.until_event("web", "Died").await;
    assert!(died.kernel_at.is_some(), "{died:?}");
    assert!(died.runtime_at.is_some(), "{died:?}");
    node.down().await;
}

#[tokio::test]
async fn an_edited_manifest_is_a_new_pod_that_starts_after_the_old_one() {
    let node = Node::builder().up().await;
    let record = node.dir.join("record");
    let script = |word: &str| {
        format!(
            "echo {word} starts >> /record/r; trap 'sleep 0.5; echo {word} ends >> /record/r; exit 0' TERM; sleep 100000 & wait"
        )
    };
    let manifest = |word: &str| {
        yaml::pod("web")
            .spec(json!({"volumes": [{"name": "record", "hostPath": {"path": record, "type": "DirectoryOrCreate"}}]}))
            .container("app", &script(word))
            .with(json!({"volumeMounts": [{"name": "record", "mountPath": "/record"}]}))
    };
    node.write("web.yaml", manifest("old"));
    node.until_running("web").await;
    let old = node
        .pods()
        .await
        .pod("web")
        .unwrap()
        .object
        .metadata
        .uid
        .clone();
    let read = || std::fs::read_to_string(record.join("r")).unwrap_or_default();
    node.until_true("the old one has started", SOON, async || {
        read().contains("old starts")
    })
    .await;
    node.write("web.yaml", manifest("new"));
    node.until("the new one runs", SOON, |pods| {
        pods.running("web", "app")?;
        (pods.pod("web")?.object.metadata.uid != old).then_some(())
    })
    .await;
    node.until_true("the new one has started", SOON, async || {
        read().contains("new starts")
    })
    .await;
    assert_eq!(read(), "old starts\nold ends\nnew starts\n");
    assert_eq!(node.container("web", "app").await.restart_count, 0);
    node.down().await;
}

#[tokio::test]
async fn an_image_that_cannot_be_had_is_told_and_then_used_when_named_right() {
    let node = Node::builder().up().await;
    let missing = yaml::pod("web")
        .container("app", STAY)
        .with(json!({"image": "skep.local/missing:1", "imagePullPolicy": "Never"}));
    node.write("web.yaml", missing);
    node.until("it says why", SOON, |pods| {
        (pods.waiting("web", "app") == Some("ErrImageNeverPull")).then_some(())
    })
    .await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.down().await;
}
