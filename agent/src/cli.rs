//! The command line: what each command does, and how it prints.
//!
//! `up` and `run` are the daemon ([`crate::app`]); the others ask a running agent over its local
//! socket. Called by the name `kubelet`, the program is `skep run`.

mod args;
pub mod check;
mod check_command;
pub(crate) mod client;
mod down;
mod events;
mod exec;
mod log;
mod output;
mod pods;
mod resolve;
mod start;
mod status;
mod table;
mod time;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser as _;

use crate::{config, server, server::wire, telemetry::chain, types::id::PodKey};
use args::{Arguments, Command};
use client::Client;

/// Where upstream's kubelet, and so `skep run`, keeps everything unless told otherwise.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Carries out a command line, program name first.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let plan = plan(&arguments);
    let is_daemon = matches!(plan, Plan::Daemon(_));
    let result = match plan {
        Plan::Daemon(flags) => start::run(&flags),
        Plan::Command => match Arguments::try_parse_from(&arguments) {
            Ok(arguments) => carry_out(arguments),
            Err(error) => {
                // Help and version come this way too, and have 0.
                let code = u8::try_from(error.exit_code()).unwrap_or(1);
                let _ = error.print();
                return ExitCode::from(code);
            }
        },
    };
    result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            // Whoever read our output has had enough.
            return ExitCode::SUCCESS;
        }
        // A kubelet's callers look for its own form (CFG-13).
        let who = if is_daemon { "Error" } else { "skep" };
        eprintln!("{who}: {}", chain(error.as_ref()));
        ExitCode::FAILURE
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// `skep run`: the kubelet's flags, which are not ours to parse.
    Daemon(Vec<OsString>),
    Command,
}

fn plan(arguments: &[OsString]) -> Plan {
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let rest = arguments.get(1..).unwrap_or_default();
    if name.is_some_and(|name| name == "kubelet") {
        return Plan::Daemon(rest.to_vec());
    }
    match rest.split_first() {
        Some((first, flags)) if first == "run" => Plan::Daemon(flags.to_vec()),
        Some(_) | None => Plan::Command,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

fn carry_out(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { root, command } = arguments;
    let command = match command {
        Command::Up(options) => return start::up(*options, root),
        Command::Run { .. } => anyhow::bail!(
            "`run` must be the first word: it takes the kubelet's own flags (its root is --root-dir)"
        ),
        command => command,
    };
    let default_root = default_root();
    let root = root.unwrap_or(default_root);
    let client = Client::new(root.join(server::SOCKET_NAME));
    let work = async {
        match command {
            Command::Up(_) | Command::Run { .. } => Ok(ExitCode::SUCCESS),
            Command::Down(options) => down::down(&client, &root, &options).await,
            Command::Pods(options) => pods::pods(&client, &options).await,
            Command::Logs(options) => log::logs(&client, &options).await,
            Command::Exec(options) => exec::exec(&client, options).await,
            Command::Events(options) => events::events(&client, &options).await,
            Command::Check(options) => check_command::check(options, root.clone()).await,
            Command::Status(options) => status::status(&client, &options).await,
            Command::Relist(options) => status::relist(&client, &options).await,
            Command::Version(options) => status::version(&options),
        }
    };
    // Boxed: the commands' futures are large.
    let work = Box::pin(work);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// The root of `up`, or the kubelet's where only an agent started by `run` is there.
fn default_root() -> PathBuf {
    let own = PathBuf::from(config::up::DEFAULT_ROOT);
    let kubelet = PathBuf::from(KUBELET_ROOT);
    let has_socket = |root: &Path| root.join(server::SOCKET_NAME).exists();
    if !has_socket(&own) && has_socket(&kubelet) {
        kubelet
    } else {
        own
    }
}

/// Finds the pod that a POD argument means.
async fn find_pod(client: &Client, argument: &str) -> anyhow::Result<wire::PodView> {
    let wire::Pods { node, pods } = client.get("/v1/pods").await?;
    let keys: Vec<PodKey> = pods.iter().map(key_of).collect();
    let found = resolve::resolve(argument, &keys, &node)?.clone();
    pods.into_iter()
        .find(|pod| key_of(pod) == found)
        .ok_or_else(|| anyhow::anyhow!("pod {found} does not exist"))
}

fn key_of(pod: &wire::PodView) -> PodKey {
    let metadata = &pod.object.metadata;
    PodKey::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn run_and_the_name_kubelet_pass_the_flags_on_as_they_are() {
        let flags = arguments(&["--config=/x", "--help", "-o", "json"]);
        for before in [&["skep", "run"][..], &["/usr/bin/kubelet"]] {
            let mut all = arguments(before);
            all.extend(flags.clone());
            assert_eq!(plan(&all), Plan::Daemon(flags.clone()));
        }
        assert_eq!(plan(&arguments(&["skep", "pods", "run"])), Plan::Command);
        assert_eq!(plan(&arguments(&["kubelet"])), Plan::Daemon(Vec::new()));
    }
}
