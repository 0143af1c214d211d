//! The end of `skep down`: what the pods' workers leave behind, and everything where no agent runs.

use std::{collections::HashSet, fs, io, path::Path};

use anyhow::Context as _;

use crate::{
    config::{Config, RuntimeSettings, run::Host, up::UpSettings},
    cri,
    host::{cgroup::Cgroups, hierarchy::Hierarchy, proc},
    server::RootLock,
    supervise,
    types::quantity::Quantity,
    volume::{self, Volumes},
    worker::kill_orphan,
};

/// Stops every pod on the root's own containerd, and that containerd. Says what was done, a line
/// each.
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
    let mut done = Vec::new();
    let client = cri::Client::new(&RuntimeSettings {
        endpoint: settings.endpoint(),
        image_endpoint: None,
        request_timeout: std::time::Duration::from_secs(120),
    })?;
    let volumes = Volumes::new(volume::Settings {
        root: root.to_owned(),
        // Only for making volumes, and none is made here.
        allocatable_memory: Quantity::ZERO,
        is_selinux_enabled: false,
    });
    let cgroups = known_cgroups(root, client.endpoint())?;
    done.extend(clear(&client, &volumes, cgroups.as_ref()).await?);
    let stopped = supervise::stop(&settings).await?;
    if stopped.containerd {
        done.push("containerd stopped".to_owned());
    }
    Ok(done)
}

/// Stops and removes every pod that the runtime has, then what is left of pods outside it: the end
/// of `down`, with or without an agent. Says what was done, a line each.
pub(super) async fn clear(
    client: &cri::Client,
    volumes: &Volumes,
    cgroups: Option<&Cgroups>,
) -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    match client.list_pods().await {
        Ok(pods) => {
            for listed in pods {
                let pod = crate::pleg::read_pod(client, &listed.uid).await?;
                let is_running = pod.is_running();
                kill_orphan(client, &pod)
                    .await
                    .with_context(|| format!("stop pod {}", listed.key))?;
                for sandbox in &listed.sandboxes {
                    client.remove_sandbox(&sandbox.id).await?;
                }
                if is_running {
                    done.push(format!("pod {} stopped", listed.key));
                }
            }
        }
        Err(error) if error.is_unavailable() => {}
        Err(error) => return Err(error).context("list the pods"),
    }
    for uid in volumes.orphans(HashSet::new()).await? {
        volumes.tear_down(&uid).await?;
    }
    if let Some(cgroups) = cgroups {
        for uid in cgroups.pod_uids().await? {
            cgroups.remove_pod(&uid).await?;
        }
    }
    Ok(done)
}

/// The file under the root that tells in which cgroup the pods' cgroups are.
const CGROUP_ROOT_FILE: &str = "skep/cgroup-root";

/// For a `down` that finds no agent to ask.
pub(super) fn keep_cgroup_root(root: &Path, cgroup_root: &str) -> anyhow::Result<()> {
    let file = root.join(CGROUP_ROOT_FILE);
    fs::write(&file, cgroup_root).with_context(|| format!("write {}", file.display()))
}

/// None where no agent has come so far as to make cgroups.
fn known_cgroups(root: &Path, endpoint: &str) -> anyhow::Result<Option<Cgroups>> {
    let file = root.join(CGROUP_ROOT_FILE);
    let cgroup_root = match fs::read_to_string(&file) {
        Ok(cgroup_root) => cgroup_root,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    let settings = UpSettings {
        cgroup_root: Some(cgroup_root),
        ..UpSettings::new(root.to_owned(), None, endpoint.to_owned())
    };
    let host = Host {
        name: proc::hostname(),
        cpus: proc::cpus()?,
    };
    let config = Config::for_up(settings, &host)?;
    let version = Hierarchy::detect()
        .context("find the cgroup hierarchy")?
        .version;
    let cgroups = Cgroups::new(&config.cgroups, version, super::machine()?)?;
    Ok(Some(cgroups))
}
