use std::{collections::HashSet, sync::Arc, time::Duration};

use super::*;
use crate::{
    cri::{Call, Client, api, fake::Fake, fake::Fault},
    types::{
        id::{PodKey, PodUid},
        runtime::{
            Container, ContainerState, Exit, RuntimePod, Sandbox, Witness, container_for_tests,
        },
    },
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn settings() -> GcSettings {
    GcSettings {
        min_age: Duration::ZERO,
        max_per_container: Some(1),
        max_dead: None,
    }
}

fn container(id: &str, name: &str, created: i64, state: ContainerState) -> Container {
    Container {
        id: id.into(),
        sandbox: "s1".into(),
        created_at: at(created),
        ..container_for_tests(name, state)
    }
}

fn exited_by(witness: Witness) -> ContainerState {
    ContainerState::Exited(Exit {
        code: 1,
        signal: 0,
        reason: "Error".into(),
        message: String::new(),
        started_at: None,
        finished_at: at(0),
        witness,
        oom_seen: false,
    })
}

fn exited() -> ContainerState {
    exited_by(Witness::Runtime)
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: at(0) }
}

fn sandbox(id: &str, attempt: u32, created: i64, is_ready: bool) -> Sandbox {
    Sandbox {
        id: id.into(),
        attempt,
        is_ready,
        created_at: at(created),
        ips: Vec::new(),
        is_host_network: false,
        runtime_handler: String::new(),
    }
}

fn pod(uid: &str, sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> SharedRuntimePod {
    Arc::new(RuntimePod {
        uid: uid.into(),
        key: PodKey::new("default", uid),
        sandboxes,
        containers,
    })
}

fn uids(uids: &[&str]) -> HashSet<PodUid> {
    uids.iter().map(|uid| PodUid::from(*uid)).collect()
}

/// The ids that go, of a snapshot in which `known` are known and `finished` are finished.
fn going(
    snapshot: &[SharedRuntimePod],
    (known, finished): (&[&str], &[&str]),
    are_sources_ready: bool,
    settings: &GcSettings,
) -> Vec<String> {
    let (known, finished) = (uids(known), uids(finished));
    let pods = Pods {
        known: &known,
        finished: &finished,
        are_sources_ready,
    };
    containers(snapshot, &pods, settings, at(1000))
        .into_iter()
        .map(|removal| removal.id.to_string())
        .collect()
}

#[test]
fn the_newest_dead_container_of_each_name_stays() {
    let snapshot = [pod(
        "u",
        vec![],
        vec![
            container("a4", "a", 4, running()),
            container("a3", "a", 3, exited()),
            container("a2", "a", 2, exited()),
            container("b2", "b", 2, exited()),
            container("a1", "a", 1, exited()),
            container("b1", "b", 1, ContainerState::Unknown),
            container("b0", "b", 0, ContainerState::Created),
        ],
    )];
    let going = going(&snapshot, (&["u"], &[]), true, &settings());
    assert_eq!(going, ["b0", "a1", "b1", "a2"]);
}

#[test]
fn everything_dead_of_a_pod_that_nobody_wants_goes_once_all_sources_are_ready() {
    let snapshot = [
        pod("gone", vec![], vec![container("g", "a", 1, exited())]),
        pod("done", vec![], vec![container("d", "a", 2, exited())]),
        pod(
            "stopping",
            vec![],
            vec![
                container("s", "a", 3, exited()),
                container("r", "b", 3, running()),
            ],
        ),
    ];
    let known: (&[&str], &[&str]) = (&["done", "stopping"], &["done"]);
    assert_eq!(going(&snapshot, known, true, &settings()), ["g", "d"]);
    let none: [String; 0] = [];
    assert_eq!(going(&snapshot, known, false, &settings()), none);
}

#[test]
fn an_exit_that_only_the_kernel_told_keeps_its_container_and_sandbox() {
    let snapshot = [pod(
        "gone",
        vec![sandbox("s1", 0, 1, false)],
        vec![container("k", "a", 1, exited_by(Witness::Kernel))],
    )];
    let none: [String; 0] = [];
    assert_eq!(going(&snapshot, (&[], &[]), true, &settings()), none);
    let known = HashSet::new();
    let pods = Pods {
        known: &known,
        finished: &known,
        are_sources_ready: true,
    };
    assert_eq!(sandboxes(&snapshot, &pods, &[]), []);
}

#[test]
fn a_young_container_stays() {
    let snapshot = [pod(
        "gone",
        vec![],
        vec![container("y", "a", 900, exited())],
    )];
    let mut settings = settings();
    settings.min_age = Duration::from_secs(101);
    let none: [String; 0] = [];
    assert_eq!(going(&snapshot, (&[], &[]), true, &settings), none);
    settings.min_age = Duration::from_secs(100);
    assert_eq!(going(&snapshot, (&[], &[]), true, &settings), ["y"]);
}

#[test]
fn a_total_is_shared_between_names_and_then_the_oldest_go() {
    let dead = |id: &str, name: &str, created| container(id, name, created, exited());
    let snapshot = [
        pod(
            "u",
            vec![],
            vec![
                dead("a1", "a", 1),
                dead("a2", "a", 2),
                dead("a3", "a", 3),
                dead("b9", "b", 9),
            ],
        ),
        pod("v", vec![], vec![dead("c5", "c", 5)]),
    ];
    let limits = |max_per_container, max_dead| GcSettings {
        min_age: Duration::ZERO,
        max_per_container,
        max_dead,
    };
    let known: (&[&str], &[&str]) = (&["u", "v"], &[]);
    let go = |settings| going(&snapshot, known, true, &settings);
    let none: [String; 0] = [];
    assert_eq!(go(limits(None, None)), none);
    assert_eq!(go(limits(None, Some(5))), none);
    assert_eq!(go(limits(None, Some(3))), ["a1", "a2"]);
    assert_eq!(go(limits(None, Some(2))), ["a1", "a2", "a3"]);
    assert_eq!(go(limits(Some(0), None)), ["a1", "a2", "a3", "c5", "b9"]);
    assert_eq!(go(limits(Some(2), Some(0))), ["a1", "a2", "a3", "c5", "b9"]);
}

#[test]
fn dead_empty_sandboxes_go_but_for_the_newest_of_a_pod_that_stays() {
    let three = || {
        vec![
            sandbox("new", 2, 30, false),
            sandbox("mid", 1, 20, false),
            sandbox("s1", 0, 10, false),
        ]
    };
    let dead = container("c", "a", 11, exited());
    let go = |snapshot: &[SharedRuntimePod], known: &[&str], removed: &[&str]| {
        let (known, finished) = (uids(known), HashSet::new());
        let pods = Pods {
            known: &known,
            finished: &finished,
            are_sources_ready: true,
        };
        let removed: Vec<_> = removed.iter().map(|id| ContainerId::from(*id)).collect();
        let ids = sandboxes(snapshot, &pods, &removed);
        ids.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let snapshot = [pod("u", three(), vec![dead.clone()])];
    assert_eq!(go(&snapshot, &["u"], &[]), ["mid"]);
    assert_eq!(go(&snapshot, &["u"], &["c"]), ["s1", "mid"]);
    assert_eq!(go(&snapshot, &[], &["c"]), ["s1", "mid", "new"]);
    let ready = [pod("u", vec![sandbox("r", 0, 1, true)], vec![])];
    assert_eq!(go(&ready, &[], &[]), Vec::<String>::new());
}

#[test]
fn a_death_removes_the_elder_dead_of_its_name() {
    let pod = pod(
        "u",
        vec![],
        vec![
            container("a3", "a", 3, exited()),
            container("a2", "a", 2, exited_by(Witness::Kernel)),
            container("a1", "a", 1, exited()),
            container("b1", "b", 1, exited()),
            container("b0", "b", 0, exited()),
            container("r", "c", 0, running()),
        ],
    );
    let go = |died: &str, is_finished, settings: &GcSettings| -> Vec<String> {
        let removals = after_death(&pod, &died.into(), is_finished, settings);
        removals
            .iter()
            .map(|removal| removal.id.to_string())
            .collect()
    };
    assert_eq!(go("a3", false, &settings()), ["a1"]);
    assert_eq!(go("gone", false, &settings()), Vec::<String>::new());
    assert_eq!(go("a3", true, &settings()), ["a3", "a1", "b1", "b0"]);
    let mut none_kept = settings();
    none_kept.max_per_container = Some(0);
    assert_eq!(go("b1", false, &none_kept), ["b0"]);
    none_kept.max_per_container = None;
    assert_eq!(go("b1", false, &none_kept), Vec::<String>::new());
}

struct Setup {
    fake: Fake,
    client: Client,
    collector: Collector,
    folder: tempfile::TempDir,
}

fn setup() -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(&folder.path().join("cri.sock")).unwrap();
    let client = Client::new(&fake.settings(Duration::from_secs(20))).unwrap();
    let dirs = Dirs {
        root: folder.path().join("root"),
        pod_logs: folder.path().join("pods"),
        container_logs: folder.path().join("containers"),
    };
    std::fs::create_dir_all(&dirs.container_logs).unwrap();
    let collector = Collector::new(client.clone(), dirs, settings());
    Setup {
        fake,
        client,
        collector,
        folder,
    }
}

impl Setup {
    /// A pod whose only container has exited, with its logs; as the cache would have it.
    async fn dead_pod(&self, uid: &str) -> SharedRuntimePod {
        let logs = self.folder.path().join(format!("pods/default_{uid}_{uid}"));
        let config = api::PodSandboxConfig {
            metadata: Some(api::PodSandboxMetadata {
                name: uid.into(),
                uid: uid.into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            log_directory: logs.display().to_string(),
            ..Default::default()
        };
        let sandbox = self.client.run_sandbox(config.clone(), "").await.unwrap();
        let container = api::ContainerConfig {
            metadata: Some(api::ContainerMetadata {
                name: "main".into(),
                attempt: 0,
            }),
            image: Some(api::ImageSpec {
                image: "busybox:1".into(),
                ..Default::default()
            }),
            log_path: "main/0.log".into(),
            ..Default::default()
        };
        let id = self
            .client
            .create_container(&sandbox, container, &config)
            .await
            .unwrap();
        self.fake
            .with(|world| world.exit(id.as_str(), 0, "Completed"));
        self.client.stop_sandbox(&sandbox).await.unwrap();

        std::fs::create_dir_all(logs.join("main")).unwrap();
        for file in [
            "0.log",
            "0.log.20260101-000000",
            "0.log.20260101-000000.gz",
            "1.log",
        ] {
            std::fs::write(logs.join("main").join(file), "line").unwrap();
        }
        let link = log_link_name(&PodKey::new("default", uid), "main", &id);
        let link = self.folder.path().join("containers").join(link);
        std::os::unix::fs::symlink(logs.join("main/0.log"), link).unwrap();
        Arc::new(RuntimePod {
            uid: uid.into(),
            key: PodKey::new("default", uid),
            containers: vec![self.client.container_status(&id, &sandbox).await.unwrap()],
            sandboxes: vec![self.client.sandbox_status(&sandbox).await.unwrap()],
        })
    }

    async fn collect(&self, snapshot: &[SharedRuntimePod], known: &[&str]) -> Vec<String> {
        let (known, finished) = (uids(known), HashSet::new());
        let pods = Pods {
            known: &known,
            finished: &finished,
            are_sources_ready: true,
        };
        let now = Timestamp::from_second(4_000_000_000).unwrap();
        let errors = self
            .collector
            .collect(snapshot, &pods, &|uid| uid.as_str() == "late", now)
            .await;
        errors.1.iter().map(ToString::to_string).collect()
    }

    fn exists(&self, path: &str) -> bool {
        self.folder.path().join(path).symlink_metadata().is_ok()
    }

    fn links(&self) -> usize {
        self.folder
            .path()
            .join("containers")
            .read_dir()
            .unwrap()
            .count()
    }
}

#[tokio::test]
async fn a_pod_that_nobody_wants_leaves_nothing_behind() {
    let setup = setup();
    let gone = setup.dead_pod("gone").await;
    let stays = setup.dead_pod("stays").await;
    std::fs::create_dir(setup.folder.path().join("pods/not-a-pod")).unwrap();
    assert_eq!(setup.collect(&[gone, stays], &["stays"]).await, [""; 0]);
    let left = setup.client.list_pods().await.unwrap();
    let left: Vec<_> = left.iter().map(|pod| pod.sandboxes.len()).collect();
    assert_eq!(left.iter().sum::<usize>(), 1);
    assert!(!setup.exists("pods/default_gone_gone"));
    assert!(setup.exists("pods/default_stays_stays/main/0.log"));
    assert!(setup.exists("pods/not-a-pod"));
    assert_eq!(setup.links(), 1);
    let calls: Vec<_> = setup
        .fake
        .calls()
        .into_iter()
        .map(|(call, _)| call)
        .collect();
    let removal = calls.iter().position(|call| *call == Call::RemoveContainer);
    let sandbox = calls
        .iter()
        .position(|call| *call == Call::RemovePodSandbox);
    assert!(removal.unwrap() < sandbox.unwrap());
}

#[tokio::test]
async fn the_end_of_down_removes_what_is_too_young_otherwise() {
    let setup = setup();
    let pod = setup.dead_pod("young").await;
    let collector = Collector {
        settings: GcSettings {
            min_age: Duration::from_secs(100 * 365 * 24 * 3600),
            ..settings()
        },
        ..setup.collector.clone()
    };
    let (changed, errors) = collector.collect_everything(&[pod]).await;
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(changed, uids(&["young"]).into_iter().collect());
    assert_eq!(setup.client.list_pods().await.unwrap(), []);
}

#[tokio::test]
async fn a_containers_logs_go_with_it_and_no_other_ones() {
    let setup = setup();
    let pod = setup.dead_pod("u").await;
    let removal = Removal::new(&pod, &pod.containers[0]);
    setup.collector.remove(&removal).await.unwrap();
    assert_eq!(setup.fake.count(Call::RemoveContainer), 1);
    for file in ["0.log", "0.log.20260101-000000", "0.log.20260101-000000.gz"] {
        assert!(
            !setup.exists(&format!("pods/default_u_u/main/{file}")),
            "{file}"
        );
    }
    assert!(setup.exists("pods/default_u_u/main/1.log"));
    assert_eq!(setup.links(), 0);
    // A second time there is nothing, which is no error.
    setup.collector.remove(&removal).await.unwrap();
}

#[tokio::test]
async fn a_container_whose_log_cannot_be_removed_stays() {
    let setup = setup();
    let pod = setup.dead_pod("u").await;
    let log = setup.folder.path().join("pods/default_u_u/main/0.log");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap(); // what root cannot remove as a file
    let removal = Removal::new(&pod, &pod.containers[0]);
    let error = setup.collector.remove(&removal).await.unwrap_err();
    assert_eq!(error.to_string(), format!("remove log {}", log.display()));
    assert_eq!(setup.fake.count(Call::RemoveContainer), 0);
}

#[tokio::test]
async fn a_sandbox_whose_container_could_not_be_removed_stays() {
    let setup = setup();
    let pod = setup.dead_pod("gone").await;
    let id = pod.containers[0].id.clone();
    let fault = Fault::Fail(tonic::Code::Unknown, "device is busy".into());
    setup.fake.fault(Call::RemoveContainer, fault);
    let errors = setup.collect(&[pod], &[]).await;
    assert_eq!(errors, [format!("remove container {id}")]);
    assert_eq!(setup.fake.count(Call::RemovePodSandbox), 0);
}

#[tokio::test]
async fn a_container_of_unknown_state_is_stopped_before_it_is_removed() {
    let setup = setup();
    let pod = setup.dead_pod("u").await;
    let mut unknown = pod.containers[0].clone();
    unknown.state = ContainerState::Unknown;
    let removal = Removal::new(&pod, &unknown);
    setup.collector.remove(&removal).await.unwrap();
    let calls = setup.fake.calls();
    let last: Vec<_> = calls.iter().rev().take(2).map(|(call, _)| *call).collect();
    assert_eq!(last, [Call::RemoveContainer, Call::StopContainer]);
}

#[tokio::test]
async fn a_dead_link_stays_while_its_container_lives() {
    let setup = setup();
    let pod = setup.dead_pod("u").await;
    let log = setup.folder.path().join("pods/default_u_u/main/0.log");
    std::fs::remove_file(log).unwrap();
    setup.fake.with(|world| {
        let container = world.containers.values_mut().next().unwrap();
        container
            .status
            .set_state(api::ContainerState::ContainerRunning);
    });
    let foreign = setup.folder.path().join("containers/notes.log");
    std::fs::write(&foreign, "mine").unwrap();
    assert_eq!(setup.collect(&[], &["u"]).await, [""; 0]);
    assert_eq!(setup.links(), 2);
    let id = pod.containers[0].id.to_string();
    setup.fake.with(|world| world.exit(&id, 0, "Completed"));
    assert_eq!(setup.collect(&[], &["u"]).await, [""; 0]);
    assert_eq!(setup.links(), 1);
    assert!(foreign.exists());
}

#[tokio::test]
async fn the_log_folder_of_a_pod_that_came_meanwhile_stays() {
    let setup = setup();
    for name in ["default_late_late", "default_gone_gone"] {
        std::fs::create_dir_all(setup.folder.path().join("pods").join(name)).unwrap();
    }
    assert_eq!(setup.collect(&[], &[]).await, [""; 0]);
    assert!(setup.exists("pods/default_late_late"));
    assert!(!setup.exists("pods/default_gone_gone"));
}
