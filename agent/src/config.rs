//! What the agent was told to do: validated and typed, grouped by the part that uses it.
//!
//! No serde here: `flags` and `file` read the outside forms, `validate` makes this of them. `table`
//! names every setting once; what is not built is refused by name.

pub mod docs;
mod dropin;
mod file;
mod flags;
pub mod gates;
pub mod run;
mod settings;
pub mod table;
pub mod up;
pub mod validate;
mod value;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use crate::types::quantity::Quantity;

/// Everything, as the parts get it.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: NodeSettings,
    pub dirs: Dirs,
    pub runtime: RuntimeSettings,
    pub sources: SourceSettings,
    pub sync: SyncSettings,
    pub cgroups: CgroupSettings,
    pub images: ImageSettings,
    pub logs: LogSettings,
    pub gc: GcSettings,
    pub dns: DnsSettings,
    pub pleg: PlegSettings,
    pub servers: ServerSettings,
    pub process: ProcessSettings,
    /// `featureGates`, over the defaults.
    pub gates: gates::Gates,
}

/// What the configuration takes from the machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// `uname -n`.
    pub name: String,
    /// CPUs online, for `podsPerCore`.
    pub cpus: usize,
}

#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// `--hostname-override`, else `uname -n`; trimmed, lower case (CFG-25).
    pub name: String,
    /// `--node-ip`; none: found from the default route.
    pub ips: Vec<IpAddr>,
    pub seccomp_default: bool,
    pub max_pods: u32,
}

/// Where things are on disk.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// `--root-dir`: `pods/`, `seccomp/`, and Skep's own `skep.sock`, `skep.lock`, `skep/` (timeline).
    pub root: PathBuf,
    /// `podLogsDir`.
    pub pod_logs: PathBuf,
    /// Links `<pod>_<ns>_<container>-<id>.log`; upstream's `/var/log/containers`.
    pub container_logs: PathBuf,
}

#[derive(Clone, Debug)]
pub struct RuntimeSettings {
    /// `unix:///run/containerd/containerd.sock`.
    pub endpoint: String,
    /// `imageServiceEndpoint`; none: the same.
    pub image_endpoint: Option<String>,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct SourceSettings {
    pub file: Option<FileSource>,
    pub http: Option<HttpSource>,
    /// Unknown fields and further documents refuse a manifest (`up`, `check`) instead of being
    /// warned about (`run`).
    pub strictness: Strictness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    Refuse,
    Warn,
}

#[derive(Clone, Debug)]
pub struct FileSource {
    /// `staticPodPath`: a folder or one file.
    pub path: PathBuf,
    /// `fileCheckFrequency`.
    pub period: Duration,
}

#[derive(Clone)]
pub struct HttpSource {
    /// `staticPodURL`.
    pub url: String,
    /// `staticPodURLHeader`. Values may be secret: never log them.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`.
    pub period: Duration,
}

impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpSource")
            .field("url", &self.url)
            .field("headers", &names)
            .field("period", &self.period)
            .finish()
    }
}

#[derive(Clone, Debug)]
pub struct SyncSettings {
    /// `syncFrequency`: longest time between two syncs of a pod.
    pub period: Duration,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_restart_backoff: Duration,
    /// Containers and sandboxes that may be starting at one time, over all pods.
    pub max_starts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

#[derive(Clone, Debug)]
pub struct CgroupSettings {
    /// `cgroupRoot`; "/" by default.
    pub root: String,
    pub driver: CgroupDriver,
    /// `cgroupsPerQOS`.
    pub per_qos: bool,
    /// `failCgroupV1`.
    pub fail_v1: bool,
    /// `podPidsLimit`; none: unlimited.
    pub pids_limit: Option<i64>,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    /// `singleProcessOOMKill`; none: false on v2, true on v1.
    pub single_process_oom_kill: Option<bool>,
    /// "pods" stands in `enforceNodeAllocatable`.
    pub enforce_pods: bool,
    /// `systemReserved` and `kubeReserved`: (cpu, memory, pids).
    pub system_reserved: Reserved,
    pub kube_reserved: Reserved,
}

#[cfg(test)]
impl CgroupSettings {
    /// A kubelet's defaults on the machine's root, where cgroup v1 is accepted.
    pub(crate) fn for_tests() -> Self {
        Self {
            root: "/".to_owned(),
            driver: CgroupDriver::Cgroupfs,
            per_qos: true,
            fail_v1: false,
            pids_limit: None,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            single_process_oom_kill: None,
            enforce_pods: true,
            system_reserved: Reserved::default(),
            kube_reserved: Reserved::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    pub cpu: Quantity,
    pub memory: Quantity,
    pub pids: Quantity,
}

#[derive(Clone, Debug)]
pub struct ImageSettings {
    /// 1 where `serializeImagePulls`; none: no bound.
    pub max_parallel_pulls: Option<usize>,
    /// `registryPullQPS`; 0 is no limit.
    pub pull_qps: u32,
    pub pull_burst: u32,
}

#[derive(Clone, Debug)]
pub struct LogSettings {
    /// `containerLogMaxSize` in bytes; none (negative): no rotation.
    pub max_size: Option<u64>,
    pub max_files: usize,
    pub interval: Duration,
    pub workers: usize,
}

#[derive(Clone, Debug)]
pub struct GcSettings {
    /// `--minimum-container-ttl-duration`.
    pub min_age: Duration,
    /// `--maximum-dead-containers-per-container`; none: no bound.
    pub max_per_container: Option<usize>,
    /// `--maximum-dead-containers`; none: no bound.
    pub max_dead: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct DnsSettings {
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// `resolvConf`; none where it is "".
    pub resolv_conf: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct PlegSettings {
    /// The best mode to use; a worse one is taken while this one cannot be had.
    pub best_mode: PlegMode,
    /// Time between two safety listings in the modes kernel and stream.
    pub safety_period: Duration,
    /// Size of the kernel's ring buffer: a power of two, at least a page.
    pub ring_bytes: u32,
}

/// How the PLEG learns of changes, best first.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantNames,
)]
#[strum(serialize_all = "lowercase")]
pub enum PlegMode {
    /// A listing each second, as upstream.
    Listing,
    /// The runtime's event stream.
    Stream,
    /// The kernel's events.
    Kernel,
}

#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// `healthzBindAddress`:`healthzPort`; none where the port is 0.
    pub healthz: Option<SocketAddr>,
    /// `address`:`readOnlyPort`; none where the port is 0.
    pub read_only: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// `oomScoreAdj`.
    pub oom_score_adj: i32,
    /// `maxOpenFiles`; 0 leaves the limit as it is.
    pub max_open_files: u64,
    /// `failSwapOn`: refuse to start with active swap.
    pub fail_swap_on: bool,
    /// `--lock-file`.
    pub lock_file: Option<PathBuf>,
    /// `logging.format` and `--v`.
    pub log_json: bool,
    pub verbosity: u32,
}
