use futures::StreamExt as _;
use jiff::Timestamp;
use rstest::rstest;

use super::*;
use crate::{
    cri::{
        EventKind, ListedState,
        fake::{Fake, Fault},
    },
    types::runtime::{ContainerState, Witness},
};

/// Longer than any answer of the fake takes, shorter than a test may.
const PATIENCE: Duration = Duration::from_secs(20);

struct Setup {
    fake: Fake,
    client: Client,
    _folder: tempfile::TempDir,
}

fn setup_with(timeout: Duration) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(&folder.path().join("cri.sock")).unwrap();
    let client = Client::new(&fake.settings(timeout)).unwrap();
    Setup {
        fake,
        client,
        _folder: folder,
    }
}

fn setup() -> Setup {
    setup_with(PATIENCE)
}

fn pod_labels(uid: &str) -> HashMap<String, String> {
    HashMap::from([
        (labels::POD_UID.to_owned(), uid.to_owned()),
        (labels::POD_NAME.to_owned(), "web".to_owned()),
        (labels::POD_NAMESPACE.to_owned(), "default".to_owned()),
    ])
}

fn sandbox_config(uid: &str, attempt: u32) -> api::PodSandboxConfig {
    api::PodSandboxConfig {
        metadata: Some(api::PodSandboxMetadata {
            name: "web".into(),
            uid: uid.into(),
            namespace: "default".into(),
            attempt,
        }),
        labels: pod_labels(uid),
        log_directory: format!("/var/log/pods/default_web_{uid}"),
        ..Default::default()
    }
}

fn container_config(uid: &str, name: &str) -> api::ContainerConfig {
    api::ContainerConfig {
        metadata: Some(api::ContainerMetadata {
            name: name.into(),
            attempt: 2,
        }),
        image: Some(api::ImageSpec {
            image: "busybox:1".into(),
            ..Default::default()
        }),
        labels: pod_labels(uid),
        annotations: HashMap::from([("io.kubernetes.container.hash".into(), "ff00".into())]),
        log_path: format!("{name}/2.log"),
        ..Default::default()
    }
}

/// A pod with one running container.
async fn running(setup: &Setup, uid: &str) -> (SandboxId, ContainerId) {
    let config = sandbox_config(uid, 0);
    let sandbox = setup.client.run_sandbox(config.clone(), "").await.unwrap();
    let container = setup
        .client
        .create_container(&sandbox, container_config(uid, "main"), &config)
        .await
        .unwrap();
    setup.client.start_container(&container).await.unwrap();
    (sandbox, container)
}

#[tokio::test]
async fn a_container_is_seen_from_creation_to_removal() {
    let setup = setup();
    let client = &setup.client;
    let config = sandbox_config("u1", 0);
    let sandbox = client.run_sandbox(config.clone(), "kata").await.unwrap();
    let status = client.sandbox_status(&sandbox).await.unwrap();
    assert!(status.is_ready);
    assert_eq!(
        status.ips,
        ["10.0.0.7".parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(status.runtime_handler, "kata");
    assert_eq!(client.sandbox_pid(&sandbox).await.unwrap(), Some(4000));

    let container = client
        .create_container(&sandbox, container_config("u1", "main"), &config)
        .await
        .unwrap();
    let status = client.container_status(&container, &sandbox).await.unwrap();
    assert_eq!(status.state, ContainerState::Created);
    assert_eq!(status.hash, Some(0xff00));
    assert_eq!(status.restart_count, 2);
    assert_eq!(
        status.log_path.as_deref(),
        Some("/var/log/pods/default_web_u1/main/2.log")
    );
    assert_eq!(client.container_pid(&container).await.unwrap(), None);

    client.start_container(&container).await.unwrap();
    let status = client
        .container_status_and_pid(&container, &sandbox)
        .await
        .unwrap();
    assert!(status.state.is_running());
    assert_eq!(status.pid, Some(5002));

    client
        .stop_container(&container, Duration::from_millis(1500))
        .await
        .unwrap();
    let status = client.container_status(&container, &sandbox).await.unwrap();
    let exit = status.state.exit().unwrap();
    assert_eq!((exit.code, exit.reason.as_str()), (137, "Error"));
    assert_eq!(exit.witness, Witness::Runtime);

    client.remove_container(&container).await.unwrap();
    let gone = client.container_status(&container, &sandbox).await;
    assert!(gone.unwrap_err().is_not_found());
    client.stop_sandbox(&sandbox).await.unwrap();
    assert!(!client.sandbox_status(&sandbox).await.unwrap().is_ready);
    client.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(client.list_pods().await.unwrap(), []);
}

#[tokio::test]
async fn a_listing_has_pods_by_uid_and_what_belongs_to_none() {
    let setup = setup();
    let (sandbox, container) = running(&setup, "u1").await;
    running(&setup, "u2").await;
    let second = setup
        .client
        .run_sandbox(sandbox_config("u1", 1), "")
        .await
        .unwrap();
    setup.fake.with(|world| {
        let mut stray = world.containers[container.as_str()].clone();
        stray.status.id = "stray".into();
        stray.status.labels.clear();
        world.containers.insert("stray".into(), stray);
    });

    let pods = setup.client.list_pods().await.unwrap();
    let uids: Vec<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    assert_eq!(uids, ["", "u1", "u2"]);
    let pod = setup.client.list_pod(&"u1".into()).await.unwrap();
    assert_eq!(pod, pods[1]);
    assert_eq!(pod.key.to_string(), "default/web");
    let sandboxes: Vec<_> = pod.sandboxes.iter().map(|s| s.id.clone()).collect();
    assert_eq!(sandboxes, [second, sandbox.clone()]);
    assert_eq!(pod.containers.len(), 1);
    assert_eq!(pod.containers[0].id, container);
    assert_eq!(pod.containers[0].sandbox, sandbox);
    assert_eq!(pod.containers[0].state, ListedState::Running);
    assert!(
        setup
            .client
            .list_pod(&"u9".into())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_listing_of_more_than_4_mib_comes_through() {
    let setup = setup();
    let (_, container) = running(&setup, "u1").await;
    setup.fake.with(|world| {
        let template = world.containers[container.as_str()].clone();
        for n in 0..80 {
            let mut one = template.clone();
            one.status.id = format!("big{n}");
            one.status
                .annotations
                .insert("note".into(), "x".repeat(100_000));
            world.containers.insert(one.status.id.clone(), one);
        }
    });
    let pods = setup.client.list_pods().await.unwrap();
    assert_eq!(pods[0].containers.len(), 81);
}

#[tokio::test]
async fn a_call_that_is_not_answered_ends_at_its_deadline_and_holds_up_no_other() {
    let setup = setup_with(Duration::from_millis(300));
    let config = sandbox_config("u1", 0);
    setup.fake.fault(Call::RunPodSandbox, Fault::LoseAnswer);
    let started = Instant::now();
    let (lost, status) =
        futures::future::join(setup.client.run_sandbox(config, ""), setup.client.status()).await;
    let error = lost.unwrap_err();
    assert!(error.is_deadline());
    assert_eq!(error.message(), "no answer within 600ms");
    assert!(started.elapsed() >= Duration::from_millis(600));
    assert!(status.unwrap().ready.is_true);
    assert_eq!(setup.client.list_pods().await.unwrap().len(), 1);
}

#[tokio::test]
async fn stopping_and_commands_have_their_own_time_on_top() {
    let setup = setup_with(Duration::from_millis(200));
    let (_, container) = running(&setup, "u1").await;
    let client = &setup.client;
    setup.fake.with(|world| {
        world.exec = api::ExecSyncResponse {
            stdout: b"out".to_vec(),
            stderr: b"err".to_vec(),
            exit_code: 3,
        }
    });
    let late = || Fault::Delay(Duration::from_millis(500));

    setup.fake.fault(Call::ExecSync, late());
    let command = || vec!["true".to_owned()];
    let output = client
        .exec_sync(&container, command(), Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(
        (
            output.stdout.as_slice(),
            output.stderr.as_slice(),
            output.code
        ),
        (b"out".as_slice(), b"err".as_slice(), 3)
    );
    setup.fake.fault(Call::ExecSync, late());
    let without_limit = client
        .exec_sync(&container, command(), Duration::ZERO)
        .await;
    assert_eq!(without_limit.unwrap().code, 3);
    setup.fake.fault(Call::StopContainer, late());
    client
        .stop_container(&container, Duration::from_secs(1))
        .await
        .unwrap();
    setup.fake.fault(Call::RemoveContainer, late());
    let removal = client.remove_container(&container).await;
    assert!(removal.unwrap_err().is_deadline());
}

#[tokio::test]
async fn a_runtime_that_comes_back_is_found_again() {
    let Setup {
        fake,
        client,
        _folder,
    } = setup();
    client.version().await.unwrap();
    let stopped = fake.stop();
    let error = client.version().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    // Now it cannot connect, and says what is wrong with what.
    let error = client.version().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.message().contains("cri.sock"), "{error}");
    let _fake = stopped.start().unwrap();
    tokio::time::timeout(PATIENCE, async {
        while client.version().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn calls_in_flight_when_the_runtime_dies_are_unavailable() {
    let Setup {
        fake,
        client,
        _folder,
    } = setup();
    fake.fault(Call::Status, Fault::LoseAnswer);
    let both = futures::future::join(client.status(), async {
        while fake.count(Call::Status) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fake.stop()
    });
    let (answer, _stopped) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    let error = answer.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn a_refusal_keeps_the_runtimes_words() {
    let setup = setup();
    let fault = Fault::Fail(
        tonic::Code::Unknown,
        "failed to create containerd task".into(),
    );
    setup.fake.fault(Call::StartContainer, fault);
    let error = setup.client.start_container(&"c".into()).await.unwrap_err();
    assert_eq!(error.message(), "failed to create containerd task");
    assert_eq!(
        error.rpc_text(),
        "rpc error: code = Unknown desc = failed to create containerd task"
    );
}

#[rstest]
#[case(|s: &mut api::ContainerStatus| s.id.clear(), "ContainerStatus: no id in the runtime's answer")]
#[case(|s: &mut api::ContainerStatus| s.metadata = None, "ContainerStatus: no metadata in the runtime's answer")]
#[case(
    |s: &mut api::ContainerStatus| s.metadata.as_mut().unwrap().name.clear(),
    "ContainerStatus: no metadata.name in the runtime's answer"
)]
#[case(|s: &mut api::ContainerStatus| s.created_at = 0, "ContainerStatus: no created_at in the runtime's answer")]
#[case(|s: &mut api::ContainerStatus| s.image = None, "ContainerStatus: no image in the runtime's answer")]
#[case(|s: &mut api::ContainerStatus| s.image_ref.clear(), "ContainerStatus: no image_ref in the runtime's answer")]
#[tokio::test]
async fn a_container_with_a_blank_field_is_an_error(
    #[case] blank: fn(&mut api::ContainerStatus),
    #[case] message: &str,
) {
    let setup = setup();
    let (sandbox, container) = running(&setup, "u1").await;
    setup
        .fake
        .with(|world| blank(&mut world.containers.get_mut(container.as_str()).unwrap().status));
    let error = setup.client.container_status(&container, &sandbox).await;
    assert_eq!(error.unwrap_err().to_string(), message);
}

#[rstest]
#[case(|s: &mut api::PodSandboxStatus| s.id.clear(), "PodSandboxStatus: no id in the runtime's answer")]
#[case(|s: &mut api::PodSandboxStatus| s.metadata = None, "PodSandboxStatus: no metadata in the runtime's answer")]
#[case(|s: &mut api::PodSandboxStatus| s.created_at = 0, "PodSandboxStatus: no created_at in the runtime's answer")]
#[tokio::test]
async fn a_sandbox_with_a_blank_field_is_an_error(
    #[case] blank: fn(&mut api::PodSandboxStatus),
    #[case] message: &str,
) {
    let setup = setup();
    let (sandbox, _) = running(&setup, "u1").await;
    setup
        .fake
        .with(|world| blank(world.sandboxes.get_mut(sandbox.as_str()).unwrap()));
    let error = setup.client.sandbox_status(&sandbox).await.unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn a_runtime_says_who_and_how_it_is() {
    let setup = setup();
    let version = setup.client.version().await.unwrap();
    assert_eq!(
        (
            version.runtime_name.as_str(),
            version.runtime_version.as_str()
        ),
        ("fake", "1")
    );
    setup
        .fake
        .with(|world| world.version.version = "0.2.0".into());
    let error = setup.client.version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Version: a version other than 0.1.0 in the runtime's answer"
    );

    assert_eq!(setup.client.runtime_config().await.unwrap(), None);
    setup
        .fake
        .with(|world| world.cgroup_driver = Some(api::CgroupDriver::Cgroupfs));
    let driver = setup.client.runtime_config().await.unwrap();
    assert_eq!(driver, Some(CgroupDriver::Cgroupfs));

    setup.fake.with(|world| {
        let conditions = &mut world.status.status.as_mut().unwrap().conditions;
        conditions[1].status = false;
        conditions[1].message = "cni plugin not initialized".into();
    });
    let status = setup.client.status().await.unwrap();
    assert!(status.ready.is_true);
    assert!(!status.network.is_true);
    assert_eq!(status.network.message, "cni plugin not initialized");
    setup
        .fake
        .with(|world| world.status.status.as_mut().unwrap().conditions.truncate(1));
    let error = setup.client.status().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Status: no condition NetworkReady in the runtime's answer"
    );
    let fs = setup.client.image_fs_info().await.unwrap();
    assert_eq!(fs.images[0].mountpoint, "/images");
}

#[tokio::test]
async fn events_tell_container_kind_and_pod() {
    let setup = setup();
    let mut events = setup.client.events().await.unwrap();
    let (sandbox, container) = running(&setup, "u1").await;
    setup
        .fake
        .with(|world| world.exit(container.as_str(), 1, "Error"));
    let mut seen = Vec::new();
    for _ in 0..4 {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
        let event = event.unwrap().unwrap();
        assert_eq!(event.uid.as_ref().map(PodUid::as_str), Some("u1"));
        assert!(event.at.unwrap() > Timestamp::UNIX_EPOCH);
        seen.push((event.container.to_string(), event.kind));
    }
    let container = container.to_string();
    assert_eq!(
        seen,
        [
            (sandbox.to_string(), EventKind::Started),
            (container.clone(), EventKind::Created),
            (container.clone(), EventKind::Started),
            (container, EventKind::Stopped),
        ]
    );
    setup.fake.break_streams();
    assert_eq!(
        tokio::time::timeout(PATIENCE, events.next()).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn an_event_stream_that_dies_with_its_runtime_ends_in_an_error() {
    let setup = setup();
    let mut events = setup.client.events().await.unwrap();
    let stopped = setup.fake.stop();
    let last = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
    // A runtime that goes down in order closes the stream first.
    assert!(last.is_none_or(|item| item.unwrap_err().is_unavailable()));
    drop(stopped);
}

#[tokio::test]
async fn a_runtime_without_event_stream_says_so() {
    let setup = setup();
    setup.fake.with(|world| world.has_events = false);
    assert!(setup.client.events().await.unwrap_err().is_unimplemented());
    setup.fake.fault(
        Call::GetContainerEvents,
        Fault::Delay(REFUSAL_WAIT + Duration::from_millis(100)),
    );
    let mut events = setup.client.events().await.unwrap();
    let first = events.next().await.unwrap();
    assert!(first.unwrap_err().is_unimplemented());
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn images_are_pulled_found_listed_and_removed() {
    let setup = setup();
    let client = &setup.client;
    let none = BTreeMap::new();
    assert_eq!(client.image_status("busybox:1", &none).await.unwrap(), None);
    let missing = client.pull_image("busybox:1", &none, None, None).await;
    assert!(missing.unwrap_err().is_not_found());
    setup.fake.with(|world| world.offer("busybox:1", 1_000));
    let reference = client
        .pull_image("busybox:1", &none, None, None)
        .await
        .unwrap();
    assert_eq!(reference, "sha256:busybox:1");
    let found = client
        .image_status(&reference, &none)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.id.as_str(), found.size), ("sha256:busybox:1", 1_000));
    assert_eq!(client.list_images().await.unwrap(), [found]);
    setup
        .fake
        .with(|world| world.images.get_mut("busybox:1").unwrap().size = 0);
    let error = client.image_status("busybox:1", &none).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "ImageStatus: no id or size in the runtime's answer"
    );
    client.remove_image("busybox:1").await.unwrap();
    assert_eq!(client.list_images().await.unwrap(), []);
}

#[tokio::test]
async fn each_call_is_counted_by_its_operation_and_so_is_its_failure() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let setup = setup();
    let id = ContainerId::from("none");
    setup.client.version().await.unwrap();
    setup.client.remove_container(&id).await.unwrap();
    setup.client.container_pid(&id).await.unwrap_err();
    let mut counters: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter_map(|(key, _, _, value)| {
            let metrics_util::debugging::DebugValue::Counter(count) = value else {
                return None;
            };
            let (_, key) = key.into_parts();
            let operation = key.labels().next().unwrap().value().to_owned();
            Some((key.name().to_owned(), operation, count))
        })
        .collect();
    counters.sort();
    let counters: Vec<_> = counters
        .iter()
        .map(|(name, operation, count)| (name.as_str(), operation.as_str(), *count))
        .collect();
    assert_eq!(
        counters,
        [
            (
                "kubelet_runtime_operations_errors_total",
                "container_status",
                1
            ),
            ("kubelet_runtime_operations_total", "container_status", 1),
            ("kubelet_runtime_operations_total", "remove_container", 1),
            ("kubelet_runtime_operations_total", "version", 1),
        ]
    );
}
