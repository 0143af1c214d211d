//! The commands as people type them: the `skep` program against a server on a socket of its own,
//! with real statuses, timeline and log files behind it, and no container runtime.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{
    config::RuntimeSettings,
    cri,
    health::{Board, Grade, Part},
    server::{self, Links, RootLock, wire},
    status::{PodRecord, Statuses},
    timeline::{self, Recorder},
    types::{
        id::PodKey,
        pod::{Pod, SourceKind},
        timeline::{Entry, Level},
    },
};
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(20);

struct Node {
    root: TempDir,
    statuses: Statuses,
    timeline: Recorder,
    _lock: RootLock,
    _running: JoinSet<()>,
}

async fn node() -> Node {
    let root = tempfile::tempdir().unwrap();
    let lock = RootLock::take(root.path()).unwrap();
    let (timeline, timeline_task) = timeline::open(root.path().join("timeline"), 1 << 20).unwrap();
    let statuses = Statuses::default();
    let board = Board::default();
    board.set(Part::Pleg, Grade::Degraded, "listing: no BTF");
    let settings = RuntimeSettings {
        endpoint: format!("unix://{}/nowhere.sock", root.path().display()),
        image_endpoint: None,
        request_timeout: SOON,
    };
    let links = Links {
        statuses: statuses.clone(),
        board,
        timeline: timeline.clone(),
        cri: cri::Client::new(&settings).unwrap(),
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        pod_logs: root.path().join("log/pods"),
        describe: Arc::new(|| wire::Description {
            node: "node1".into(),
            refusals: vec![wire::SourceRefusal {
                origin: "/manifests/bad.yaml".into(),
                message: "spec.containers: Required value".into(),
            }],
            ..wire::Description::default()
        }),
        relist: Arc::new(|| {
            Box::pin(async {
                Ok(wire::ListingReport {
                    sandboxes: 1,
                    containers: 1,
                    missed: vec!["container c1 exited".into()],
                })
            })
        }),
        down: Arc::new(|| {
            let progress = ["pod default/web-node1 stopped", "nothing left"];
            Box::pin(futures::stream::iter(progress.map(|message| {
                wire::DownProgress {
                    message: message.into(),
                    pod: None,
                    left: 0,
                    has_failed: false,
                }
            })))
        }),
    };
    let nowhere = server::Settings {
        healthz: None,
        read_only: None,
    };
    let task = server::bind(&nowhere, &lock, links).await.unwrap();
    let mut running = JoinSet::new();
    running.spawn(timeline_task.run(CancellationToken::new()));
    running.spawn(async move { task.run(CancellationToken::new()).await.unwrap() });
    Node {
        root,
        statuses,
        timeline,
        _lock: lock,
        _running: running,
    }
}

impl Node {
    fn publish(&self, namespace: &str, name: &str, is_running: bool) {
        let object = serde_saphyr::from_str(&format!(
            "metadata: {{name: {name}, namespace: {namespace}, uid: {namespace}-{name}}}\n\
             spec: {{nodeName: node1, containers: [{{name: app, image: i}}]}}\n"
        ))
        .unwrap();
        let state = if is_running {
            "containerID: 'containerd://c1', state: {running: {}}"
        } else {
            "state: {terminated: {exitCode: 0, containerID: 'containerd://c1'}}"
        };
        let status = serde_saphyr::from_str(&format!(
            "phase: Running\n\
             containerStatuses: [{{name: app, image: i, imageID: x, ready: {is_running}, restartCount: 0, {state}}}]\n"
        ))
        .unwrap();
        self.statuses.publish(PodRecord {
            pod: Pod::new(object, SourceKind::File),
            status,
            is_terminating: false,
        });
    }

    fn write_log(&self, name: &str, content: &str) -> PathBuf {
        let dir = self
            .root
            .path()
            .join(format!("log/pods/default_{name}_default-{name}/app"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("0.log"), content).unwrap();
        dir
    }

    fn record(&self, pod: &str, reason: &str) {
        let at = |text: &str| text.parse().unwrap();
        self.timeline.record(Entry {
            agent_at: at("2024-01-01T00:00:00.0004Z"),
            kernel_at: Some(at("2024-01-01T00:00:00Z")),
            runtime_at: None,
            runtime_known_at: Some(at("2024-01-01T00:00:00.0573Z")),
            pod: Some(PodKey::new("default", pod)),
            uid: None,
            container: Some("app".into()),
            container_id: None,
            level: Level::Normal,
            reason: reason.into(),
            message: "exit code 137".into(),
        });
    }

    fn command(&self, words: &[&str]) -> Command {
        skep(self.root.path(), words)
    }

    async fn run(&self, words: &[&str]) -> (i32, String, String) {
        told(self.command(words)).await
    }
}

fn skep(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.arg("--root").arg(root).args(words);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.env("TZ", "UTC");
    command
}

async fn told(mut command: Command) -> (i32, String, String) {
    let output = timeout(SOON, command.output()).await.unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn pods_are_listed_as_a_table_and_for_programs() {
    let node = node().await;
    node.publish("default", "web-node1", true);
    let (code, table, refused) = node.run(&["pods"]).await;
    assert_eq!(code, 0);
    assert_eq!(
        table,
        "NAMESPACE   NAME        READY   STATUS    RESTARTS   AGE         IP       NODE\n\
         default     web-node1   1/1     Running   0          <unknown>   <none>   node1\n"
    );
    assert_eq!(
        refused,
        "refused: /manifests/bad.yaml: spec.containers: Required value\n"
    );
    let (_, json, refused) = node.run(&["pods", "web", "-o", "json"]).await;
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "web-node1");
    assert_eq!(refused, "");
    let (_, yaml, _) = node.run(&["pods", "-o", "yaml"]).await;
    let same: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(same, list);
}

#[tokio::test]
async fn a_pod_that_is_not_there_or_not_one_is_told() {
    let node = node().await;
    node.publish("default", "web-node1", true);
    node.publish("prod", "web-node1", true);
    node.publish("default", "hog-node1", true);
    let (code, _, error) = node.run(&["logs", "hgo"]).await;
    assert_eq!(code, 1);
    assert_eq!(error, "skep: no pod \"hgo\"; there is default/hog-node1\n");
    let (code, _, error) = node.run(&["exec", "web", "--", "true"]).await;
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "skep: \"web\" may be any of default/web-node1, prod/web-node1: name the one that is meant\n"
    );
}

#[tokio::test]
async fn logs_are_shown_and_followed_to_the_containers_end() {
    let node = node().await;
    node.publish("default", "web-node1", true);
    let line = |second: u8, text: &str| format!("2024-01-01T00:00:0{second}Z stdout F {text}\n");
    let dir = node.write_log("web-node1", &(line(1, "one") + &line(2, "two")));
    let (code, text, _) = node.run(&["logs", "web", "--tail", "1"]).await;
    assert_eq!((code, text.as_str()), (0, "two\n"));
    let since = "2024-01-01T00:00:02Z";
    let (_, text, _) = node
        .run(&["logs", "web", "--since", since, "--timestamps"])
        .await;
    assert_eq!(text, "2024-01-01T00:00:02.000000000Z two\n");
    let (code, _, error) = node.run(&["logs", "web", "-p"]).await;
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "skep: previous terminated container \"app\" in pod \"web-node1\" not found\n"
    );

    let mut follower = node
        .command(&["logs", "web", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for expected in ["one", "two"] {
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.unwrap(), expected);
    }
    fs::rename(dir.join("0.log"), dir.join("0.log.20240101-000000")).unwrap();
    fs::write(dir.join("0.log"), line(3, "three")).unwrap();
    let next = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(next.unwrap(), "three");
    node.publish("default", "web-node1", false);
    let end = timeout(SOON, follower.wait()).await.unwrap().unwrap();
    assert!(end.success());
}

#[tokio::test]
async fn events_show_when_each_party_knew_also_of_a_pod_that_is_gone() {
    let node = node().await;
    node.publish("default", "web-node1", true);
    node.record("gone", "Died");
    let (code, table, _) = node.run(&["events", "gone"]).await;
    assert_eq!(code, 0);
    assert_eq!(
        table,
        "TIME                      POD            CONTAINER   REASON   KNOWN AFTER                                 MESSAGE\n\
         2024-01-01 00:00:00.000   default/gone   app         Died     kernel +0.0  agent +0.4  runtime +57.3 ms   exit code 137\n"
    );
    let (_, json, _) = node.run(&["events", "-o", "json"]).await;
    let entry: Entry = serde_json::from_str(&json).unwrap();
    assert_eq!(entry.reason, "Died");
    let (code, _, error) = node.run(&["events", "wbe"]).await;
    assert_eq!(code, 1);
    assert_eq!(error, "skep: no pod \"wbe\"; there is default/web-node1\n");

    let mut follower = node
        .command(&["events", "-f", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for reason in ["Died", "Started"] {
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
        let entry: Entry = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(entry.reason, reason);
        node.record("web-node1", "Started");
    }
    follower.kill().await.unwrap();
}

#[tokio::test]
async fn the_exit_code_tells_what_a_listing_missed_and_how_down_went() {
    let node = node().await;
    let (code, text, _) = node.run(&["relist"]).await;
    assert_eq!(code, 1);
    assert_eq!(
        text,
        "listed 1 sandboxes and 1 containers; 1 changes had been missed\n\
         missed: container c1 exited\n"
    );
    let (code, text, _) = node.run(&["down"]).await;
    assert_eq!(code, 0);
    assert_eq!(text, "pod default/web-node1 stopped\nnothing left\n");
    let (code, text, _) = node.run(&["status"]).await;
    assert_eq!(code, 0);
    assert!(
        text.contains("pleg      degraded   listing: no BTF\n"),
        "{text}"
    );
}

#[tokio::test]
async fn without_an_agent_the_socket_is_named() {
    let root = tempfile::tempdir().unwrap();
    for words in [&["pods"][..], &["logs", "x"], &["events"], &["relist"]] {
        let (code, _, error) = told(skep(root.path(), words)).await;
        assert_eq!(code, 1);
        assert_eq!(
            error,
            format!(
                "skep: no agent is running: nothing answers at {}/skep.sock\n",
                root.path().display()
            )
        );
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let node = node().await;
    node.publish("default", "web-node1", true);
    let line = "2024-01-01T00:00:01Z stdout F yes\n";
    node.write_log("web-node1", &line.repeat(100_000));
    let mut child = node
        .command(&["logs", "web"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = timeout(SOON, child.wait_with_output()).await.unwrap();
    let output = output.unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[tokio::test]
async fn the_name_kubelet_means_run() {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = dir.path().join("kubelet");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_skep"), &kubelet).unwrap();
    let mut command = Command::new(&kubelet);
    command.arg("--version");
    let (code, text, _) = told(command).await;
    assert_eq!(code, 0);
    assert!(text.starts_with("Kubernetes v1."), "{text}");
}
