//! A whole node for a test: the built `skep` on a containerd, with folders, ports, cgroup and network
//! of its own, so that several live side by side in one box.
//!
//! [`Node::builder`] starts one, [`Node::until`] waits until its pods look as they should, and
//! [`Node::down`] ends it and makes sure that nothing is left. A test that fails on the way leaves
//! the node to `Drop`, which shows the end of the agent's log and removes what it can.

mod builder;
mod leftovers;
pub(crate) mod memory_kills;
mod picture;
mod talk;
pub(crate) mod yaml;

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    time::Duration,
};

use agent::{
    cri,
    server::wire,
    supervise::{self, State},
    types::{id::ContainerId, timeline::Entry},
};
use builder::{Builder, Launcher};
pub(crate) use leftovers::is_alive;
pub(crate) use picture::Picture;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::SemaphorePermit,
    time::{Instant, sleep, timeout},
};

/// For what takes a few seconds on an idle machine, which this one may not be.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// How many times as long everything takes as on an ordinary machine: an emulated one says so in
/// `SKEP_TEST_SLOWNESS`. All time limits are so much longer.
pub(crate) fn patient(limit: Duration) -> Duration {
    let slowness = env::var("SKEP_TEST_SLOWNESS").map_or(1, |text| {
        text.parse().expect("SKEP_TEST_SLOWNESS is a whole number")
    });
    limit * slowness
}

/// Between two looks at the pods.
const LOOK: Duration = Duration::from_millis(20);
/// The nodes' name.
pub(crate) const NAME: &str = "node";

#[derive(Debug)]
pub(crate) struct Node {
    /// Everything of the node is below it.
    pub(crate) dir: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) manifests: PathBuf,
    /// The cgroup, under each hierarchy's top, that all pods are in.
    pub(crate) cgroup: String,
    /// The read-only port is the next one.
    pub(crate) healthz_port: u16,
    /// The runtime, asked behind the agent's back.
    pub(crate) client: cri::Client,
    args: Vec<String>,
    launcher: Option<Launcher>,
    env: Vec<(String, String)>,
    path: OsString,
    runtime: supervise::Settings,
    /// The runtime is the test's to start and stop.
    runs_runtime: bool,
    has_runtime: bool,
    /// Of a runtime that the test started.
    runtime_pid: Option<i32>,
    agent: Option<Child>,
    is_finished: bool,
    _permit: SemaphorePermit<'static>,
}

impl Node {
    /// A node in kernel mode whose safety listing never comes by itself.
    pub(crate) fn builder() -> Builder {
        Builder::new()
    }

    // The agent's process.

    /// Starts it and waits until its socket answers.
    async fn start_agent(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_skep"));
        let mut command = match self.launcher {
            Some(launcher) => Command::from(launcher(program, &self.args)),
            None => {
                let mut command = Command::new(program);
                command.args(&self.args);
                command
            }
        };
        command
            .env("PATH", &self.path)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.agent = Some(command.spawn().unwrap());
        let deadline = Instant::now() + patient(SOON);
        while talk::get(&self.socket(), "/v1/status").await.is_err() {
            if let Some(status) = self.agent.as_mut().unwrap().try_wait().unwrap() {
                panic!("the agent ended at its start: {status}");
            }
            assert!(Instant::now() < deadline, "the agent does not answer");
            sleep(LOOK).await;
        }
    }

    /// After [`Node::kill_agent`] or [`Node::stop_agent`].
    pub(crate) async fn start_agent_again(&mut self) {
        assert!(self.agent.is_none(), "the agent still runs");
        self.start_agent().await;
        self.until_ready().await;
    }

    /// The same, without waiting until it is ready.
    pub(crate) async fn start_agent_only(&mut self) {
        assert!(self.agent.is_none(), "the agent still runs");
        self.start_agent().await;
    }

    pub(crate) async fn kill_agent(&mut self) {
        self.signal_agent(Signal::KILL);
        self.agent_end().await;
    }

    /// SIGTERM; the agent must say that it ended well.
    pub(crate) async fn stop_agent(&mut self) {
        self.signal_agent(Signal::TERM);
        let status = self.agent_end().await;
        assert!(status.success(), "the agent ended with {status}");
    }

    pub(crate) fn pause_agent(&self) {
        self.signal_agent(Signal::STOP);
    }

    pub(crate) fn resume_agent(&self) {
        self.signal_agent(Signal::CONT);
    }

    fn signal_agent(&self, signal: Signal) {
        let pid = self
            .agent
            .as_ref()
            .and_then(Child::id)
            .expect("no agent runs");
        send(pid.try_into().unwrap(), signal);
    }

    /// Waits for the agent's end.
    pub(crate) async fn agent_end(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().expect("no agent runs");
        match timeout(patient(SOON), agent.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => {
                self.agent = Some(agent);
                panic!("the agent does not end");
            }
        }
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    /// What the agent has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    // The runtime's process.

    /// Starts the test's containerd, again if need be.
    pub(crate) async fn start_runtime(&mut self) {
        assert!(self.runs_runtime, "the runtime is the agent's");
        let (running, _task) = timeout(
            patient(SOON),
            supervise::start_or_adopt(self.runtime.clone()),
        )
        .await
        .expect("containerd starts in time")
        .unwrap();
        let pid = match *running.state.borrow() {
            State::Running { pid } => pid,
            State::Restarting { ref why } => panic!("containerd does not run: {why}"),
        };
        self.runtime_pid = Some(pid);
        self.has_runtime = true;
    }

    /// SIGTERM to containerd; shims and containers go on. Waits for its end.
    pub(crate) async fn stop_runtime(&mut self) {
        assert!(self.runs_runtime, "the runtime is the agent's");
        let pid = self.runtime_pid.take().expect("no runtime runs");
        send(pid, Signal::TERM);
        let deadline = Instant::now() + patient(SOON);
        while is_alive(pid) {
            assert!(Instant::now() < deadline, "containerd does not end");
            sleep(LOOK).await;
        }
        self.has_runtime = false;
    }

    pub(crate) async fn pause_runtime(&self) {
        send(self.runtime_pid().await, Signal::STOP);
    }

    pub(crate) async fn resume_runtime(&self) {
        send(self.runtime_pid().await, Signal::CONT);
    }

    /// containerd's, whoever started it.
    pub(crate) async fn runtime_pid(&self) -> i32 {
        if let Some(pid) = self.runtime_pid {
            return pid;
        }
        let status: wire::Status = self.get("/v1/status").await;
        let pid = status.agent.pids.get("containerd").expect("its containerd");
        (*pid).try_into().unwrap()
    }

    /// Where containerd keeps its folders; for what ends runtimes in unusual ways.
    pub(crate) fn runtime_settings(&self) -> &supervise::Settings {
        &self.runtime
    }

    /// Where the agent of a node [`Builder::behind_proxy`] looks for its runtime.
    pub(crate) fn proxy_socket(&self) -> PathBuf {
        self.dir.join("proxy.sock")
    }

    /// All processes end at once, and what does not outlive a boot goes: the agent is to be started
    /// again.
    pub(crate) async fn pull_the_plug(&mut self) {
        let containerd = self.runtime_pid().await;
        self.kill_agent().await;
        send(containerd, Signal::KILL);
        leftovers::remove(&self.dir, &self.cgroup, &self.runtime.bridge());
        supervise::stop(&self.runtime).await.unwrap();
        leftovers::make_cgroup(&self.cgroup);
        self.runtime_pid = None;
    }

    // The manifests.

    /// Puts a manifest there, or replaces it, in one step.
    pub(crate) fn write(&self, name: &str, text: impl ToString) {
        let new = self.manifests.join(format!(".{name}.new"));
        fs::write(&new, text.to_string()).unwrap();
        fs::rename(new, self.manifests.join(name)).unwrap();
    }

    pub(crate) fn remove_manifest(&self, name: &str) {
        fs::remove_file(self.manifests.join(name)).unwrap();
    }

    // What the agent says.

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("skep.sock")
    }

    /// An answer of the local socket.
    pub(crate) async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let body = talk::get(&self.socket(), path).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// Status and text of a page on the healthz port.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        talk::page(self.healthz_port, path).await.unwrap()
    }

    /// The same of any port of this machine.
    pub(crate) async fn page_at(&self, port: u16, path: &str) -> anyhow::Result<(u16, String)> {
        talk::page(port, path).await
    }

    pub(crate) async fn pods(&self) -> Picture {
        let wire::Pods { pods, .. } = self.get("/v1/pods").await;
        Picture(pods)
    }

    /// Looks at the pods until `is_so` finds what it looks for.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut(&Picture) -> Option<T>,
    ) -> T {
        let limit = patient(limit);
        let deadline = Instant::now() + limit;
        let mut last = Err("not asked".to_owned());
        loop {
            let asked = timeout(limit, talk::get(&self.socket(), "/v1/pods")).await;
            last = match asked {
                Ok(Ok(body)) => {
                    let pods: wire::Pods = serde_json::from_slice(&body).unwrap();
                    let picture = Picture(pods.pods);
                    if let Some(found) = is_so(&picture) {
                        return found;
                    }
                    Ok(picture)
                }
                // A picture that was there says more than an agent that does not answer.
                Ok(Err(error)) => last.or(Err(error.to_string())),
                Err(_) => last.or(Err("no answer".to_owned())),
            };
            if Instant::now() >= deadline {
                match last {
                    Ok(picture) => panic!("{what}: not within {limit:?}:\n{picture}"),
                    Err(error) => panic!("{what}: not within {limit:?}: {error}"),
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Waits for something else than pods.
    pub(crate) async fn until_true(
        &self,
        what: &str,
        limit: Duration,
        mut is_so: impl AsyncFnMut() -> bool,
    ) {
        let limit = patient(limit);
        let deadline = Instant::now() + limit;
        while !is_so().await {
            assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
            sleep(LOOK).await;
        }
    }

    pub(crate) async fn until_ready(&self) {
        self.until_true("the agent is ready", SOON, async || {
            matches!(talk::page(self.healthz_port, "/readyz").await, Ok((200, _)))
        })
        .await;
    }

    /// Waits until all containers of the pod run.
    pub(crate) async fn until_running(&self, pod: &str) {
        self.until(&format!("{pod} runs"), SOON, |pods| pods.all_run(pod))
            .await;
    }

    /// Waits until the pod is no longer there.
    pub(crate) async fn until_gone(&self, pod: &str) {
        self.until(&format!("{pod} is gone"), SOON, |pods| {
            pods.pod(pod).is_none().then_some(())
        })
        .await;
    }

    /// Waits until the timeline has an entry of that reason about the pod.
    pub(crate) async fn until_event(&self, pod: &str, reason: &str) -> Entry {
        let deadline = Instant::now() + patient(SOON);
        loop {
            let events = self.events_of(pod).await;
            if let Some(entry) = events.iter().find(|entry| entry.reason == reason) {
                return entry.clone();
            }
            assert!(
                Instant::now() < deadline,
                "no {reason} of {pod}: {events:#?}"
            );
            sleep(LOOK).await;
        }
    }

    /// The pod's status as it is now.
    pub(crate) async fn status(&self, pod: &str) -> k8s_openapi::api::core::v1::PodStatus {
        let pods = self.pods().await;
        let found = pods
            .pod(pod)
            .unwrap_or_else(|| panic!("no pod {pod}:\n{pods}"));
        found.object.status.clone().unwrap()
    }

    /// The container's status as it is now, of whatever kind it is.
    pub(crate) async fn container(
        &self,
        pod: &str,
        name: &str,
    ) -> k8s_openapi::api::core::v1::ContainerStatus {
        let pods = self.pods().await;
        pods.container(pod, name)
            .unwrap_or_else(|| panic!("no container {name} of {pod}:\n{pods}"))
            .clone()
    }

    /// The runtime's id of the container's current instance.
    pub(crate) async fn container_id(&self, pod: &str, name: &str) -> ContainerId {
        let status = self.container(pod, name).await;
        let id = status.container_id.expect("it was created");
        id.trim_start_matches("containerd://").into()
    }

    /// The pid of the container's main process, as this box sees it.
    pub(crate) async fn main_pid(&self, pod: &str, name: &str) -> i32 {
        let id = self.container_id(pod, name).await;
        let pid = self.client.container_pid(&id).await.unwrap();
        pid.expect("it runs").try_into().unwrap()
    }

    /// The pod's cgroup below a hierarchy's top; `class` is the folder of its QoS class, with a
    /// slash, or nothing.
    pub(crate) async fn pod_cgroup(&self, pod: &str, class: &str) -> String {
        let pods = self.pods().await;
        let uid = pods
            .pod(pod)
            .and_then(|pod| pod.object.metadata.uid.as_ref());
        let uid = uid.unwrap_or_else(|| panic!("no pod {pod}:\n{pods}"));
        format!("{}/kubepods/{class}pod{uid}", self.cgroup)
    }

    /// From the host, as anyone could.
    pub(crate) async fn kill_main(&self, pod: &str, name: &str, signal: Signal) {
        send(self.main_pid(pod, name).await, signal);
    }

    /// The sum of all series of that metric which have those labels; 0 while there is none.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = talk::get(&self.socket(), "/metrics").await.unwrap();
        picture::sum_of_series(&String::from_utf8(text).unwrap(), name, labels)
    }

    /// Makes the agent list everything; what no event had told.
    pub(crate) async fn relist(&self) -> wire::ListingReport {
        let body = talk::post(&self.socket(), "/v1/relist").await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The whole timeline.
    pub(crate) async fn events(&self) -> Vec<Entry> {
        let body = talk::get(&self.socket(), "/v1/events").await.unwrap();
        String::from_utf8(body)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The timeline of one pod.
    pub(crate) async fn events_of(&self, pod: &str) -> Vec<Entry> {
        let name = picture::full_name(pod);
        let mut events = self.events().await;
        events.retain(|entry| entry.pod.as_ref().is_some_and(|key| *key.name == *name));
        events
    }

    /// A command of `skep` on this node's root, and what came of it.
    pub(crate) async fn skep(&self, args: &[&str]) -> Output {
        let mut command = self.skep_command(args);
        timeout(patient(SOON), command.output())
            .await
            .unwrap_or_else(|_| panic!("skep {args:?} does not end"))
            .unwrap()
    }

    pub(crate) fn skep_command(&self, args: &[&str]) -> Command {
        let root = ["--root", self.root.to_str().unwrap()];
        let args: Vec<_> = root.iter().chain(args).copied().collect();
        self.program(&args)
    }

    /// The program `skep` with any command line, on this node's PATH.
    pub(crate) fn program(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
        command
            .args(args)
            .env("PATH", &self.path)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// What a shell script prints in the pod's first container; it must end with 0.
    pub(crate) async fn sh(&self, pod: &str, script: &str) -> String {
        self.sh_in(pod, None, script).await
    }

    /// The same in a named container.
    pub(crate) async fn sh_in(&self, pod: &str, container: Option<&str>, script: &str) -> String {
        let mut args = vec!["exec", pod];
        if let Some(container) = container {
            args.extend(["-c", container]);
        }
        args.extend(["--", "sh", "-c", script]);
        printed(&self.skep(&args).await)
    }

    // The end.

    /// Stops everything, as a user would, and makes sure that nothing is left.
    pub(crate) async fn down(mut self) {
        if self.agent.is_some() {
            let output = self.skep(&["down"]).await;
            assert!(output.status.success(), "skep down: {output:?}");
            let status = self.agent_end().await;
            assert!(status.success(), "the agent ended with {status}");
        }
        if self.runs_runtime {
            let sandboxes = self.client.list_pods().await.unwrap_or_default();
            assert_eq!(sandboxes, [], "pods are left in the runtime");
            supervise::stop(&self.runtime).await.unwrap();
        }
        self.finish().await;
    }

    /// For a node whose agent was ended by the test, with nothing in the runtime.
    async fn finish(&mut self) {
        let bridge = self.runtime.bridge();
        let deadline = Instant::now() + patient(Duration::from_secs(5));
        loop {
            let left = leftovers::find(&self.dir, &self.cgroup, &bridge);
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "left behind: {left:#?}");
            sleep(LOOK).await;
        }
        leftovers::remove(&self.dir, &self.cgroup, &bridge);
        self.is_finished = true;
        let left = leftovers::leave();
        assert!(left.is_empty(), "left behind: {left:#?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(120)..].join("\n");
        println!("the agent's log, {}:\n{tail}", self.log_file().display());
        leftovers::remove(&self.dir, &self.cgroup, &self.runtime.bridge());
        leftovers::leave();
    }
}

/// Standard output of a command that must have gone well.
pub(crate) fn printed(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn send(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("is no group");
    kill_process(pid, signal)
        .unwrap_or_else(|error| panic!("signal {signal:?} to {pid:?}: {error}"));
}
