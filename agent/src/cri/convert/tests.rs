use std::collections::HashMap;

use rstest::rstest;

use super::*;

fn status() -> api::ContainerStatus {
    api::ContainerStatus {
        id: "c1".into(),
        metadata: Some(api::ContainerMetadata {
            name: "main".into(),
            attempt: 3,
        }),
        created_at: 1_000_000_000,
        image: Some(api::ImageSpec {
            image: "busybox:1".into(),
            ..Default::default()
        }),
        image_ref: "sha256:1".into(),
        ..Default::default()
    }
}

fn convert(status: api::ContainerStatus) -> Container {
    container(Some(status), &"s1".into()).unwrap()
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn an_exit_has_the_runtimes_words_and_times() {
    let mut status = status();
    status.set_state(api::ContainerState::ContainerExited);
    status.started_at = 2_000_000_000;
    status.finished_at = 3_000_000_000;
    status.exit_code = 137;
    status.reason = "OOMKilled".into();
    status.message = "m".into();
    assert_eq!(
        convert(status).state,
        ContainerState::Exited(Exit {
            code: 137,
            signal: 0,
            reason: "OOMKilled".into(),
            message: "m".into(),
            started_at: Some(seconds(2)),
            finished_at: seconds(3),
            witness: Witness::Runtime,
            oom_seen: true,
        })
    );
}

#[test]
fn a_container_that_never_ran_has_no_start_and_ended_no_earlier_than_it_was_made() {
    let mut status = status();
    status.set_state(api::ContainerState::ContainerExited);
    let container = convert(status);
    let exit = container.state.exit().unwrap();
    assert_eq!((exit.started_at, exit.finished_at), (None, seconds(1)));
    assert!(!exit.oom_seen);
}

#[test]
fn the_agents_annotations_are_read_back() {
    let mut status = status();
    status.annotations = HashMap::from([
        ("io.kubernetes.container.hash".into(), "8f3a0c11".into()),
        ("io.kubernetes.container.restartCount".into(), "7".into()),
        (
            "io.kubernetes.container.terminationMessagePath".into(),
            "/dev/end".into(),
        ),
        (
            "io.kubernetes.container.terminationMessagePolicy".into(),
            "File".into(),
        ),
    ]);
    status.mounts = vec![api::Mount {
        container_path: "/dev/end".into(),
        host_path: "/pods/u/containers/main/0".into(),
        ..Default::default()
    }];
    let container = convert(status);
    assert_eq!(container.hash, Some(0x8f3a_0c11));
    assert_eq!(container.restart_count, 7);
    assert_eq!(
        container.termination_message_policy.as_deref(),
        Some("File")
    );
    assert_eq!(
        container.termination_message_host_path.as_deref(),
        Some("/pods/u/containers/main/0")
    );
}

#[test]
fn a_container_of_others_counts_restarts_by_its_attempt() {
    let mut status = status();
    status.annotations = HashMap::from([("io.kubernetes.container.hash".into(), "zz".into())]);
    let container = convert(status);
    assert_eq!((container.hash, container.restart_count), (None, 3));
    assert_eq!(container.termination_message_path, None);
    assert_eq!(container.log_path, None);
}

#[rstest]
#[case(r#"{"pid":42,"sandboxID":"x"}"#, Some(42))]
#[case(r#"{"pid":0}"#, None)]
#[case("{}", None)]
#[case("not json", None)]
fn the_pid_is_in_the_runtimes_own_words(#[case] info: &str, #[case] expected: Option<u32>) {
    assert_eq!(
        pid(&HashMap::from([("info".into(), info.into())])),
        expected
    );
    assert_eq!(pid(&HashMap::new()), None);
}

#[test]
fn a_sandbox_has_its_own_address_first_and_none_that_is_no_address() {
    let additional = |ip: &str| api::PodIp { ip: ip.into() };
    let status = api::PodSandboxStatus {
        id: "s1".into(),
        metadata: Some(api::PodSandboxMetadata {
            name: "web".into(),
            uid: "u".into(),
            namespace: "default".into(),
            attempt: 1,
        }),
        created_at: 1,
        network: Some(api::PodSandboxNetworkStatus {
            ip: "10.1.2.3".into(),
            additional_ips: vec![
                additional("fd00::1"),
                additional("nonsense"),
                additional(""),
            ],
        }),
        ..Default::default()
    };
    let sandbox = sandbox(Some(status)).unwrap();
    let ips: Vec<_> = sandbox.ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.1.2.3", "fd00::1"]);
    assert!(!sandbox.is_host_network);
}
