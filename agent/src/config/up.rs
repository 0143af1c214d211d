//! `skep up`: a [`Config`] for one machine without a cluster, from a few options.
//!
//! Everything else takes the defaults of the table, so that `up` and `run` cannot drift apart.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::types::duration::GoDuration;

use super::{
    Config, PlegMode, Strictness,
    run::Host,
    settings::Settings,
    table::{self, Defaults},
    validate::{self, Mistakes},
    value::Value,
};

/// What `up` may set. [`UpSettings::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct UpSettings {
    /// Everything is kept under it.
    pub root: PathBuf,
    /// Folder of pod manifests, or one file.
    pub manifests: Option<PathBuf>,
    /// The runtime's endpoint: its own containerd's, or the one that was given.
    pub endpoint: String,
    pub image_endpoint: Option<String>,
    pub healthz: Option<SocketAddr>,
    pub read_only: Option<SocketAddr>,
    pub best_mode: PlegMode,
    pub safety_period: Duration,
    pub ring_bytes: u32,
    pub max_starts: usize,
    pub max_restart_backoff: Duration,
    /// The cgroup that all pods' cgroups are made in; none: the table's default.
    pub cgroup_root: Option<String>,
    pub cluster_dns: Vec<std::net::IpAddr>,
    pub cluster_domain: String,
    pub log_json: bool,
    pub verbosity: u32,
}

/// Where `up` keeps everything unless told otherwise.
pub const DEFAULT_ROOT: &str = "/var/lib/skep";

impl UpSettings {
    pub fn new(root: PathBuf, manifests: Option<PathBuf>, endpoint: String) -> Self {
        Self {
            root,
            manifests,
            endpoint,
            image_endpoint: None,
            healthz: Some(SocketAddr::from(([127, 0, 0, 1], 10248))),
            read_only: Some(SocketAddr::from(([127, 0, 0, 1], 10255))),
            best_mode: PlegMode::Kernel,
            safety_period: Duration::from_secs(300),
            ring_bytes: 1 << 20,
            max_starts: 8,
            max_restart_backoff: Duration::from_secs(300),
            cgroup_root: None,
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            log_json: false,
            verbosity: 0,
        }
    }
}

impl Config {
    /// The configuration of `skep up`: manifests with unknown fields are refused, cgroup v1 and
    /// swap are accepted.
    pub fn for_up(up: UpSettings, host: &Host) -> Result<Self, Mistakes> {
        let mut settings = Settings::new(Defaults::OfFile);
        let mut set = |flag: &str, value: Value| {
            let row = table::by_flag(flag).expect("the options of up are flags of the table");
            settings.set_flag(row, value);
        };
        let text = |path: PathBuf| Value::Text(path.to_string_lossy().into_owned());
        let int = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let time = |duration: Duration| {
            Value::Duration(GoDuration(
                i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
            ))
        };
        set("container-logs-dir", text(up.root.join("log/containers")));
        set("root-dir", text(up.root.clone()));
        if let Some(manifests) = up.manifests {
            set("pod-manifest-path", text(manifests));
        }
        set("container-runtime-endpoint", Value::Text(up.endpoint));
        if let Some(endpoint) = up.image_endpoint {
            set("image-service-endpoint", Value::Text(endpoint));
        }
        for (address, port, socket) in [
            ("healthz-bind-address", "healthz-port", up.healthz),
            ("address", "read-only-port", up.read_only),
        ] {
            if let Some(socket) = socket {
                set(address, Value::Text(socket.ip().to_string()));
            }
            set(port, int(socket.map_or(0, |socket| socket.port().into())));
        }
        if let Some(root) = up.cgroup_root {
            set("cgroup-root", Value::Text(root));
        }
        set("pleg-mode", Value::Text(up.best_mode.to_string()));
        set("pleg-safety-period", time(up.safety_period));
        set("kernel-ring-bytes", int(up.ring_bytes.into()));
        set(
            "max-container-starts",
            int(u64::try_from(up.max_starts).unwrap_or(u64::MAX)),
        );
        let addresses = up.cluster_dns.iter().map(ToString::to_string).collect();
        set("cluster-dns", Value::List(addresses));
        set("cluster-domain", Value::Text(up.cluster_domain));
        set("fail-cgroupv1", Value::Bool(false));
        set("fail-swap-on", Value::Bool(false));
        set("v", int(up.verbosity.into()));
        let format = if up.log_json { "json" } else { "text" };
        set("logging-format", Value::Text(format.to_owned()));
        let mut set_field = |key: &'static str, value: Value| settings.set_option(key, value);
        set_field("podLogsDir", text(up.root.join("log/pods")));
        set_field(
            "crashLoopBackOff.maxContainerRestartPeriod",
            time(up.max_restart_backoff),
        );
        validate::validate(&settings, Strictness::Refuse, host).map(|(config, _)| config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host {
            name: "Machine-1 ".into(),
            cpus: 2,
        }
    }

    fn up() -> UpSettings {
        UpSettings::new(
            DEFAULT_ROOT.into(),
            Some("/srv/pods".into()),
            "unix:///run/skep.sock".into(),
        )
    }

    #[test]
    fn up_keeps_everything_under_its_root_and_accepts_the_machine() {
        let config = Config::for_up(up(), &host()).expect("defaults are valid");
        assert_eq!(config.node.name, "machine-1");
        assert_eq!(config.dirs.root, PathBuf::from("/var/lib/skep"));
        assert_eq!(
            config.dirs.pod_logs,
            PathBuf::from("/var/lib/skep/log/pods")
        );
        assert_eq!(
            config.dirs.container_logs,
            PathBuf::from("/var/lib/skep/log/containers")
        );
        assert_eq!(config.sources.strictness, Strictness::Refuse);
        assert_eq!(
            config.sources.file.as_ref().map(|file| file.path.clone()),
            Some("/srv/pods".into())
        );
        assert_eq!(
            config.servers.healthz.map(|socket| socket.to_string()),
            Some("127.0.0.1:10248".into())
        );
        assert_eq!(
            config.servers.read_only.map(|socket| socket.to_string()),
            Some("127.0.0.1:10255".into())
        );
        let machine = validate::Machine {
            is_cgroup_v1: true,
            is_swap_on: true,
        };
        assert_eq!(validate::refuse_machine(&config, machine), Ok(()));
    }

    #[test]
    fn a_bad_option_of_up_is_named_by_its_flag() {
        let mut settings = up();
        settings.ring_bytes = 5000;
        settings.max_restart_backoff = Duration::from_secs(3600);
        let mistakes = Config::for_up(settings, &host()).expect_err("both are wrong");
        assert_eq!(
            mistakes.lines(),
            [
                "invalid configuration: crashLoopBackOff.maxContainerRestartPeriod (got: 1h0m0s) must be set between 1s and 300s (set by an option)",
                "invalid configuration: --kernel-ring-bytes 5000 must be a power of two of at least a page (4096) and at most 1 GiB (set by --kernel-ring-bytes)",
            ]
        );
    }
}
