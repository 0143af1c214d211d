//! The composition root: opens the adapters, builds every part, runs them.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::config::{Config, run::Host, up::UpSettings};

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

/// `skep up`.
#[expect(clippy::unused_async, reason = "the parts are not put together yet")]
pub async fn up(_options: UpOptions, _host: &Host) -> anyhow::Result<ExitCode> {
    anyhow::bail!("the agent's parts are not put together yet: `up` cannot run pods")
}

/// `skep run`.
#[expect(clippy::unused_async, reason = "the parts are not put together yet")]
pub async fn run(_config: Config) -> anyhow::Result<ExitCode> {
    anyhow::bail!("the agent's parts are not put together yet: `run` cannot run pods")
}

/// Stops what an agent on this root left running; a line for each thing that was done.
#[expect(clippy::unused_async, reason = "the parts are not put together yet")]
pub async fn down_without_agent(root: &Path) -> anyhow::Result<Vec<String>> {
    anyhow::bail!("no agent runs on {}", root.display())
}
