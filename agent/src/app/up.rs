//! `skep up`: the daemon on one machine without a cluster, with a containerd of its own unless one
//! is named.

use std::{path::PathBuf, process::ExitCode};

use super::{Start, start};
use crate::{
    config::{Config, run::Host, up::UpSettings},
    supervise,
};

/// What the command line of `up` says.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The endpoint in it is empty where none was given.
    pub settings: UpSettings,
    /// Pods of others on the given endpoint become Skep's.
    pub adopts: bool,
    /// Archives to read into containerd's store.
    pub images: Option<PathBuf>,
    pub pause_image: String,
}

pub async fn up(options: UpOptions, host: &Host) -> anyhow::Result<ExitCode> {
    let UpOptions {
        mut settings,
        adopts,
        images,
        pause_image,
    } = options;
    let mut supervised = None;
    let is_shared = !settings.endpoint.is_empty();
    if !is_shared {
        let own = supervise::Settings {
            images_dir: images,
            ..supervise::Settings::for_root(&settings.root, pause_image)
        };
        let (handle, task) = supervise::start_or_adopt(own.clone()).await?;
        settings.endpoint.clone_from(&handle.endpoint);
        supervised = Some((handle, task, own));
    }
    let config = Config::for_up(settings, host)?;
    start(Start {
        config,
        refuses_strangers: is_shared && !adopts,
        supervised,
    })
    .await
}
