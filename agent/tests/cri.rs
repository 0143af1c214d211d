//! The CRI client against real runtimes: the distribution's containerd and the tested one. Run by
//! `cargo xtask test`, as root, in a box of namespaces.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use agent::{
    config::{CgroupDriver, RuntimeSettings},
    cri::{Client, EventKind, ListedState, api, labels},
    supervise::{Settings, start_or_adopt, stop},
    types::{
        id::{ContainerId, PodUid, SandboxId},
        runtime::{ContainerState, Exit, Witness},
    },
};
use futures::{StreamExt as _, future::join_all};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(60);
const IMAGE: &str = "skep.local/busybox:1";

struct Box {
    settings: Settings,
    root: PathBuf,
    cgroup: String,
}

/// Where things are; none (and a line that `cargo xtask test` counts as a failure) outside a box.
fn boxed(test: &str, bin_dirs: &str) -> Option<Box> {
    let (Some(dir), Some(images), Ok(cgroup)) = (
        env::var_os("SKEP_TEST_DIR"),
        env::var_os("SKEP_TEST_IMAGES"),
        env::var("SKEP_TEST_CGROUP"),
    ) else {
        println!("SKIPPED {test}: needs the box of cargo xtask test");
        return None;
    };
    let root = Path::new(&dir).join(test);
    fs::create_dir_all(&root).unwrap();
    let mut settings = Settings::for_root(&root, "skep.local/pause:1");
    settings.images_dir = Some(images.into());
    settings.bin_dirs = env::split_paths(bin_dirs).collect();
    Some(Box {
        settings,
        root,
        cgroup: format!("{cgroup}-{test}"),
    })
}

/// What a box's runtime is asked for; one pod.
struct Pod {
    client: Client,
    uid: PodUid,
    config: api::PodSandboxConfig,
    sandbox: SandboxId,
}

impl Pod {
    async fn run(client: Client, setup: &Box) -> Self {
        let uid = format!("uid-{}", setup.cgroup);
        let logs = setup.root.join("logs");
        fs::create_dir_all(&logs).unwrap();
        let config = api::PodSandboxConfig {
            metadata: Some(api::PodSandboxMetadata {
                name: "web".into(),
                namespace: "default".into(),
                uid: uid.clone(),
                attempt: 0,
            }),
            hostname: "web".into(),
            log_directory: logs.display().to_string(),
            labels: HashMap::from([(labels::POD_UID.to_owned(), uid.clone())]),
            linux: Some(api::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", setup.cgroup),
                ..Default::default()
            }),
            ..Default::default()
        };
        let sandbox = timeout(LIMIT, client.run_sandbox(config.clone(), "")).await;
        Self {
            sandbox: sandbox.unwrap().unwrap(),
            client,
            uid: uid.into(),
            config,
        }
    }

    async fn start(&self, name: &str, script: &str) -> ContainerId {
        let config = api::ContainerConfig {
            metadata: Some(api::ContainerMetadata {
                name: name.into(),
                attempt: 1,
            }),
            image: Some(api::ImageSpec {
                image: IMAGE.into(),
                ..Default::default()
            }),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            labels: HashMap::from([(labels::POD_UID.to_owned(), self.uid.to_string())]),
            annotations: HashMap::from([(
                "io.kubernetes.container.hash".to_owned(),
                "abc1".to_owned(),
            )]),
            log_path: format!("{name}.log"),
            linux: Some(api::LinuxContainerConfig::default()),
            ..Default::default()
        };
        let client = &self.client;
        let id = client
            .create_container(&self.sandbox, config, &self.config)
            .await;
        let id = id.unwrap();
        client.start_container(&id).await.unwrap();
        id
    }

    async fn exit(&self, id: &ContainerId) -> Exit {
        timeout(LIMIT, async {
            loop {
                let container = self
                    .client
                    .container_status(id, &self.sandbox)
                    .await
                    .unwrap();
                if let ContainerState::Exited(exit) = container.state {
                    return exit;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap()
    }

    async fn remove(self) {
        self.client.stop_sandbox(&self.sandbox).await.unwrap();
        let sandbox = self.client.sandbox_status(&self.sandbox).await.unwrap();
        assert!(!sandbox.is_ready);
        self.client.remove_sandbox(&self.sandbox).await.unwrap();
        let gone = self.client.sandbox_status(&self.sandbox).await;
        assert!(gone.unwrap_err().is_not_found());
        assert!(self.client.list_pod(&self.uid).await.unwrap().is_empty());
    }
}

/// What came to containerd's side of the interface after its 1.6.
#[derive(Clone, Copy)]
struct Has {
    /// Since 1.7.
    events: bool,
    /// Since 2.0.
    configuration: bool,
}

async fn speaks(setup: &Box, has: Has) {
    let client = Client::new(&RuntimeSettings {
        endpoint: setup.settings.endpoint(),
        image_endpoint: None,
        request_timeout: LIMIT,
    })
    .unwrap();

    assert_eq!(client.version().await.unwrap().runtime_name, "containerd");
    timeout(LIMIT, async {
        while !client.status().await.unwrap().network.is_true {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
    let driver = client.runtime_config().await.unwrap();
    assert_eq!(driver, has.configuration.then_some(CgroupDriver::Cgroupfs));
    let none = BTreeMap::new();
    let image = client.image_status(IMAGE, &none).await.unwrap().unwrap();
    assert!(image.size > 0);
    assert!(
        client
            .list_images()
            .await
            .unwrap()
            .iter()
            .any(|other| other.id == image.id)
    );
    assert_eq!(
        client
            .image_status("skep.local/other:1", &none)
            .await
            .unwrap(),
        None
    );
    let error = client
        .pull_image("127.0.0.1:1/x:1", &none, None, None)
        .await
        .unwrap_err();
    assert!(error.message().contains("127.0.0.1:1/x:1"), "{error}");
    assert_eq!(client.image_fs_info().await.unwrap().images.len(), 1);
    let events = client.events().await;

    let pod = Pod::run(client.clone(), setup).await;
    let sandbox = client.sandbox_status(&pod.sandbox).await.unwrap();
    assert!(sandbox.is_ready && !sandbox.is_host_network);
    assert_eq!(sandbox.ips.len(), 1);
    let pause = client.sandbox_pid(&pod.sandbox).await.unwrap().unwrap();
    assert!(Path::new(&format!("/proc/{pause}")).exists());

    let short = pod.start("short", "echo hello; sleep 0.2; exit 7").await;
    let exit = pod.exit(&short).await;
    assert_eq!((exit.code, exit.reason.as_str()), (7, "Error"));
    assert_eq!((exit.witness, exit.oom_seen), (Witness::Runtime, false));
    // (A container that ends at once can have ended before the runtime takes its start's time.)
    assert!(exit.started_at.unwrap() <= exit.finished_at);
    let log = fs::read_to_string(setup.root.join("logs/short.log")).unwrap();
    assert!(log.ends_with(" stdout F hello\n"), "{log}");

    let long = pod.start("long", "trap '' TERM; sleep 1000").await;
    let status = client
        .container_status_and_pid(&long, &pod.sandbox)
        .await
        .unwrap();
    assert!(status.state.is_running());
    assert_eq!((status.hash, status.attempt), (Some(0xabc1), 1));
    assert_eq!(status.image, IMAGE);
    assert_eq!(
        status.log_path.map(PathBuf::from),
        Some(setup.root.join("logs/long.log"))
    );
    // The runtime calls it running a moment before its init becomes the container's program.
    let cmdline = format!("/proc/{}/cmdline", status.pid.unwrap());
    timeout(LIMIT, async {
        while !fs::read_to_string(&cmdline).unwrap().contains("sleep") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the pid is the main process's");
    let script = "echo out; echo err >&2; exit 3";
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let output = client
        .exec_sync(&long, command, Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(
        (output.stdout, output.stderr),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    assert_eq!(output.code, 3);
    client.reopen_log(&long).await.unwrap();

    let listed = client.list_pod(&pod.uid).await.unwrap();
    let states: Vec<_> = listed
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.state))
        .collect();
    assert_eq!(
        states,
        [
            ("long", ListedState::Running),
            ("short", ListedState::Exited)
        ]
    );
    assert_eq!(listed.sandboxes[0].id, pod.sandbox);
    assert!(client.list_pods().await.unwrap().contains(&listed));

    client
        .stop_container(&long, Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(pod.exit(&long).await.code, 137);
    assert_eq!(client.container_pid(&long).await.unwrap(), None);
    match events {
        Ok(mut events) => {
            assert!(has.events);
            let stopped = async {
                loop {
                    let event = events.next().await.unwrap().unwrap();
                    if event.container == long && event.kind == EventKind::Stopped {
                        return event;
                    }
                }
            };
            let event = timeout(LIMIT, stopped).await.unwrap();
            assert_eq!(event.uid, Some(pod.uid.clone()));
        }
        Err(error) => {
            assert!(!has.events, "{error}");
            assert!(error.is_unimplemented(), "{error}");
        }
    }
    // At one time and once more: the runtime itself refuses the second of two.
    for removed in join_all((0..8).map(|_| client.remove_container(&short))).await {
        removed.unwrap();
    }
    client.remove_container(&short).await.unwrap();
    pod.remove().await;
}

async fn with_runtime(setup: Box, has: Has) {
    let started = timeout(LIMIT, start_or_adopt(setup.settings.clone())).await;
    let _running = started.unwrap().unwrap();
    speaks(&setup, has).await;
    timeout(LIMIT, stop(&setup.settings))
        .await
        .unwrap()
        .unwrap();
    for tree in fs::read_dir("/sys/fs/cgroup").unwrap() {
        let _ = fs::remove_dir(tree.unwrap().path().join(&setup.cgroup)); // not in every tree
    }
    let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&setup.cgroup));
}

#[tokio::test]
async fn the_distributions_containerd_is_understood() {
    if let Some(setup) = boxed("c1", "") {
        let version = agent::supervise::installed(&setup.settings).await.unwrap();
        let has = Has {
            events: (version.major, version.minor) >= (1, 7),
            configuration: version.major >= 2,
        };
        with_runtime(setup, has).await;
    }
}

#[tokio::test]
async fn the_tested_containerd_is_understood() {
    let bin_dirs = env::var("SKEP_TEST_BIN_DIRS").unwrap_or_default();
    if let Some(setup) = boxed("c2", &bin_dirs) {
        let has = Has {
            events: true,
            configuration: true,
        };
        with_runtime(setup, has).await;
    }
}
