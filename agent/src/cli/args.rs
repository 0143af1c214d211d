//! The commands and their options.

use std::path::PathBuf;

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use jiff::{SignedDuration, Timestamp};
use strum::VariantNames as _;

use super::{output::Format, time};
use crate::config::PlegMode;

/// Skep, a Kubernetes node agent: runs pods on containerd and learns from the kernel what happens
/// to them.
#[derive(Debug, Parser)]
#[command(name = "skep", version, arg_required_else_help = true)]
pub(super) struct Arguments {
    /// The agent's folder, which holds its socket [default: /var/lib/skep, else /var/lib/kubelet
    /// where an agent's socket is]
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the agent on this machine, without a cluster
    Up(Box<UpArguments>),
    /// Stop all pods, and the agent and the containerd that `up` started
    Down(OutputOption),
    /// Run the agent with the kubelet's flags (`skep run --help` lists them)
    #[command(disable_help_flag = true)]
    Run {
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "FLAGS"
        )]
        flags: Vec<String>,
    },
    /// List the pods on this node
    Pods(PodsArguments),
    /// Show what a container wrote
    Logs(LogsArguments),
    /// Run a command in a container, without input; its exit code becomes ours
    Exec(ExecArguments),
    /// Show what happened to the pods, and when kernel, runtime and agent knew
    Events(EventsArguments),
    /// Tell whether this machine is fit, or whether a manifest is
    Check(CheckArguments),
    /// Show how the running agent fares
    Status(OutputOption),
    /// Make the agent list all pods in the runtime once, and tell what no event had told
    Relist(OutputOption),
    /// Show the version
    Version(OutputOption),
}

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct OutputOption {
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

#[derive(Debug, Args)]
pub(super) struct UpArguments {
    /// Folder of pod manifests, or one file [default: <root>/manifests]
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Use this container runtime (unix:///...) instead of starting a containerd
    #[arg(long, value_name = "ENDPOINT")]
    pub runtime_endpoint: Option<String>,
    /// Take over pods that are on the given runtime already; those that no manifest wants are
    /// stopped
    #[arg(long, requires = "runtime_endpoint")]
    pub adopt: bool,
    /// Folder of image archives (*.tar) to load into the containerd that is started
    #[arg(long, value_name = "DIR", conflicts_with = "runtime_endpoint")]
    pub images: Option<PathBuf>,
    /// Image of the pods' sandboxes, in the containerd that is started
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "skep.local/pause:1",
        conflicts_with = "runtime_endpoint"
    )]
    pub pause_image: String,
    /// The node's name [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The cgroup that all pods' cgroups are made in [default: /]
    #[arg(long, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,
    /// Best way to learn of changes
    #[arg(long, value_name = "MODE", default_value = "kernel", value_parser = pleg_modes())]
    pub pleg_mode: PlegMode,
    /// Time between two safety listings
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time::parse_duration)]
    pub pleg_safety_period: SignedDuration,
    /// Size of the kernel's ring buffer: a power of two, at least 4096
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub kernel_ring_bytes: u32,
    /// Longest wait before a crashed container is started again
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time::parse_duration)]
    pub max_restart_period: SignedDuration,
    /// Port of /healthz, /readyz and /metrics on 127.0.0.1; 0 is none
    #[arg(long, value_name = "PORT", default_value_t = 10248)]
    pub healthz_port: u16,
    /// Port of the same and /pods on 127.0.0.1; 0 is none
    #[arg(long, value_name = "PORT", default_value_t = 10255)]
    pub read_only_port: u16,
    /// How much to log: 0 to 8
    #[arg(short, long = "verbosity", value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u32,
}

#[derive(Debug, Args)]
pub(super) struct PodsArguments {
    /// Only this pod: its name, or namespace/name
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// One line a container, with its last exit
    #[arg(short, long)]
    pub containers: bool,
    #[command(flatten)]
    pub output: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct LogsArguments {
    /// The pod's name, or namespace/name
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The container [default: the pod's first]
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Go on until the container stops
    #[arg(short, long)]
    pub follow: bool,
    /// So many lines from the end
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Not older than this: 5m, or a time like 2024-05-06T07:08:09Z
    #[arg(long, value_name = "TIME", value_parser = Since::parse)]
    pub since: Option<Since>,
    /// Of the instance before the current one
    #[arg(short, long)]
    pub previous: bool,
    /// Begin each line with its time
    #[arg(long)]
    pub timestamps: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExecArguments {
    /// The pod's name, or namespace/name
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The container [default: the pod's first]
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// End the command after so long
    #[arg(long, value_name = "TIME", value_parser = time::parse_duration)]
    pub timeout: Option<SignedDuration>,
    #[command(flatten)]
    pub output: OutputOption,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// Only this pod's: its name, or namespace/name. Pods that are gone need their full name
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Go on with what happens
    #[arg(short, long)]
    pub follow: bool,
    /// Not older than this: 5m, or a time like 2024-05-06T07:08:09Z
    #[arg(long, value_name = "TIME", value_parser = Since::parse)]
    pub since: Option<Since>,
    #[command(flatten)]
    pub output: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// A pod manifest: checked as the agent would read it, not run
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Check this container runtime instead of the programs that `up` would start
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "file")]
    pub runtime_endpoint: Option<String>,
    #[command(flatten)]
    pub output: OutputOption,
}

fn pleg_modes() -> impl TypedValueParser<Value = PlegMode> {
    PossibleValuesParser::new(PlegMode::VARIANTS).try_map(|word| word.parse::<PlegMode>())
}

/// A start in time: so long ago, or a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    Ago(SignedDuration),
    At(Timestamp),
}

impl Since {
    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse() {
            return Ok(Self::At(at));
        }
        time::parse_duration(text)
            .map(Self::Ago)
            .map_err(|_narrower| {
                "expected a time span like 5m or 1h30m, or a time like 2024-05-06T07:08:09Z"
                    .to_owned()
            })
    }

    pub(super) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Arguments::command().debug_assert();
    }

    #[rstest]
    #[case("5m", "2024-01-01T00:55:00Z")]
    #[case("1h", "2024-01-01T00:00:00Z")]
    #[case("90s", "2024-01-01T00:58:30Z")]
    #[case("2023-01-01T00:00:00Z", "2023-01-01T00:00:00Z")]
    fn since_takes_spans_and_times(#[case] text: &str, #[case] expected: Timestamp) {
        let now = "2024-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(Since::parse(text).unwrap().moment(now), expected);
    }

    #[rstest]
    #[case(&["skep", "logs"], "required")]
    #[case(&["skep", "logs", "web", "--since", "yesterday"], "expected a time span")]
    #[case(&["skep", "logs", "web", "--tail", "-1"], "unexpected argument")]
    #[case(&["skep", "exec", "web"], "required")]
    #[case(&["skep", "up", "--adopt"], "--runtime-endpoint")]
    #[case(&["skep", "up", "--pleg-mode", "poll"], "listing, stream, kernel")]
    #[case(&["skep", "pods", "-o", "xml"], "table, json, yaml")]
    #[case(&["skep", "frobnicate"], "frobnicate")]
    fn what_is_wrong_is_named(#[case] words: &[&str], #[case] expected: &str) {
        let error = Arguments::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn exec_keeps_the_command_as_it_is() {
        let parsed = Arguments::try_parse_from([
            "skep", "exec", "web", "-c", "app", "--", "ls", "-l", "--root", "/",
        ])
        .unwrap();
        let Command::Exec(exec) = parsed.command else {
            panic!("{parsed:?}");
        };
        assert_eq!(exec.command, ["ls", "-l", "--root", "/"]);
        assert_eq!(parsed.root, None);
    }
}
