use std::sync::Mutex;

use k8s_openapi::api::core::v1::{Pod as PodObject, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;

use super::*;
use crate::{
    cri::{
        Call, Client,
        fake::{Fake, Fault},
    },
    types::pod::SourceKind,
};

struct Setup {
    fake: Fake,
    images: Images,
    told: Mutex<Vec<String>>,
    _folder: tempfile::TempDir,
}

fn setup_with(settings: &ImageSettings) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(&folder.path().join("cri.sock")).unwrap();
    let client = Client::new(&fake.settings(Duration::from_secs(20))).unwrap();
    Setup {
        fake,
        images: Images::new(settings, client),
        told: Mutex::default(),
        _folder: folder,
    }
}

fn setup() -> Setup {
    setup_with(&ImageSettings {
        max_parallel_pulls: Some(1),
        pull_qps: 5,
        pull_burst: 10,
    })
}

fn pod(uid: &str) -> Pod {
    let object = PodObject {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            uid: Some(uid.into()),
            ..Default::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    };
    Pod::new(object, SourceKind::File)
}

fn container(image: &str, policy: &str) -> Container {
    Container {
        name: "main".into(),
        image: Some(image.into()),
        image_pull_policy: Some(policy.into()),
        ..Default::default()
    }
}

impl Setup {
    async fn ensure(&self, image: &str, policy: &str) -> Result<Ensured, PullError> {
        let notify = |level: Level, reason: &'static str, message: String| {
            let line = format!("{level} {reason} {message}");
            self.told.lock().unwrap().push(line);
        };
        let container = container(image, policy);
        self.images
            .ensure(&pod("u1"), &container, None, &notify)
            .await
    }

    /// The events since the last look, with durations blanked.
    fn told(&self) -> Vec<String> {
        let lines = std::mem::take(&mut *self.told.lock().unwrap());
        lines
            .into_iter()
            .map(|line| match line.split_once(" in ") {
                Some((head, tail)) => {
                    let (_, size) = tail.split_once(" including waiting).").unwrap();
                    format!("{head} in T (T including waiting).{size}")
                }
                None => line,
            })
            .collect()
    }
}

#[tokio::test]
async fn always_pulls_even_what_is_there() {
    let setup = setup();
    setup
        .fake
        .with(|world| world.offer("busybox:latest", 12_345));
    for _ in 0..2 {
        let ensured = setup.ensure("busybox", "Always").await.unwrap();
        assert_eq!(ensured.image_ref, "sha256:busybox:latest");
        assert_eq!((ensured.uid, ensured.username.as_str()), (Some(0), ""));
        assert_eq!(
            setup.told(),
            [
                r#"Normal Pulling Pulling image "busybox""#,
                r#"Normal Pulled Successfully pulled image "busybox" in T (T including waiting). Image size: 12345 bytes."#,
            ]
        );
    }
    assert_eq!(setup.fake.count(Call::PullImage), 2);
}

#[tokio::test]
async fn if_not_present_pulls_once() {
    let setup = setup();
    setup.fake.with(|world| {
        world.offer("busybox:1", 1);
        world.registry.get_mut("busybox:1").unwrap().username = "www".into();
    });
    setup.ensure("busybox:1", "IfNotPresent").await.unwrap();
    setup.told();
    let ensured = setup.ensure("busybox:1", "IfNotPresent").await.unwrap();
    assert_eq!((ensured.uid, ensured.username.as_str()), (None, "www"));
    assert_eq!(
        setup.told(),
        [
            r#"Normal Pulled Container image "busybox:1" already present on machine and can be accessed by the pod"#
        ]
    );
    assert_eq!(setup.fake.count(Call::PullImage), 1);
}

#[tokio::test]
async fn never_takes_what_is_there_and_pulls_nothing() {
    let setup = setup();
    setup.fake.with(|world| world.offer("busybox:1", 1));
    let error = setup.ensure("busybox:1", "Never").await.unwrap_err();
    assert_eq!(error.reason, "ErrImageNeverPull");
    let message = r#"Container image "busybox:1" is not present with pull policy of Never"#;
    assert_eq!(error.message, message);
    assert_eq!(error.retry_after, None);
    assert_eq!(
        setup.told(),
        [
            format!("Warning ErrImageNeverPull {message}"),
            "Warning Failed Error: ErrImageNeverPull".into(),
        ]
    );
    setup.ensure("busybox:1", "IfNotPresent").await.unwrap();
    setup.ensure("busybox:1", "Never").await.unwrap();
    assert_eq!(setup.fake.count(Call::PullImage), 1);
}

#[tokio::test]
async fn a_failed_pull_is_told_and_the_next_one_waits() {
    let setup = setup();
    let error = setup.ensure("gone:1", "IfNotPresent").await.unwrap_err();
    let cause = "rpc error: code = NotFound desc = gone:1: not found";
    assert_eq!(
        (error.reason, error.message.as_str()),
        ("ErrImagePull", cause)
    );
    assert_eq!(error.retry_after, Some(Duration::from_secs(10)));
    assert_eq!(
        setup.told(),
        [
            r#"Normal Pulling Pulling image "gone:1""#.to_owned(),
            format!(r#"Warning Failed Failed to pull image "gone:1": {cause}"#),
            "Warning Failed Error: ErrImagePull".to_owned(),
        ]
    );
    let error = setup.ensure("gone:1", "IfNotPresent").await.unwrap_err();
    assert_eq!(error.reason, "ImagePullBackOff");
    assert_eq!(
        error.message,
        format!(r#"Back-off pulling image "gone:1": ErrImagePull: {cause}"#)
    );
    assert!(error.retry_after.unwrap() <= Duration::from_secs(10));
    assert_eq!(
        setup.told(),
        [
            r#"Normal BackOff Back-off pulling image "gone:1""#,
            "Warning Failed Error: ImagePullBackOff",
        ]
    );
    assert_eq!(setup.fake.count(Call::PullImage), 1);
}

#[tokio::test]
async fn a_name_that_is_none_is_refused_without_a_call() {
    let setup = setup();
    let error = setup.ensure("Busy box", "Always").await.unwrap_err();
    assert_eq!(error.reason, "InvalidImageName");
    assert_eq!(
        setup.told(),
        [
            format!("Warning InspectFailed {}", error.message),
            "Warning Failed Error: InvalidImageName".into(),
        ]
    );
    assert!(setup.fake.calls().is_empty());
}

#[tokio::test]
async fn an_image_that_cannot_be_inspected_is_not_pulled() {
    let setup = setup();
    let fault = Fault::Fail(tonic::Code::Internal, "disk is broken".into());
    setup.fake.fault(Call::ImageStatus, fault);
    let error = setup.ensure("busybox:1", "IfNotPresent").await.unwrap_err();
    assert_eq!(error.reason, "ImageInspectError");
    assert_eq!(
        error.message,
        r#"Failed to inspect image "": rpc error: code = Internal desc = disk is broken"#
    );
    assert_eq!(setup.fake.count(Call::PullImage), 0);
}

#[rstest]
#[case(
    "RegistryUnavailable: no route",
    "RegistryUnavailable",
    "image pull failed for a:1 because the registry is unavailable: no route"
)]
#[case(
    "SignatureValidationFailed",
    "SignatureValidationFailed",
    "image pull failed for a:1 because the signature validation failed"
)]
#[case("failed to pull", "ErrImagePull", "failed to pull")]
#[tokio::test]
async fn a_runtimes_own_reason_becomes_the_waiting_reason(
    #[case] said: &str,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let setup = setup();
    let fault = Fault::Fail(tonic::Code::Unknown, said.into());
    setup.fake.fault(Call::PullImage, fault);
    let error = setup.ensure("a:1", "Always").await.unwrap_err();
    assert_eq!((error.reason, error.message.as_str()), (reason, message));
}

#[tokio::test]
async fn pulls_run_one_at_a_time_where_they_are_serialized() {
    let setup = setup();
    setup.fake.with(|world| {
        world.offer("a:1", 1);
        world.offer("b:1", 1);
    });
    let slow = Duration::from_millis(300);
    setup.fake.fault(Call::PullImage, Fault::Delay(slow));
    setup.fake.fault(Call::PullImage, Fault::Delay(slow));
    let started = Instant::now();
    let (a, b) =
        futures::future::join(setup.ensure("a:1", "Always"), setup.ensure("b:1", "Always")).await;
    a.unwrap();
    b.unwrap();
    assert!(started.elapsed() >= 2 * slow);
    let kinds: Vec<_> = setup
        .fake
        .calls()
        .into_iter()
        .map(|(call, _)| call)
        .collect();
    assert_eq!(
        kinds,
        [
            Call::PullImage,
            Call::ImageStatus,
            Call::PullImage,
            Call::ImageStatus
        ]
    );
}

#[tokio::test]
async fn more_pulls_than_the_rate_allows_fail() {
    let setup = setup_with(&ImageSettings {
        max_parallel_pulls: None,
        pull_qps: 1,
        pull_burst: 1,
    });
    setup.fake.with(|world| {
        world.offer("a:1", 1);
        world.offer("b:1", 1);
    });
    setup.ensure("a:1", "Always").await.unwrap();
    let error = setup.ensure("b:1", "Always").await.unwrap_err();
    assert_eq!(
        (error.reason, error.message.as_str()),
        ("ErrImagePull", "pull QPS exceeded")
    );
}

#[rstest]
#[case(0, "0s")]
#[case(450, "450ms")]
#[case(1_000, "1s")]
#[case(1_230, "1.23s")]
#[case(62_005, "1m2.005s")]
#[case(3_600_000, "1h0m0s")]
fn durations_are_printed_as_go_does(#[case] milliseconds: u64, #[case] expected: &str) {
    assert_eq!(printed(Duration::from_millis(milliseconds)), expected);
}

#[rstest]
#[case(0, "")]
#[case(1, "0-10MB")]
#[case(10 * 1024 * 1024, "0-10MB")]
#[case(10 * 1024 * 1024 + 1, "10MB-100MB")]
#[case(3 << 30, "1GB-5GB")]
#[case(200 << 30, "GT100GB")]
fn sizes_have_upstreams_labels(#[case] bytes: u64, #[case] label: &str) {
    assert_eq!(size_label(bytes), label);
}
