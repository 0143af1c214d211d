use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::{Method, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::*;
use crate::{
    cli::client::{self, Client},
    config::RuntimeSettings,
    health::{Grade, Part},
    status::PodRecord,
    timeline,
    types::{
        id::PodKey,
        pod::{Pod, SourceKind},
        timeline::{Entry, Level},
    },
};

const SOON: Duration = Duration::from_secs(10);

/// A server on a root of its own, with real parts behind it and no runtime.
struct Server {
    root: TempDir,
    links: Links,
    client: Client,
    stop: CancellationToken,
    healthz: SocketAddr,
    read_only: SocketAddr,
    running: JoinSet<Result<(), Error>>,
    // Keeps the timeline's queue open.
    _timeline: timeline::Task,
}

async fn server() -> Server {
    let root = tempfile::tempdir().unwrap();
    let (timeline, timeline_task) = timeline::open(root.path().join("timeline"), 1 << 20).unwrap();
    let endpoint = format!("unix://{}/nowhere.sock", root.path().display());
    let cri = cri::Client::new(&RuntimeSettings {
        endpoint,
        image_endpoint: None,
        request_timeout: SOON,
    })
    .unwrap();
    let downs = Arc::new(AtomicUsize::new(0));
    let links = Links {
        statuses: Statuses::default(),
        board: Board::default(),
        timeline,
        cri,
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        pod_logs: root.path().join("log/pods"),
        describe: Arc::new(|| wire::Description {
            node: "node-1".into(),
            mode: Some("kernel".into()),
            ..wire::Description::default()
        }),
        relist: Arc::new(|| Box::pin(async { Err("the PLEG has not started yet".into()) })),
        down: Arc::new(move || {
            let left = 2 - downs.fetch_add(1, Ordering::Relaxed);
            Box::pin(futures::stream::iter((0..left).map(|left| {
                wire::DownProgress {
                    message: "stopped".into(),
                    pod: Some(PodKey::new("default", "web")),
                    left,
                    has_failed: false,
                }
            })))
        }),
    };
    let lock = RootLock::take(root.path()).unwrap();
    let any = Some("127.0.0.1:0".parse().unwrap());
    let settings = Settings {
        healthz: any,
        read_only: any,
    };
    let task = bind(&settings, &lock, links.clone()).await.unwrap();
    let stop = CancellationToken::new();
    let (healthz, read_only) = (
        task.healthz_address().unwrap(),
        task.read_only_address().unwrap(),
    );
    let mut running = JoinSet::new();
    running.spawn(task.run(stop.clone()));
    let client = Client::new(root.path().join(SOCKET_NAME));
    Server {
        root,
        links,
        client,
        stop,
        healthz,
        read_only,
        running,
        _timeline: timeline_task,
    }
}

impl Server {
    fn publish(&self, name: &str, status: &str) {
        let object = serde_saphyr::from_str(&format!(
            "metadata: {{name: {name}, namespace: default, uid: uid-{name}}}\n\
             spec: {{containers: [{{name: app, image: i}}, {{name: other, image: i}}]}}\n"
        ))
        .unwrap();
        self.links.statuses.publish(PodRecord {
            pod: Pod::new(object, SourceKind::File),
            status: serde_saphyr::from_str(status).unwrap(),
            is_terminating: false,
        });
    }

    fn log_file(&self, name: &str, content: &str) -> PathBuf {
        let dir = self
            .root
            .path()
            .join(format!("log/pods/default_{name}_uid-{name}/app"));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("0.log");
        fs::write(&path, content).unwrap();
        path
    }

    async fn refused(&self, path: &str) -> (u16, String) {
        match self.client.stream(Method::GET, path).await {
            Err(client::Error::Refused { status, message }) => (status.as_u16(), message),
            other => panic!("{path}: {other:?}"),
        }
    }
}

const RUNNING: &str = "\
phase: Running
containerStatuses:
- {name: app, image: i, imageID: x, ready: true, restartCount: 0, containerID: 'containerd://c1', state: {running: {}}}
- {name: other, image: i, imageID: x, ready: false, restartCount: 0, state: {waiting: {reason: ContainerCreating}}}
";

const ENDED: &str = "\
phase: Succeeded
containerStatuses:
- {name: app, image: i, imageID: x, ready: false, restartCount: 0, state: {terminated: {exitCode: 0, containerID: 'containerd://c1'}}}
";

async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, body.to_owned())
}

#[tokio::test]
async fn healthz_stays_ok_while_readyz_says_what_is_wrong() {
    let server = server().await;
    let board = &server.links.board;
    assert_eq!(
        http_get(server.healthz, "/healthz").await,
        (200, "ok".into())
    );
    let (status, text) = http_get(server.healthz, "/readyz").await;
    assert_eq!(status, 500);
    assert!(text.contains("[-]runtime has not reported yet\n"), "{text}");

    for part in [Part::Runtime, Part::Sync, Part::Sources] {
        board.set(part, Grade::Good, "fine");
    }
    board.set(Part::Pleg, Grade::Degraded, "listing: no BTF");
    assert_eq!(
        http_get(server.healthz, "/readyz").await,
        (200, "ok".into())
    );

    board.set(Part::Runtime, Grade::Bad, "connection refused");
    let (status, text) = http_get(server.healthz, "/readyz").await;
    assert_eq!(status, 500);
    assert!(
        text.contains("[-]runtime failed: connection refused"),
        "{text}"
    );
    assert!(text.ends_with("readyz check failed\n"), "{text}");
    let (status, text) = http_get(server.healthz, "/healthz?verbose").await;
    assert_eq!(status, 200);
    assert!(text.starts_with("[+]ping ok\n"), "{text}");
    assert!(text.contains("[!]pleg degraded: listing: no BTF"), "{text}");
}

#[tokio::test]
async fn the_read_only_port_lists_pods_and_the_healthz_port_does_not() {
    let server = server().await;
    server.publish("web", RUNNING);
    let (status, body) = http_get(server.read_only, "/pods").await;
    assert_eq!(status, 200);
    let list: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(list["kind"], "PodList");
    assert_eq!(list["apiVersion"], "v1");
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
    assert_eq!(list["items"][0]["status"]["phase"], "Running");
    assert_eq!(http_get(server.healthz, "/pods").await.0, 404);
    assert_eq!(http_get(server.healthz, "/metrics").await.0, 200);
}

#[tokio::test]
async fn the_socket_is_the_owners_alone_and_goes_with_the_agent() {
    let mut server = server().await;
    let path = server.root.path().join(SOCKET_NAME);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.stop.cancel();
    let ended = timeout(SOON, server.running.join_next()).await.unwrap();
    ended.unwrap().unwrap().unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_second_agent_on_the_root_is_refused_and_a_dead_ones_socket_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let lock = RootLock::take(root.path()).unwrap();
    let error = RootLock::take(root.path()).unwrap_err();
    let pid = std::process::id();
    assert_eq!(
        error.to_string(),
        format!(
            "another agent (pid {pid}) runs on {}",
            root.path().display()
        )
    );
    drop(lock);
    // As an agent leaves it that was killed.
    let path = root.path().join(SOCKET_NAME);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    RootLock::take(root.path()).unwrap();
    let listener = socket::bind(&path).unwrap();
    tokio::net::UnixStream::connect(&path).await.unwrap();
    drop(listener);
}

#[tokio::test]
async fn pods_come_with_what_their_line_says() {
    let server = server().await;
    server.publish("web", RUNNING);
    let pods: wire::Pods = server.client.get("/v1/pods").await.unwrap();
    assert_eq!(pods.node, "node-1");
    let web = &pods.pods[0];
    assert_eq!(web.object.metadata.name.as_deref(), Some("web"));
    assert_eq!((web.printed.ready, web.printed.total), (1, 2));
    assert_eq!(web.printed.status, "ContainerCreating");
}

#[tokio::test]
async fn log_requests_are_refused_in_upstreams_words() {
    let server = server().await;
    server.publish("web", RUNNING);
    for (path, status, message) in [
        (
            "/v1/pods/default/nope/log",
            404,
            r#"pod "nope" does not exist"#,
        ),
        (
            "/v1/pods/default/web/log?container=x",
            404,
            r#"container "x" not found in pod "web""#,
        ),
        (
            "/v1/pods/default/web/log?container=other",
            400,
            r#"container "other" in pod "web" is waiting to start: ContainerCreating"#,
        ),
        (
            "/v1/pods/default/web/log?previous=true",
            400,
            r#"previous terminated container "app" in pod "web" not found"#,
        ),
        (
            "/v1/pods/default/web/log?tailLines=x",
            400,
            "Unable to decode query.",
        ),
        (
            "/v1/pods/default/web/log?tailLines=-1",
            422,
            "Invalid request.",
        ),
        (
            "/v1/pods/default/web/log",
            404,
            "unable to retrieve container logs for containerd://c1",
        ),
        ("/v1/nothing", 404, "no such path"),
    ] {
        assert_eq!(
            server.refused(path).await,
            (status, message.to_owned()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_log_is_followed_until_the_container_has_stopped() {
    let server = server().await;
    server.publish("web", RUNNING);
    let path = server.log_file("web", "2024-01-01T00:00:01Z stdout F one\n");
    let mut log = server
        .client
        .stream(Method::GET, "/v1/pods/default/web/log?follow=true")
        .await
        .unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "one\n");
    append(&path, "2024-01-01T00:00:02Z stdout F two\n");
    let piece = timeout(SOON, log.next()).await.unwrap().unwrap();
    assert_eq!(piece.unwrap(), "two\n");
    server.publish("web", ENDED);
    let end = timeout(SOON, log.next()).await.unwrap().unwrap();
    assert_eq!(end, None);
}

#[tokio::test]
async fn a_log_is_shown_while_the_runtime_stands_still() {
    let server = server().await;
    // Takes connections and never says a word.
    let socket = server.root.path().join("nowhere.sock");
    let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
    server.publish("web", RUNNING);
    server.log_file("web", "2024-01-01T00:00:01Z stdout F one\n");
    let asking = server
        .client
        .stream(Method::GET, "/v1/pods/default/web/log");
    let mut log = timeout(SOON / 2, asking).await.unwrap().unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "one\n");
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_stopping_agent_ends_answers_that_follow() {
    let mut server = server().await;
    server.publish("web", RUNNING);
    server.log_file("web", "2024-01-01T00:00:01Z stdout F one\n");
    let mut log = server
        .client
        .stream(Method::GET, "/v1/pods/default/web/log?follow=true")
        .await
        .unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "one\n");
    server.stop.cancel();
    let end = timeout(SOON, log.next()).await.unwrap().unwrap();
    assert_eq!(end, None);
    let ended = timeout(FINISH_WITHIN, server.running.join_next()).await;
    ended
        .expect("before the deadline")
        .unwrap()
        .unwrap()
        .unwrap();
}

fn entry(pod: &str, message: &str) -> Entry {
    Entry {
        agent_at: "2024-01-01T00:00:01Z".parse().unwrap(),
        kernel_at: None,
        runtime_at: None,
        runtime_known_at: None,
        pod: Some(PodKey::new("default", pod)),
        uid: None,
        container: None,
        container_id: None,
        level: Level::Normal,
        reason: "Started".into(),
        message: message.into(),
    }
}

#[tokio::test]
async fn events_are_shown_past_and_live_for_one_pod() {
    let server = server().await;
    let timeline = &server.links.timeline;
    timeline.record(entry("web", "before"));
    timeline.record(entry("other", "before"));
    let mut events = server
        .client
        .stream(Method::GET, "/v1/events?pod=default/web&follow=true")
        .await
        .unwrap();
    let first: Entry = events.next_line().await.unwrap().unwrap();
    assert_eq!(first.message, "before");
    timeline.record(entry("other", "after"));
    timeline.record(entry("web", "after"));
    let next = timeout(SOON, events.next_line::<Entry>()).await.unwrap();
    assert_eq!(next.unwrap().unwrap().message, "after");

    let mut past = server
        .client
        .stream(Method::GET, "/v1/events?since=2024-01-01T00:00:01Z")
        .await
        .unwrap();
    let mut count = 0;
    while past.next_line::<Entry>().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 4);
    assert_eq!(server.refused("/v1/events?pod=web").await.0, 400);
    assert_eq!(server.refused("/v1/events?since=yesterday").await.0, 400);
}

#[tokio::test]
async fn exec_is_refused_where_nothing_runs_and_says_when_the_runtime_is_away() {
    let server = server().await;
    server.publish("web", RUNNING);
    let mut request = wire::ExecRequest {
        namespace: "default".into(),
        pod: "web".into(),
        container: Some("other".into()),
        command: vec!["true".into()],
        timeout_seconds: 0,
    };
    let exec = async |request: &wire::ExecRequest| {
        let answer = server
            .client
            .post::<wire::ExecResult>("/v1/exec", request)
            .await;
        match answer {
            Err(client::Error::Refused { status, message }) => (status, message),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        exec(&request).await,
        (
            StatusCode::BAD_REQUEST,
            r#"container "other" in pod "web" is not running"#.to_owned()
        )
    );
    request.container = None;
    let (status, message) = exec(&request).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(message.contains("connection error"), "{message}");
}

#[tokio::test]
async fn status_relist_and_down_tell_what_their_parts_say() {
    let server = server().await;
    server.links.board.set(Part::Sync, Grade::Good, "turning");
    let status: wire::Status = server.client.get("/v1/status").await.unwrap();
    assert_eq!(status.agent.mode.as_deref(), Some("kernel"));
    assert!(!status.is_ready);
    let sync = status.parts.iter().find(|part| part.part == "sync");
    assert_eq!(sync.unwrap().text, "turning");

    let relist = server
        .client
        .post::<wire::ListingReport>("/v1/relist", &())
        .await;
    assert_eq!(
        relist.unwrap_err().to_string(),
        "the PLEG has not started yet"
    );

    let mut down = server
        .client
        .stream(Method::POST, "/v1/down")
        .await
        .unwrap();
    let mut left = Vec::new();
    while let Some(progress) = down.next_line::<wire::DownProgress>().await.unwrap() {
        left.push(progress.left);
    }
    assert_eq!(left, [0, 1]);
}

#[tokio::test]
async fn a_missing_agent_is_named_by_its_socket() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join(SOCKET_NAME);
    let client = Client::new(socket.clone());
    let expected = format!(
        "no agent is running: nothing answers at {}",
        socket.display()
    );
    let error = client.get::<wire::Pods>("/v1/pods").await.unwrap_err();
    assert_eq!(error.to_string(), expected);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = client.get::<wire::Pods>("/v1/pods").await.unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_lock_file_of_another_process_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.lock");
    let first = wait_for_lock(&path).await.unwrap();
    let mut second = std::pin::pin!(wait_for_lock(&path));
    assert!(futures::poll!(second.as_mut()).is_pending());
    drop(first);
    second.await.unwrap();
}
