//! `skep up` and `skep run`: from the command line to the daemon.

use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{args::UpArguments, output};
use crate::{
    app,
    config::{
        run::{self, Host, Parsed},
        up::{DEFAULT_ROOT, UpSettings},
    },
    host::{heap, proc},
    telemetry,
};

/// Workers of the runtime of tasks. The agent waits far more than it computes; on a machine with
/// many cores each further thread would only cost memory and wake-ups.
const MOST_THREADS: usize = 4;
/// Threads for work that may block: files, cgroups, logs. A hundred pods that start at once would
/// otherwise have hundreds of them, with memory of their own each, on a few cores.
const MOST_BLOCKING_THREADS: usize = 32;
/// Directives that take the place of the verbosity, for those who look for something.
const LOG_VARIABLE: &str = "SKEP_LOG";

/// `skep run`, or a program by the name `kubelet`.
pub(super) fn run(flags: &[OsString]) -> anyhow::Result<ExitCode> {
    let (config, warnings) = match run::parse(flags, &host()?)? {
        Parsed::Print(text) => {
            output::print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        Parsed::Config(config, warnings) => (*config, warnings),
    };
    log(config.process.log_json, config.process.verbosity)?;
    for warning in warnings {
        tracing::warn!(warning, "Configuration");
    }
    daemon()?.block_on(Box::pin(app::run(config)))
}

pub(super) fn up(arguments: UpArguments, root: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let mut host = host()?;
    if let Some(name) = &arguments.node_name {
        host.name.clone_from(name);
    }
    let root = root.unwrap_or_else(|| DEFAULT_ROOT.into());
    let is_given = arguments.manifests.is_some();
    log(false, arguments.verbosity)?;
    let options = options(arguments, &root)?;
    if let Some(manifests) = &options.settings.manifests {
        if is_given {
            anyhow::ensure!(
                manifests.exists(),
                "--manifests {}: there is no such folder or file",
                manifests.display()
            );
        } else {
            fs::create_dir_all(manifests)
                .with_context(|| format!("make the folder {}", manifests.display()))?;
        }
    }
    daemon()?.block_on(Box::pin(app::up(options, &host)))
}

fn options(arguments: UpArguments, root: &Path) -> anyhow::Result<app::UpOptions> {
    let UpArguments {
        manifests,
        runtime_endpoint,
        adopt,
        images,
        pause_image,
        node_name: _,
        cgroup_root,
        pleg_mode,
        pleg_safety_period,
        kernel_ring_bytes,
        max_restart_period,
        healthz_port,
        read_only_port,
        verbosity,
    } = arguments;
    let absolute = |path: &Path| {
        std::path::absolute(path).with_context(|| format!("the path {}", path.display()))
    };
    let root = absolute(root)?;
    let manifests = match manifests {
        Some(manifests) => absolute(&manifests)?,
        None => root.join("manifests"),
    };
    let local = |port: u16| (port != 0).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let settings = UpSettings {
        cgroup_root,
        healthz: local(healthz_port),
        read_only: local(read_only_port),
        best_mode: pleg_mode,
        safety_period: pleg_safety_period.unsigned_abs(),
        ring_bytes: kernel_ring_bytes,
        max_restart_backoff: max_restart_period.unsigned_abs(),
        verbosity,
        ..UpSettings::new(root, Some(manifests), runtime_endpoint.unwrap_or_default())
    };
    Ok(app::UpOptions {
        settings,
        adopts: adopt,
        images: images.as_deref().map(absolute).transpose()?,
        pause_image,
    })
}

fn host() -> anyhow::Result<Host> {
    Ok(Host {
        name: proc::hostname(),
        cpus: proc::cpus()?,
    })
}

fn log(json: bool, verbosity: u32) -> anyhow::Result<()> {
    let directives = std::env::var(LOG_VARIABLE).ok();
    telemetry::init(
        telemetry::Settings { json, verbosity },
        directives.as_deref(),
    )?;
    Ok(())
}

fn daemon() -> anyhow::Result<tokio::runtime::Runtime> {
    heap::share();
    let cpus = proc::cpus()?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cpus.clamp(1, MOST_THREADS))
        .max_blocking_threads(MOST_BLOCKING_THREADS)
        .enable_all()
        .thread_name("skep")
        .build()
        .context("start the runtime of tasks")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Arguments, Command};

    fn parsed(words: &[&str]) -> app::UpOptions {
        let all = ["skep", "up"].iter().chain(words);
        let Command::Up(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("not up");
        };
        options(*arguments, Path::new("/srv/skep")).unwrap()
    }

    #[test]
    fn up_without_options_is_one_machine_with_its_own_containerd() {
        let options = parsed(&[]);
        assert_eq!(options.settings.endpoint, "");
        assert_eq!(
            options.settings.manifests,
            Some("/srv/skep/manifests".into())
        );
        assert_eq!(
            options.settings.healthz,
            Some("127.0.0.1:10248".parse().unwrap())
        );
        assert!(!options.adopts);
    }

    #[test]
    fn ups_options_reach_the_configuration() {
        let options = parsed(&[
            "--runtime-endpoint=unix:///run/x.sock",
            "--adopt",
            "--healthz-port=0",
            "--max-restart-period=1s",
            "--pleg-mode=listing",
            "--cgroup-root=/box",
            "-v2",
        ]);
        assert_eq!(options.settings.endpoint, "unix:///run/x.sock");
        assert!(options.adopts);
        assert_eq!(options.settings.healthz, None);
        assert_eq!(options.settings.max_restart_backoff.as_secs(), 1);
        assert_eq!(options.settings.best_mode, crate::config::PlegMode::Listing);
        assert_eq!(options.settings.cgroup_root.as_deref(), Some("/box"));
        assert_eq!(options.settings.verbosity, 2);
        let host = Host {
            name: "node1".into(),
            cpus: 2,
        };
        let config = crate::config::Config::for_up(options.settings, &host).unwrap();
        assert_eq!(config.cgroups.root, "/box");
    }
}
