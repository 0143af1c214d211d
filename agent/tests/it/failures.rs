//! Containers that cannot be started, and what the node says of them.

use serde_json::json;

use crate::node::{
    Node, SOON,
    yaml::{self, Manifest, STAY},
};

/// The pod's manifest, its container's waiting reason, and an event with a part of its message.
fn cases(node: &Node) -> Vec<(Manifest, &'static str, &'static str, &'static str)> {
    let file = node.dir.join("file");
    std::fs::write(&file, "").unwrap();
    vec![
        (
            yaml::pod("unpulled")
                .container("app", STAY)
                .with(json!({"image": "127.0.0.1:1/none:1", "imagePullPolicy": "Always"})),
            "ImagePullBackOff",
            "Failed",
            "127.0.0.1:1/none:1",
        ),
        (
            yaml::pod("badname")
                .container("app", STAY)
                .with(json!({"image": "Bad//Name:1"})),
            "InvalidImageName",
            "InspectFailed",
            "Bad//Name:1",
        ),
        (
            yaml::pod("root")
                .container("app", STAY)
                .with(json!({"securityContext": {"runAsNonRoot": true}})),
            "CreateContainerConfigError",
            "Failed",
            "container has runAsNonRoot and image will run as root",
        ),
        (
            yaml::pod("nodir")
                .container("app", STAY)
                .with(json!({"volumeMounts": [{"name": "dir", "mountPath": "/dir"}]}))
                .spec(json!({"volumes": [{"name": "dir", "hostPath": {"path": file, "type": "Directory"}}]})),
            "ContainerCreating",
            "FailedMount",
            "is not a directory",
        ),
        (
            yaml::pod("nocommand")
                .container("app", STAY)
                .with(json!({"command": ["/no/such/program"]})),
            "CrashLoopBackOff",
            "Failed",
            "/no/such/program",
        ),
    ]
}

#[tokio::test]
async fn what_cannot_start_says_why_and_the_others_run() {
    let node = Node::builder().up().await;
    let cases = cases(&node);
    for (manifest, reason, _, _) in &cases {
        node.write(&format!("{}.yaml", reason.to_lowercase()), manifest);
    }
    node.write("good.yaml", yaml::pod("good").container("app", STAY));
    node.until_running("good").await;
    for ((_, reason, event, message), pod) in
        cases
            .iter()
            .zip(["unpulled", "badname", "root", "nodir", "nocommand"])
    {
        node.until(&format!("{pod} waits for {reason}"), SOON, |pods| {
            (pods.waiting(pod, "app") == Some(*reason)).then_some(())
        })
        .await;
        node.until_true(
            &format!("{pod} has {event} with {message:?}"),
            SOON,
            async || {
                let events = node.events_of(pod).await;
                events
                    .iter()
                    .any(|entry| entry.reason == *event && entry.message.contains(message))
            },
        )
        .await;
    }
    // Of what was never started the runtime's record stays.
    let pods = node.pods().await;
    let end = pods.last_end("nocommand", "app").unwrap();
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (128, Some("StartError"))
    );
    node.down().await;
}
