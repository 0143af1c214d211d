//! `skep down` where no agent runs: what an agent left running is stopped without one.

use std::{collections::HashSet, fs, io, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;

use crate::{
    config::{Config, run::Host, up::UpSettings},
    cri, gc,
    host::{cgroup::Cgroups, hierarchy::Hierarchy, proc},
    pleg,
    server::RootLock,
    supervise,
    telemetry::chain,
    types::{quantity::Quantity, runtime::SharedRuntimePod},
    volume::{self, Volumes},
    worker::kill_orphan,
};

/// A runtime that does not tell its version in this time is of no use.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Stops every pod on the root's own containerd, and that containerd, and removes what was made for
/// them. Says what was done, a line each.
///
/// # Errors
/// An agent runs on this root (it must be asked instead), or something could not be stopped.
pub async fn down_without_agent(root: &Path) -> anyhow::Result<Vec<String>> {
    anyhow::ensure!(
        root.is_dir(),
        "nothing was ever started in {}",
        root.display()
    );
    let _lock = RootLock::take(root)?;
    let settings = supervise::Settings::for_root(root, "");
    let cgroup_root = known_cgroup_root(root)?;
    let config = config_of(root, settings.endpoint(), cgroup_root.clone())?;
    let client = cri::Client::new(&config.runtime)?;
    if let Err(error) = client.with_timeout(ANSWER_WITHIN).version().await {
        anyhow::ensure!(
            !error.is_deadline(),
            "the runtime at {} stands still: no answer within {} seconds, and nothing was stopped; \
             end it or let it go on, and try again",
            client.endpoint(),
            ANSWER_WITHIN.as_secs(),
        );
    }
    let mut done = stop_pods(&client, &config).await?;

    let volumes = Volumes::new(volume::Settings {
        root: root.to_owned(),
        // Only for making volumes, and none is made here.
        allocatable_memory: Quantity::ZERO,
        is_selinux_enabled: false,
    });
    for uid in volumes.orphans(HashSet::new()).await? {
        volumes.tear_down(&uid).await?;
    }
    // Without the file no agent has come so far as to make cgroups.
    if cgroup_root.is_some() {
        let version = Hierarchy::detect()
            .context("find the cgroup hierarchy")?
            .version;
        let cgroups = Cgroups::new(&config.cgroups, version, super::machine()?)?;
        for uid in cgroups.pod_uids().await? {
            cgroups.remove_pod(&uid).await?;
        }
    }
    let stopped = supervise::stop(&settings).await?;
    if stopped.containerd {
        done.push("containerd stopped".to_owned());
    }
    Ok(done)
}

/// Stops what runs, then removes the records and logs of it all.
async fn stop_pods(client: &cri::Client, config: &Config) -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    for pod in read_pods(client).await? {
        kill_orphan(client, &pod)
            .await
            .with_context(|| format!("stop pod {}", pod.key))?;
        if pod.is_running() {
            done.push(format!("pod {} stopped", pod.key));
        }
    }
    let collector = gc::Collector::new(client.clone(), config.dirs.clone(), config.gc.clone());
    let (_, errors) = collector
        .collect_everything(&read_pods(client).await?)
        .await;
    match errors.first() {
        None => Ok(done),
        Some(error) => anyhow::bail!("{}", chain(error)),
    }
}

/// Nothing where the runtime is not there any more.
async fn read_pods(client: &cri::Client) -> anyhow::Result<Vec<SharedRuntimePod>> {
    let listed = match client.list_pods().await {
        Ok(listed) => listed,
        Err(error) if error.is_unavailable() => return Ok(Vec::new()),
        Err(error) => return Err(error).context("list the pods"),
    };
    let mut pods = Vec::with_capacity(listed.len());
    for listed in listed {
        pods.push(Arc::new(pleg::read_pod(client, &listed.uid).await?));
    }
    Ok(pods)
}

/// The file under the root that tells in which cgroup the pods' cgroups are.
const CGROUP_ROOT_FILE: &str = "skep/cgroup-root";

/// For a `down` that finds no agent to ask.
pub(super) fn keep_cgroup_root(root: &Path, cgroup_root: &str) -> anyhow::Result<()> {
    let file = root.join(CGROUP_ROOT_FILE);
    fs::write(&file, cgroup_root).with_context(|| format!("write {}", file.display()))
}

fn known_cgroup_root(root: &Path) -> anyhow::Result<Option<String>> {
    let file = root.join(CGROUP_ROOT_FILE);
    match fs::read_to_string(&file) {
        Ok(cgroup_root) => Ok(Some(cgroup_root)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
}

fn config_of(root: &Path, endpoint: String, cgroup_root: Option<String>) -> anyhow::Result<Config> {
    let settings = UpSettings {
        cgroup_root,
        ..UpSettings::new(root.to_owned(), None, endpoint)
    };
    let host = Host {
        name: proc::hostname(),
        cpus: proc::cpus()?,
    };
    Ok(Config::for_up(settings, &host)?)
}
