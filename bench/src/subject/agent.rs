//! An agent: upstream's kubelet or Skep, which are started and fed alike.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};

use super::settings::{self, Places, Plan};
use crate::{
    clock::{self, Nanos},
    log::Log,
    node::{self, Node},
    pods::Pod,
    process::Process,
    record::Subject,
    told,
};

/// An agent starts in seconds on an idle machine.
const START: Duration = Duration::from_secs(60);
/// What an agent gets to end by itself.
const END: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Agent {
    subject: Subject,
    program: PathBuf,
    plan: Plan,
    manifests: PathBuf,
    process: Process,
    /// Its pod events; of the current process only.
    pub log: Log,
    /// How often it was started.
    starts: u32,
}

impl Agent {
    /// Returns once it says that it is healthy.
    pub async fn start(subject: Subject, program: &Path, node: &Node) -> Result<Self> {
        let places = Places {
            dir: node.dir.clone(),
            endpoint: node.endpoint(),
            cgroup_root: node.cgroups.pods(),
        };
        let plan = settings::plan(subject, &places).context("the floor has no agent")?;
        for dir in [places.manifests(), places.root()] {
            fs::create_dir_all(dir)?;
        }
        fs::write(places.config_file(), plan.config.to_string())?;
        let (process, log) = spawn(program, &plan, node, 1).await?;
        let mut agent = Self {
            subject,
            program: program.to_owned(),
            plan,
            manifests: places.manifests(),
            process,
            log,
            starts: 1,
        };
        agent.healthy(Duration::from_millis(50)).await?;
        Ok(agent)
    }

    /// SIGKILL; [`Agent::start_again`] may follow.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// After [`Agent::kill`]; returns the time right before the start, and does not wait until it is
    /// healthy.
    pub async fn start_again(&mut self, node: &Node) -> Result<Nanos> {
        self.starts += 1;
        (self.process, self.log) = spawn(&self.program, &self.plan, node, self.starts).await?;
        Ok(self.process.began)
    }

    /// Asks `/healthz` every so often until it says yes; the time of that answer.
    pub async fn healthy(&mut self, every: Duration) -> Result<Nanos> {
        let deadline = Instant::now() + START;
        loop {
            if let Ok((200, _)) = node::get(settings::HEALTHZ, "/healthz").await {
                return Ok(clock::now());
            }
            let state = match self.process.check() {
                Ok(()) if Instant::now() < deadline => {
                    sleep(every).await;
                    continue;
                }
                Ok(()) => "is not healthy".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            let end = node::end_of(self.log.path());
            bail!("{:?} {state}; the end of its log:\n{end}", self.subject);
        }
    }

    /// Returns the time right before the rename.
    pub fn place(&self, pod: &Pod) -> Result<Nanos> {
        let file = self.file(&pod.name);
        // Agents leave out what begins with a dot.
        let new = self.manifests.join(format!(".{}.new", pod.name));
        fs::write(&new, pod.manifest())?;
        let at = clock::now();
        fs::rename(&new, file)?;
        Ok(at)
    }

    pub fn remove(&self, pod: &str) -> Result<()> {
        fs::remove_file(self.file(pod)).with_context(|| format!("removing the pod {pod}"))
    }

    fn file(&self, pod: &str) -> PathBuf {
        self.manifests.join(format!("{pod}.json"))
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// What was started.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Gates that are not at their defaults.
    pub fn gates(&self) -> &BTreeMap<String, bool> {
        &self.plan.gates
    }

    /// What it tells of its pods.
    pub async fn pods(&self) -> Result<Vec<told::Pod>> {
        let (status, text) = node::get(settings::READ_ONLY, "/pods").await?;
        if status != 200 {
            bail!("the agent's pods: {status}");
        }
        told::parse(&text)
    }

    /// Its `/metrics`, in Prometheus' text form.
    pub async fn metrics(&self) -> Result<String> {
        let (status, text) = node::get(settings::READ_ONLY, "/metrics").await?;
        if status != 200 {
            bail!("the agent's metrics: {status}");
        }
        Ok(text)
    }

    /// The end of its log, for messages.
    pub fn log_end(&self) -> String {
        node::end_of(self.log.path())
    }

    pub async fn stop(self) -> Result<()> {
        self.process.stop(END).await
    }
}

async fn spawn(program: &Path, plan: &Plan, node: &Node, start: u32) -> Result<(Process, Log)> {
    let file = node.dir.join(format!("agent-{start}.log"));
    let cgroup = &node.cgroups.agent;
    let process = Process::start(program, &plan.args, &node.path, cgroup, &file).await?;
    Ok((process, Log::new(file)))
}
