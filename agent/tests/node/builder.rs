//! What a node is to be like, and how it is brought up.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use agent::{config::RuntimeSettings, cri, supervise};
use tokio::sync::Semaphore;

use super::{NAME, Node, leftovers, patient};

/// More nodes at a time would only wait for each other.
static ROOM: Semaphore = Semaphore::const_new(3);
/// Folders and ports are numbered by it.
static NEXT: AtomicU16 = AtomicU16::new(0);
const PAUSE_IMAGE: &str = "skep.local/pause:1";

/// How the agent comes to its runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// `skep up`, which starts a containerd.
    Up,
    /// `skep up --runtime-endpoint`, on a containerd of the test's.
    UpOnEndpoint,
    /// `skep run` with a configuration file, on a containerd of the test's.
    Run,
}

#[derive(Clone, Debug)]
pub(crate) struct Builder {
    start: Start,
    mode: String,
    safety_period: String,
    ring_bytes: u32,
    max_restart_period: String,
    args: Vec<String>,
    config: serde_json::Value,
    env: Vec<(String, String)>,
    is_distributions: bool,
    has_runtime: bool,
    is_behind_proxy: bool,
    launcher: Option<Launcher>,
    manifests: Vec<(String, String)>,
}

/// Makes the command that starts a program with these arguments, in its own way.
pub(crate) type Launcher = fn(&Path, &[String]) -> std::process::Command;

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            start: Start::Up,
            mode: "kernel".to_owned(),
            safety_period: "1h".to_owned(),
            ring_bytes: 1 << 20,
            max_restart_period: "5m".to_owned(),
            args: Vec::new(),
            config: serde_json::json!({}),
            env: Vec::new(),
            is_distributions: false,
            has_runtime: true,
            is_behind_proxy: false,
            launcher: None,
            manifests: Vec::new(),
        }
    }

    /// The best mode of the PLEG: kernel, stream or listing.
    pub(crate) fn mode(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.mode);
        self
    }

    pub(crate) fn safety_period(mut self, period: &str) -> Self {
        period.clone_into(&mut self.safety_period);
        self
    }

    pub(crate) fn ring_bytes(mut self, bytes: u32) -> Self {
        self.ring_bytes = bytes;
        self
    }

    pub(crate) fn max_restart_period(mut self, period: &str) -> Self {
        period.clone_into(&mut self.max_restart_period);
        self
    }

    /// Further arguments of `skep up` or `skep run`.
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Further fields of the file of `skep run`.
    pub(crate) fn config(mut self, fields: serde_json::Value) -> Self {
        self.config = fields;
        self
    }

    /// A variable of the agent's environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A containerd that the test starts, stops and pauses, and the agent does not.
    pub(crate) fn external_containerd(mut self) -> Self {
        self.start = Start::UpOnEndpoint;
        self
    }

    /// A containerd of the test's, which the agent reaches through [`Node::proxy_socket`]: somebody
    /// must serve that before the agent starts.
    pub(crate) fn behind_proxy(mut self) -> Self {
        self.is_behind_proxy = true;
        self.external_containerd()
    }

    /// How the agent is started, instead of directly.
    pub(crate) fn launcher(mut self, launcher: Launcher) -> Self {
        self.launcher = Some(launcher);
        self
    }

    /// `skep run` with a file, on a containerd of the test's.
    pub(crate) fn run(mut self) -> Self {
        self.start = Start::Run;
        self
    }

    /// The test's containerd is not there yet when the agent starts: [`Node::start_runtime`].
    pub(crate) fn without_runtime(mut self) -> Self {
        self.has_runtime = false;
        self
    }

    /// The containerd and runc that the distribution installed, instead of the tested ones.
    pub(crate) fn of_distribution(mut self) -> Self {
        self.is_distributions = true;
        self
    }

    /// A manifest that is there before the agent starts.
    pub(crate) fn manifest(mut self, name: &str, text: impl ToString) -> Self {
        self.manifests.push((name.to_owned(), text.to_string()));
        self
    }

    /// Starts everything; returns once the agent's socket answers and, unless the runtime is left
    /// out, `/readyz` says that it is ready.
    pub(crate) async fn up(self) -> Node {
        let mut node = self.prepare().await;
        if node.runs_runtime && node.has_runtime {
            node.start_runtime().await;
        }
        node.start_agent().await;
        if node.has_runtime {
            node.until_ready().await;
        }
        node
    }

    /// Folders, cgroup and ports of a node on which nothing runs yet.
    pub(crate) async fn prepare(self) -> Node {
        let of_box = |name: &str| {
            env::var_os(name).unwrap_or_else(|| {
                panic!("{name} is not set: `cargo xtask test` runs this in a box")
            })
        };
        let permit = ROOM.acquire().await.expect("is never closed");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(&of_box("SKEP_TEST_DIR")).join(format!("n{number}"));
        let cgroup = format!("{}-n{number}", of_box("SKEP_TEST_CGROUP").display());
        let root = dir.join("root");
        let manifests = dir.join("manifests");
        for dir in [&root, &manifests] {
            fs::create_dir_all(dir).unwrap();
        }
        leftovers::make_cgroup(&cgroup);
        leftovers::enter();
        let bin_dirs: Vec<_> = if self.is_distributions {
            Vec::new()
        } else {
            env::split_paths(&of_box("SKEP_TEST_BIN_DIRS")).collect()
        };
        let path = env::var_os("PATH").unwrap_or_default();
        let path =
            env::join_paths(bin_dirs.iter().cloned().chain(env::split_paths(&path))).unwrap();
        let images = PathBuf::from(of_box("SKEP_TEST_IMAGES"));
        let runs_runtime = self.start != Start::Up;
        let runtime = supervise::Settings {
            bin_dirs,
            images_dir: Some(images.clone()),
            ..supervise::Settings::for_root(if runs_runtime { &dir } else { &root }, PAUSE_IMAGE)
        };
        let client = cri::Client::new(&RuntimeSettings {
            endpoint: runtime.endpoint(),
            image_endpoint: None,
            request_timeout: patient(Duration::from_secs(10)),
        })
        .unwrap();
        for (name, text) in &self.manifests {
            fs::write(manifests.join(name), text).unwrap();
        }
        let mut node = Node {
            healthz_port: 21000 + 2 * number,
            args: Vec::new(),
            launcher: self.launcher,
            env: self.env.clone(),
            path,
            dir,
            root,
            manifests,
            cgroup,
            runtime,
            runs_runtime,
            has_runtime: self.has_runtime,
            runtime_pid: None,
            client,
            agent: None,
            is_finished: false,
            _permit: permit,
        };
        node.args = self.command_line(&node, &images);
        node
    }

    fn command_line(self, node: &Node, images: &Path) -> Vec<String> {
        let Self {
            start,
            mode,
            safety_period,
            ring_bytes,
            max_restart_period,
            args,
            config: fields,
            is_behind_proxy,
            ..
        } = self;
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (healthz, read_only) = (node.healthz_port, node.healthz_port + 1);
        let endpoint = if is_behind_proxy {
            format!("unix://{}", node.proxy_socket().display())
        } else {
            node.runtime.endpoint()
        };
        let cgroup = format!("/{}", node.cgroup);
        let mut line: Vec<String> = match start {
            Start::Up | Start::UpOnEndpoint => vec![
                "--root".into(),
                text(&node.root),
                "up".into(),
                "--manifests".into(),
                text(&node.manifests),
                format!("--node-name={NAME}"),
                format!("--cgroup-root={cgroup}"),
                format!("--healthz-port={healthz}"),
                format!("--read-only-port={read_only}"),
                format!("--max-restart-period={max_restart_period}"),
                "-v4".into(),
            ],
            Start::Run => {
                let file = node.dir.join("kubelet.yaml");
                let period = serde_json::json!({"maxContainerRestartPeriod": max_restart_period});
                let mut config = serde_json::json!({
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "staticPodPath": node.manifests,
                    "containerRuntimeEndpoint": endpoint,
                    "podLogsDir": node.root.join("log/pods"),
                    "cgroupRoot": cgroup,
                    "healthzPort": healthz,
                    "readOnlyPort": read_only,
                    "failCgroupV1": false,
                    "failSwapOn": false,
                    "crashLoopBackOff": period,
                });
                for (field, value) in fields.as_object().expect("is an object") {
                    config[field] = value.clone();
                }
                fs::write(&file, config.to_string()).unwrap();
                vec![
                    "run".into(),
                    format!("--config={}", file.display()),
                    format!("--root-dir={}", node.root.display()),
                    format!(
                        "--container-logs-dir={}/log/containers",
                        node.root.display()
                    ),
                    format!("--hostname-override={NAME}"),
                    "-v4".into(),
                ]
            }
        };
        line.push(format!("--pleg-mode={mode}"));
        line.push(format!("--pleg-safety-period={safety_period}"));
        line.push(format!("--kernel-ring-bytes={ring_bytes}"));
        match start {
            Start::Up => line.push(format!("--images={}", images.display())),
            Start::UpOnEndpoint => line.push(format!("--runtime-endpoint={endpoint}")),
            Start::Run => {}
        }
        line.extend(args);
        line
    }
}
