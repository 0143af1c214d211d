//! Settings to [`Config`]: every check, every mistake at once.
//!
//! Pure: the machine is asked elsewhere. [`refuse_machine`] has the checks that need its answers.
//! The rules are those of the kubelet's own validation for what is built (CFG-31); for what is not,
//! a value other than the default is refused by name.

mod unbuilt;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::types::duration::{GoDuration, MILLISECOND, SECOND};

use super::{
    CgroupDriver, CgroupSettings, Config, Dirs, DnsSettings, FileSource, GcSettings, Host,
    HttpSource, ImageSettings, LogSettings, NodeSettings, PlegMode, PlegSettings, ProcessSettings,
    Reserved, RuntimeSettings, ServerSettings, SourceSettings, Strictness, SyncSettings, file,
    gates,
    settings::{self, Settings},
};
use crate::types::quantity::Quantity;

/// What is wrong with flags and files: never empty, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// None where there is none.
    pub(super) fn of(lines: Vec<String>) -> Option<Self> {
        (!lines.is_empty()).then_some(Self(lines))
    }

    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// What the machine is like, as far as the configuration depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub is_cgroup_v1: bool,
    pub is_swap_on: bool,
}

/// The checks that need the machine's answers (CFG-22, CFG-23).
pub fn refuse_machine(config: &Config, machine: Machine) -> Result<(), Mistakes> {
    let mut lines = Vec::new();
    if machine.is_cgroup_v1 && config.cgroups.fail_v1 {
        lines.push(
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
             unsupported and will be removed in a future release; set failCgroupV1 \
             (--fail-cgroupv1) to false to run on it"
                .to_owned(),
        );
    }
    if machine.is_cgroup_v1 && config.cgroups.single_process_oom_kill == Some(false) {
        lines.push(
            "invalid configuration: singleProcessOOMKill must not be explicitly set to false when \
             using cgroup v1"
                .to_owned(),
        );
    }
    if machine.is_swap_on && config.process.fail_swap_on {
        lines.push(
            "running with swap on is not supported, please disable swap or set --fail-swap-on \
             flag to false"
                .to_owned(),
        );
    }
    Mistakes::of(lines).map_or(Ok(()), Err)
}

/// The configuration and what is to be said about it at start.
pub(super) fn validate(
    settings: &Settings,
    strictness: Strictness,
    host: &Host,
) -> Result<(Config, Vec<String>), Mistakes> {
    let mut check = Check {
        settings,
        lines: Vec::new(),
        warnings: Vec::new(),
    };
    let config = check.config(strictness, host);
    check.refuse_what_is_not_built();
    check.say_what_is_not_in_force();
    match Mistakes::of(check.lines) {
        Some(mistakes) => Err(mistakes),
        None => Ok((config, check.warnings)),
    }
}

struct Check<'a> {
    settings: &'a Settings,
    lines: Vec<String>,
    warnings: Vec<String>,
}

impl Check<'_> {
    /// `invalid configuration: maxPods (--max-pods) -1 must … (set in kubelet.yaml)`.
    fn refuse(&mut self, key: &str, text: impl fmt::Display) {
        let name = settings::row(key).name();
        let place = self
            .settings
            .origin(key)
            .map_or_else(String::new, |origin| format!(" ({origin})"));
        self.lines
            .push(format!("invalid configuration: {name} {text}{place}"));
    }

    fn config(&mut self, strictness: Strictness, host: &Host) -> Config {
        let (gates, mistakes, warnings) = gates::check(&self.settings.gates());
        let origin = self.settings.origin("featureGates");
        let place = origin.map_or_else(String::new, |origin| format!(" ({origin})"));
        self.lines
            .extend(mistakes.into_iter().map(|line| line + &place));
        self.warnings.extend(warnings);
        Config {
            node: self.node(host),
            dirs: Dirs {
                root: self.clean_path("root-dir"),
                pod_logs: self.pod_logs(),
                container_logs: self.clean_path("container-logs-dir"),
            },
            runtime: self.runtime(),
            sources: self.sources(strictness),
            sync: self.sync(&gates),
            cgroups: self.cgroups(&gates),
            images: self.images(),
            logs: self.logs(),
            gc: GcSettings {
                min_age: self.period("minimum-container-ttl-duration"),
                max_per_container: usize::try_from(
                    self.settings.int("maximum-dead-containers-per-container"),
                )
                .ok(),
                max_dead: usize::try_from(self.settings.int("maximum-dead-containers")).ok(),
            },
            dns: self.dns(),
            pleg: self.pleg(),
            servers: ServerSettings {
                healthz: self.address("healthzBindAddress", "healthzPort", "1 and 65535"),
                read_only: self.address("address", "readOnlyPort", "0 and 65535"),
            },
            process: self.process(),
            gates,
        }
    }

    fn node(&mut self, host: &Host) -> NodeSettings {
        let given = self.settings.text("hostname-override");
        let from = if given.is_empty() { &host.name } else { &given };
        let name = from.trim().to_lowercase();
        if name.is_empty() {
            self.lines.push(
                "the name of the node is empty: set --hostname-override or the host name"
                    .to_owned(),
            );
        }
        let max_pods = self.at_least_zero("maxPods");
        let per_core = self.at_least_zero("podsPerCore");
        let cores = u64::try_from(host.cpus).unwrap_or(u64::MAX);
        let max_pods = match per_core {
            0 => max_pods,
            per_core => max_pods.min(per_core.saturating_mul(cores)),
        };
        NodeSettings {
            name,
            ips: self.node_ips(),
            seccomp_default: self.settings.bool("seccomp-default")
                || self.settings.bool("seccompDefault"),
            max_pods: u32::try_from(max_pods).unwrap_or(u32::MAX),
        }
    }

    fn node_ips(&mut self) -> Vec<IpAddr> {
        let text = self.settings.text("node-ip");
        let mut ips: Vec<IpAddr> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match part.trim().parse() {
                Ok(ip) => ips.push(ip),
                Err(_) => self.refuse(
                    "node-ip",
                    format_args!(
                        "{part:?} is not an IP address: expected one, or one of each family"
                    ),
                ),
            }
        }
        let is_pair_of_both = ips.len() == 2 && ips[0].is_ipv4() != ips[1].is_ipv4();
        if ips.len() > 1 && !is_pair_of_both {
            self.refuse(
                "node-ip",
                format_args!("{text:?} must be one address, or one of each family"),
            );
        }
        ips
    }

    /// An absolute path without `.`, `..` or a slash at its end.
    fn clean_path(&mut self, key: &str) -> PathBuf {
        let text = self.settings.text(key);
        if !text.starts_with('/') {
            self.refuse(key, format_args!("{text:?} must be an absolute path"));
        } else if file::clean(Path::new(&text)) != text {
            self.refuse(key, format_args!("{text:?} must be normalized"));
        }
        PathBuf::from(text)
    }

    fn pod_logs(&mut self) -> PathBuf {
        let path = self.clean_path("podLogsDir");
        if !path.to_string_lossy().is_ascii() {
            self.refuse(
                "podLogsDir",
                format_args!("{path:?} must contain ASCII characters only"),
            );
        }
        path
    }

    fn runtime(&mut self) -> RuntimeSettings {
        let endpoint = self.endpoint("containerRuntimeEndpoint");
        if endpoint.is_none() {
            self.refuse(
                "containerRuntimeEndpoint",
                "was not specified or empty: expected unix:///path/to/runtime.sock",
            );
        }
        RuntimeSettings {
            endpoint: endpoint.unwrap_or_default(),
            image_endpoint: self.endpoint("imageServiceEndpoint"),
            request_timeout: self.positive("runtimeRequestTimeout"),
        }
    }

    /// `unix:///path`; a bare path is taken too, as upstream does, with a warning.
    fn endpoint(&mut self, key: &str) -> Option<String> {
        let text = self.settings.text(key);
        if text.is_empty() {
            return None;
        }
        if text.starts_with('/') {
            self.warnings.push(format!(
                "{}: using a bare path as an endpoint is deprecated, use unix://{text}",
                settings::row(key).name()
            ));
            return Some(format!("unix://{text}"));
        }
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"));
        let is_unix = path.is_some_and(|path| path.starts_with('/') && path.len() > 1);
        if !is_unix {
            self.refuse(
                key,
                format_args!(
                    "{text:?} must be a unix socket: expected unix:///path/to/runtime.sock"
                ),
            );
        }
        Some(path.map_or(text.clone(), |path| format!("unix://{path}")))
    }

    fn sources(&mut self, strictness: Strictness) -> SourceSettings {
        let file_period = self.positive("fileCheckFrequency");
        let http_period = self.positive("httpCheckFrequency");
        let url = self.settings.text("staticPodURL");
        let headers = self.settings.headers("staticPodURLHeader");
        if !url.is_empty() && !url.starts_with("http://") && !url.starts_with("https://") {
            self.refuse(
                "staticPodURL",
                format_args!("{url:?} must start with http:// or https://"),
            );
        }
        let bad_headers: Vec<&String> = headers
            .iter()
            .filter(|(name, values)| {
                name.parse::<http::HeaderName>().is_err()
                    || values
                        .iter()
                        .any(|value| value.parse::<http::HeaderValue>().is_err())
            })
            .map(|(name, _)| name)
            .collect();
        for name in bad_headers {
            self.refuse(
                "staticPodURLHeader",
                format_args!("{name:?} is not an HTTP header with a value"),
            );
        }
        if url.is_empty() && !headers.is_empty() {
            self.refuse("staticPodURLHeader", "needs staticPodURL (--manifest-url)");
        }
        SourceSettings {
            file: self.settings.path("staticPodPath").map(|path| FileSource {
                path,
                period: file_period,
            }),
            http: (!url.is_empty()).then(|| HttpSource {
                url,
                headers: headers
                    .into_iter()
                    .flat_map(|(name, values)| {
                        values.into_iter().map(move |value| (name.clone(), value))
                    })
                    .collect(),
                period: http_period,
            }),
            strictness,
        }
    }

    fn sync(&mut self, gates: &gates::Gates) -> SyncSettings {
        const KEY: &str = "crashLoopBackOff.maxContainerRestartPeriod";
        let restart = self.settings.duration(KEY);
        if !gates.is_enabled("KubeletCrashLoopBackOffMax") && self.settings.is_made(KEY) {
            self.refuse(
                KEY,
                "must not be set without feature gate KubeletCrashLoopBackOffMax",
            );
        } else if !(SECOND..=300 * SECOND).contains(&restart.0) {
            self.refuse(
                KEY,
                format_args!("(got: {restart}) must be set between 1s and 300s"),
            );
        }
        let max_starts = self.settings.int("max-container-starts");
        if !(1..=1000).contains(&max_starts) {
            self.refuse(
                "max-container-starts",
                format_args!("{max_starts} must be between 1 and 1000, inclusive"),
            );
        }
        SyncSettings {
            period: self.positive("syncFrequency"),
            max_restart_backoff: to_std(restart),
            max_starts: usize::try_from(max_starts).unwrap_or(1),
        }
    }

    fn cgroups(&mut self, gates: &gates::Gates) -> CgroupSettings {
        let root = match self.settings.text("cgroupRoot") {
            text if text.is_empty() => "/".to_owned(),
            text => text,
        };
        if !root.starts_with('/') || file::clean(Path::new(&root)) != root {
            self.refuse(
                "cgroupRoot",
                format_args!("{root:?} must be the absolute name of a cgroup, like /pods"),
            );
        }
        let driver = self.settings.text("cgroupDriver");
        match driver.as_str() {
            "cgroupfs" => {}
            "systemd" => self.refuse(
                "cgroupDriver",
                "\"systemd\": the systemd driver is not built yet; set cgroupfs, in the runtime too",
            ),
            other => self.refuse(
                "cgroupDriver",
                format_args!("{other:?} must be cgroupfs or systemd"),
            ),
        }
        let period = self.settings.duration("cpuCFSQuotaPeriod");
        if !gates.is_enabled("CustomCPUCFSQuotaPeriod") && period.0 != 100 * MILLISECOND {
            self.refuse(
                "cpuCFSQuotaPeriod",
                format_args!("{period} requires feature gate CustomCPUCFSQuotaPeriod"),
            );
        } else if !(MILLISECOND..=SECOND).contains(&period.0) {
            self.refuse(
                "cpuCFSQuotaPeriod",
                format_args!("{period} must be between 1ms and 1sec, inclusive"),
            );
        }
        let per_qos = self.settings.bool("cgroupsPerQOS");
        let pids = self.settings.int("podPidsLimit");
        CgroupSettings {
            root,
            driver: CgroupDriver::Cgroupfs,
            per_qos,
            fail_v1: self.settings.bool("failCgroupV1"),
            pids_limit: (pids >= 0).then_some(pids),
            cpu_cfs_quota: self.settings.bool("cpuCFSQuota"),
            cpu_cfs_quota_period: to_std(period),
            single_process_oom_kill: self.settings.optional_bool("singleProcessOOMKill"),
            enforce_pods: self.enforcements(per_qos),
            system_reserved: self.reserved("systemReserved"),
            kube_reserved: self.reserved("kubeReserved"),
        }
    }

    /// Whether "pods" stands in `enforceNodeAllocatable`.
    fn enforcements(&mut self, per_qos: bool) -> bool {
        const KEY: &str = "enforceNodeAllocatable";
        const RESERVED: [&str; 4] = [
            "system-reserved",
            "system-reserved-compressible",
            "kube-reserved",
            "kube-reserved-compressible",
        ];
        let all = self.settings.list(KEY);
        let mut seen = BTreeSet::new();
        for name in &all {
            if !seen.insert(name.as_str()) {
                self.refuse(KEY, format_args!("has {name:?} twice"));
                continue;
            }
            if name == "none" {
                if all.len() > 1 {
                    self.refuse(
                        KEY,
                        "may not contain additional enforcements when \"none\" is specified",
                    );
                }
                continue;
            }
            if RESERVED.contains(&name.as_str()) {
                self.refuse(
                    KEY,
                    format_args!("{name:?}: enforcing reservations on cgroups is not built yet"),
                );
            } else if name != "pods" {
                self.refuse(
                    KEY,
                    format_args!("has {name:?}: expected none, pods, {}", RESERVED.join(", ")),
                );
            } else if !per_qos {
                self.refuse(
                    "cgroupsPerQOS",
                    "must be set to true when \"pods\" contained in enforceNodeAllocatable \
                     (--enforce-node-allocatable)",
                );
            }
        }
        seen.contains("pods")
    }

    fn reserved(&mut self, key: &str) -> Reserved {
        let mut reserved = Reserved::default();
        let given: BTreeMap<String, String> = self.settings.pairs(key);
        for (name, text) in &given {
            let place = match name.as_str() {
                "cpu" => &mut reserved.cpu,
                "memory" => &mut reserved.memory,
                "pid" => &mut reserved.pids,
                "ephemeral-storage" => {
                    self.refuse(
                        key,
                        "has ephemeral-storage: limiting local storage is not built yet",
                    );
                    continue;
                }
                _ => {
                    self.refuse(
                        key,
                        format_args!(
                            "has {name:?}: expected cpu, memory, pid or ephemeral-storage"
                        ),
                    );
                    continue;
                }
            };
            match text.parse::<Quantity>() {
                Ok(quantity) if quantity.is_negative() => {
                    self.refuse(key, format_args!("{name}={text} must not be negative"))
                }
                Ok(quantity) => *place = quantity,
                Err(error) => self.refuse(key, format_args!("{name}: {error}")),
            }
        }
        reserved
    }

    fn images(&mut self) -> ImageSettings {
        let is_serial = self.settings.bool("serializeImagePulls");
        let parallel = self.settings.optional_int("maxParallelImagePulls");
        if let Some(count) = parallel.filter(|count| *count < 1) {
            self.refuse(
                "maxParallelImagePulls",
                format_args!("{count} must be a positive number"),
            );
        }
        if is_serial && parallel.is_some_and(|count| count > 1) {
            self.refuse(
                "maxParallelImagePulls",
                "cannot be larger than 1 unless serializeImagePulls (--serialize-image-pulls) is \
                 set to false",
            );
        }
        ImageSettings {
            max_parallel_pulls: if is_serial {
                Some(1)
            } else {
                parallel.and_then(|count| usize::try_from(count).ok())
            },
            pull_qps: self.rate("registryPullQPS"),
            pull_burst: self.rate("registryBurst"),
        }
    }

    fn logs(&mut self) -> LogSettings {
        let text = self.settings.text("containerLogMaxSize");
        let max_size = match text.parse::<Quantity>() {
            Ok(size) => u64::try_from(size.value()).ok(),
            Err(error) => {
                self.refuse("containerLogMaxSize", error);
                None
            }
        };
        let max_files = self.settings.int("containerLogMaxFiles");
        if max_files <= 1 {
            self.refuse(
                "containerLogMaxFiles",
                format_args!("{max_files} must be greater than 1"),
            );
        }
        let workers = self.settings.int("containerLogMaxWorkers");
        if workers < 1 {
            self.refuse(
                "containerLogMaxWorkers",
                format_args!("{workers} must be greater than or equal to 1"),
            );
        }
        let interval = self.settings.duration("containerLogMonitorInterval");
        if interval.0 < 3 * SECOND {
            self.refuse(
                "containerLogMonitorInterval",
                format_args!("{interval} must be a duration of at least 3s"),
            );
        }
        LogSettings {
            max_size,
            max_files: usize::try_from(max_files).unwrap_or(2),
            interval: to_std(interval),
            workers: usize::try_from(workers).unwrap_or(1),
        }
    }

    fn dns(&mut self) -> DnsSettings {
        let mut cluster_dns = Vec::new();
        for text in self.settings.list("clusterDNS") {
            match text.trim().parse() {
                Ok(ip) => cluster_dns.push(ip),
                Err(_) => self.refuse(
                    "clusterDNS",
                    format_args!("has {text:?}: expected IP addresses"),
                ),
            }
        }
        let resolv_conf = self.settings.path("resolvConf");
        if let Some(path) = resolv_conf.as_ref().filter(|path| !path.is_absolute()) {
            self.refuse(
                "resolvConf",
                format_args!("{path:?} must be an absolute path"),
            );
        }
        DnsSettings {
            cluster_dns,
            cluster_domain: self.settings.text("clusterDomain"),
            resolv_conf,
        }
    }

    fn pleg(&mut self) -> PlegSettings {
        let mode = self.settings.text("pleg-mode");
        let best_mode = mode.parse().unwrap_or_else(|_error| {
            self.refuse(
                "pleg-mode",
                format_args!("{mode:?} must be one of kernel, stream or listing"),
            );
            PlegMode::Kernel
        });
        let safety_period = self.settings.duration("pleg-safety-period");
        if safety_period.0 < SECOND {
            self.refuse(
                "pleg-safety-period",
                format_args!("{safety_period} must be at least 1s"),
            );
        }
        let bytes = self.settings.int("kernel-ring-bytes");
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let is_size = (page..=1 << 30).contains(&bytes) && bytes.count_ones() == 1;
        if !is_size {
            self.refuse(
                "kernel-ring-bytes",
                format_args!(
                    "{bytes} must be a power of two of at least a page ({page}) and at most 1 GiB"
                ),
            );
        }
        PlegSettings {
            best_mode,
            safety_period: to_std(safety_period),
            ring_bytes: u32::try_from(bytes).unwrap_or(1 << 20),
        }
    }

    /// None where the port is 0.
    fn address(&mut self, address: &str, port: &str, range: &str) -> Option<SocketAddr> {
        let number = self.settings.int(port);
        let Ok(number) = u16::try_from(number) else {
            self.refuse(
                port,
                format_args!("{number} must be between {range}, inclusive"),
            );
            return None;
        };
        let ip: IpAddr = self.settings.text(address).parse().ok()?;
        (number != 0).then(|| SocketAddr::new(ip, number))
    }

    fn process(&mut self) -> ProcessSettings {
        let adjustment = self.settings.int("oomScoreAdj");
        if !(-1000..=1000).contains(&adjustment) {
            self.refuse(
                "oomScoreAdj",
                format_args!("{adjustment} must be between -1000 and 1000, inclusive"),
            );
        }
        let format = self.settings.text("logging.format");
        if !matches!(format.as_str(), "text" | "json") {
            self.refuse(
                "logging.format",
                format_args!("{format:?} must be text or json"),
            );
        }
        let verbosity = self.at_least_zero("logging.verbosity");
        ProcessSettings {
            oom_score_adj: i32::try_from(adjustment).unwrap_or_default(),
            max_open_files: self.at_least_zero("maxOpenFiles"),
            fail_swap_on: self.settings.bool("failSwapOn"),
            lock_file: self.settings.path("lock-file"),
            log_json: format == "json",
            verbosity: u32::try_from(verbosity).unwrap_or(u32::MAX),
        }
    }

    fn at_least_zero(&mut self, key: &str) -> u64 {
        let number = self.settings.int(key);
        u64::try_from(number).unwrap_or_else(|_error| {
            self.refuse(key, format_args!("{number} must not be a negative number"));
            0
        })
    }

    fn rate(&mut self, key: &str) -> u32 {
        u32::try_from(self.at_least_zero(key)).unwrap_or(u32::MAX)
    }

    fn period(&mut self, key: &str) -> Duration {
        let duration = self.settings.duration(key);
        duration.to_std().unwrap_or_else(|| {
            self.refuse(key, format_args!("{duration} must not be negative"));
            Duration::ZERO
        })
    }

    fn positive(&mut self, key: &str) -> Duration {
        let duration = self.settings.duration(key);
        if duration.0 <= 0 {
            self.refuse(key, format_args!("{duration} must be greater than 0"));
        }
        to_std(duration)
    }
}

/// For a value that is in its range, or whose mistake has been told.
fn to_std(duration: GoDuration) -> Duration {
    duration.to_std().unwrap_or_default()
}
