//! `skep down` where no agent runs: what an agent left running is stopped without one.

use std::{collections::HashSet, path::Path};

use anyhow::Context as _;

use crate::{
    config::RuntimeSettings,
    cri,
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
    match client.list_pods().await {
        Ok(pods) => {
            for listed in pods {
                let pod = crate::pleg::read_pod(&client, &listed.uid).await?;
                kill_orphan(&client, &pod)
                    .await
                    .with_context(|| format!("stop pod {}", listed.key))?;
                for sandbox in &listed.sandboxes {
                    client.remove_sandbox(&sandbox.id).await?;
                }
                done.push(format!("pod {} stopped", listed.key));
            }
        }
        Err(error) if error.is_unavailable() => {}
        Err(error) => return Err(error).context("list the pods"),
    }
    let volumes = Volumes::new(volume::Settings {
        root: root.to_owned(),
        // Only for making volumes, and none is made here.
        allocatable_memory: Quantity::ZERO,
        is_selinux_enabled: false,
    });
    for uid in volumes.orphans(HashSet::new()).await? {
        volumes.tear_down(&uid).await?;
    }
    let stopped = supervise::stop(&settings).await?;
    if stopped.containerd {
        done.push("containerd stopped".to_owned());
    }
    Ok(done)
}
