//! The commands, as people type them, on a node that runs.

use std::{process::Stdio, time::Duration};

use tokio::time::timeout;

use crate::node::{
    NAME, Node, SOON, printed,
    yaml::{self, STAY},
};

#[tokio::test]
async fn pods_exec_and_events_tell_of_a_running_pod() {
    let node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let table = printed(&node.skep(&["pods"]).await);
    let line: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        line[..5],
        ["default", "web-node", "1/1", "Running", "0"],
        "{table}"
    );
    assert_eq!(line[7], NAME, "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&node.skep(&["pods", "-o", "json"]).await)).unwrap();
    assert_eq!(json.pointer("/items/0/metadata/name").unwrap(), "web-node");
    let containers = printed(&node.skep(&["pods", "-c", "web"]).await);
    assert!(
        containers.lines().nth(1).unwrap().contains(" app "),
        "{containers}"
    );

    let output = node
        .skep(&[
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 7",
        ])
        .await;
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "err\n");
    let output = node.skep(&["exec", "web", "--", "no-such-program"]).await;
    assert!(!output.status.success());

    let events = printed(&node.skep(&["events", "web"]).await);
    assert!(
        events.contains("Started container app") || events.contains("Container started"),
        "{events}"
    );
    let unknown = node.skep(&["logs", "wep"]).await;
    assert_eq!(
        String::from_utf8_lossy(&unknown.stderr),
        "skep: no pod \"wep\"; there is default/web-node\n"
    );
    node.down().await;
}

#[tokio::test]
async fn logs_are_shown_in_part_from_before_and_as_they_come() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let script = "for i in 1 2 3 4 5; do echo line $i; done; \
                  while [ ! -e /tmp/go ]; do sleep 0.1; done; echo last; exit 4";
    node.write("web.yaml", yaml::pod("web").container("app", script));
    node.until_running("web").await;
    let logs = async |args: &[&str]| {
        let args: Vec<_> = ["logs", "web"].iter().chain(args).copied().collect();
        printed(&node.skep(&args).await)
    };
    node.until_true("all lines are there", SOON, async || {
        logs(&[]).await.contains("line 5")
    })
    .await;
    assert_eq!(logs(&["--tail", "2"]).await, "line 4\nline 5\n");
    assert_eq!(logs(&["--since", "1h", "--tail", "1"]).await, "line 5\n");
    assert_eq!(logs(&["--since", "2038-01-01T00:00:00Z"]).await, "");
    let stamped = logs(&["--timestamps", "--tail", "1"]).await;
    let (time, line) = stamped.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{stamped}");
    assert_eq!(line, "line 5\n");
    let output = node.skep(&["logs", "web", "-p"]).await;
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("previous terminated container \"app\" in pod \"web-node\" not found"),
        "{output:?}"
    );

    let following = node
        .skep_command(&["logs", "web", "-f", "--tail", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    node.sh("web", "touch /tmp/go").await;
    let output = timeout(SOON, following.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(printed(&output), "line 5\nlast\n");
    node.until("it runs again", SOON, |pods| {
        (pods.running("web", "app")?.restart_count == 1).then_some(())
    })
    .await;
    assert_eq!(logs(&["-p", "--tail", "1"]).await, "last\n");
    node.down().await;
}

#[tokio::test]
async fn events_are_followed_as_they_come() {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let node = Node::builder().up().await;
    let mut following = node
        .skep_command(&["events", "-f", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    let seen = timeout(SOON, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let entry: agent::types::timeline::Entry = serde_json::from_str(&line).unwrap();
            if entry.reason == "Started" {
                return entry;
            }
        }
        panic!("the events ended");
    });
    let entry = seen.await.unwrap();
    assert_eq!(entry.container.as_deref(), Some("app"));
    following.kill().await.unwrap();
    node.down().await;
}

#[tokio::test]
async fn check_judges_a_file_without_running_it() {
    let node = Node::builder().up().await;
    let good = node.dir.join("good.yaml");
    let bad = node.dir.join("bad.yaml");
    let manifest = yaml::pod("web").container("app", STAY);
    std::fs::write(&good, manifest.to_string()).unwrap();
    std::fs::write(
        &bad,
        manifest
            .with(serde_json::json!({"livenessProbe": {}}))
            .to_string(),
    )
    .unwrap();
    let said = printed(&node.skep(&["check", good.to_str().unwrap()]).await);
    assert!(said.ends_with(" is good\n"), "{said}");
    let output = node.skep(&["check", bad.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("livenessProbe"), "{said}");
    assert!(node.pods().await.0.is_empty());
    let output = node.skep(&["check"]).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("This machine is fit"), "{said}");
    node.down().await;
}

#[tokio::test]
async fn a_second_agent_on_the_root_is_refused() {
    let node = Node::builder().up().await;
    let output = node
        .skep(&[
            "up",
            "--healthz-port=0",
            "--read-only-port=0",
            "--manifests",
            node.manifests.to_str().unwrap(),
        ])
        .await;
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = format!("runs on {}", node.root.display());
    assert!(
        said.contains("another agent") && said.contains(&expected),
        "{said}"
    );
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.down().await;
}

#[tokio::test]
async fn up_leaves_the_pods_of_others_alone_unless_told_to_adopt() {
    let mut node = Node::builder().external_containerd().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let id = node.container_id("web", "app").await;
    let other = node.dir.join("other");
    let other = other.to_str().unwrap();
    let empty = node.dir.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let endpoint = format!("--runtime-endpoint={}", node.client.endpoint());
    let cgroup = format!("--cgroup-root=/{}", node.cgroup);
    let up = [
        "--root",
        other,
        "up",
        "--manifests",
        empty.to_str().unwrap(),
        &endpoint,
        &cgroup,
        "--healthz-port=0",
        "--read-only-port=0",
    ];
    let output = timeout(SOON, node.program(&up).output())
        .await
        .unwrap()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("default/web-node") && said.contains("--adopt"),
        "{said}"
    );
    assert_eq!(node.container_id("web", "app").await, id);

    node.kill_agent().await;
    let adopt: Vec<_> = up.iter().chain(&["--adopt"]).copied().collect();
    let mut adopting = node.program(&adopt).spawn().unwrap();
    let limit = Duration::from_secs(100);
    node.until_true("the pod is stopped", limit, async || {
        let pods = node.client.list_pods().await.unwrap();
        !pods.iter().any(|pod| {
            pod.containers
                .iter()
                .any(|container| container.state == agent::cri::ListedState::Running)
        })
    })
    .await;
    let down = timeout(SOON, node.program(&["--root", other, "down"]).output())
        .await
        .unwrap()
        .unwrap();
    assert!(down.status.success(), "{down:?}");
    timeout(SOON, adopting.wait()).await.unwrap().unwrap();
    node.down().await;
}
