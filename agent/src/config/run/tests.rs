use std::{fs, path::PathBuf};

use rstest::rstest;

use super::{
    super::{CgroupDriver, PlegMode},
    *,
};

fn host() -> Host {
    Host {
        name: "Node-A\n".into(),
        cpus: 4,
    }
}

fn parse(args: &[&str]) -> Result<Parsed, Mistakes> {
    super::parse(
        &args.iter().map(OsString::from).collect::<Vec<_>>(),
        &host(),
    )
}

fn config(args: &[&str]) -> (Config, Vec<String>) {
    match parse(args).expect("valid settings") {
        Parsed::Config(config, warnings) => (*config, warnings),
        Parsed::Print(text) => panic!("printed {text}"),
    }
}

fn mistakes(args: &[&str]) -> Vec<String> {
    parse(args)
        .expect_err("mistakes were made")
        .lines()
        .to_vec()
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A folder with files, as a user has them; `{dir}` in arguments and messages is its path.
struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text.replace("{head}", HEAD)).expect("a file");
        }
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{dir}", &self.path().display().to_string())
    }

    fn mistakes(&self, args: &[&str]) -> Vec<String> {
        let args: Vec<String> = args.iter().map(|arg| self.fill(arg)).collect();
        mistakes(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn config(&self, args: &[&str]) -> (Config, Vec<String>) {
        let args: Vec<String> = args.iter().map(|arg| self.fill(arg)).collect();
        config(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

// === What is printed ===

#[test]
fn version_prints_what_kubeadm_reads() {
    let Ok(Parsed::Print(text)) = parse(&["--version"]) else {
        panic!("nothing printed");
    };
    assert_eq!(text, "Kubernetes v1.37.2\n");
    assert!(matches!(parse(&["--version=raw"]), Ok(Parsed::Print(text)) if text.contains("skep")));
    assert!(matches!(
        parse(&["--version=false"]),
        Ok(Parsed::Config(..))
    ));
}

#[rstest]
#[case(&["--help"])]
#[case(&["-h"])]
fn help_is_printed_before_any_file_is_read(#[case] args: &[&str]) {
    let mut args = args.to_vec();
    args.push("--config=/no/such/file");
    assert!(
        matches!(parse(&args), Ok(Parsed::Print(text)) if text.contains("--pod-manifest-path"))
    );
}

// === Defaults ===

#[test]
fn a_bare_command_line_has_the_older_defaults() {
    let (config, warnings) = config(&[]);
    assert_eq!(config.node.name, "node-a");
    assert_eq!(config.node.max_pods, 110);
    assert_eq!(config.dirs.root, PathBuf::from("/var/lib/kubelet"));
    assert_eq!(config.dirs.pod_logs, PathBuf::from("/var/log/pods"));
    assert_eq!(
        config.dirs.container_logs,
        PathBuf::from("/var/log/containers")
    );
    assert_eq!(
        config.runtime.endpoint,
        "unix:///run/containerd/containerd.sock"
    );
    assert_eq!(config.runtime.request_timeout.as_secs(), 120);
    assert!(config.sources.file.is_none() && config.sources.http.is_none());
    assert_eq!(config.sources.strictness, Strictness::Warn);
    assert_eq!(config.sync.period.as_secs(), 60);
    assert_eq!(config.sync.max_restart_backoff.as_secs(), 300);
    assert_eq!(config.sync.max_starts, 8);
    assert_eq!(config.cgroups.root, "/");
    assert_eq!(config.cgroups.driver, CgroupDriver::Cgroupfs);
    assert!(config.cgroups.per_qos && config.cgroups.fail_v1 && config.cgroups.enforce_pods);
    assert_eq!(config.cgroups.pids_limit, None);
    assert_eq!(config.cgroups.cpu_cfs_quota_period.as_millis(), 100);
    assert_eq!(config.cgroups.single_process_oom_kill, None);
    assert_eq!(config.images.max_parallel_pulls, Some(1));
    assert_eq!((config.images.pull_qps, config.images.pull_burst), (5, 10));
    assert_eq!(config.logs.max_size, Some(10 << 20));
    assert_eq!((config.logs.max_files, config.logs.workers), (5, 1));
    assert_eq!(config.gc.max_per_container, Some(1));
    assert_eq!(config.gc.max_dead, None);
    assert_eq!(
        config.dns.resolv_conf,
        Some(PathBuf::from("/etc/resolv.conf"))
    );
    assert_eq!(config.pleg.best_mode, PlegMode::Kernel);
    assert_eq!(config.pleg.safety_period.as_secs(), 300);
    assert_eq!(config.pleg.ring_bytes, 1 << 20);
    assert_eq!(
        config.servers.healthz.map(|socket| socket.to_string()),
        Some("127.0.0.1:10248".into())
    );
    assert_eq!(
        config.servers.read_only.map(|socket| socket.to_string()),
        Some("0.0.0.0:10255".into())
    );
    assert_eq!(config.process.oom_score_adj, -999);
    assert_eq!(config.process.max_open_files, 1_000_000);
    assert!(config.process.fail_swap_on && !config.process.log_json);
    assert_eq!(
        warnings,
        [
            "not built yet, so these defaults are not in force: the authenticated API (enableServer), \
             image garbage collection (imageGCHighThresholdPercent), keeping the iptables hint chains \
             (makeIPTablesUtilChains), limiting local storage (localStorageCapacityIsolation)"
        ]
    );
}

#[test]
fn an_empty_file_brings_the_defaults_of_files() {
    let files = Files::new(&[("kubelet.yaml", "{head}")]);
    let (config, warnings) = files.config(&["--config={dir}/kubelet.yaml"]);
    assert_eq!(config.servers.read_only, None);
    assert!(
        warnings[0].contains("eviction (evictionHard)"),
        "{warnings:?}"
    );
}

#[test]
fn what_is_not_wanted_is_not_warned_about() {
    let (_, warnings) = config(&[
        "--enable-server=false",
        "--make-iptables-util-chains=false",
        "--image-gc-high-threshold=100",
        "--local-storage-capacity-isolation=false",
    ]);
    assert!(
        warnings
            .iter()
            .all(|line| line.contains("has been deprecated")),
        "{warnings:?}"
    );
}

// === Precedence ===

#[test]
fn flags_win_over_drop_ins_those_over_the_file_and_that_over_defaults() {
    let files = Files::new(&[
        (
            "kubelet.yaml",
            "{head}maxPods: 10\nsyncFrequency: 10s\nhealthzPort: 1000\nclusterDomain: a\n",
        ),
        (
            "d/10.conf",
            "{head}syncFrequency: 20s\nhealthzPort: 2000\nclusterDomain: b\n",
        ),
        ("d/20.conf", "{head}healthzPort: 3000\nclusterDomain: c\n"),
        ("d/30.ignored", "{head}healthzPort: 4000\n"),
    ]);
    let args = [
        "--config={dir}/kubelet.yaml",
        "--config-dir={dir}/d",
        "--cluster-domain=d",
    ];
    let (config, _) = files.config(&args);
    assert_eq!(config.node.max_pods, 10, "the file");
    assert_eq!(config.sync.period.as_secs(), 20, "the first drop-in");
    assert_eq!(
        config.servers.healthz.map(|socket| socket.port()),
        Some(3000),
        "the second drop-in"
    );
    assert_eq!(config.dns.cluster_domain, "d", "the flag");
    assert_eq!(config.runtime.request_timeout.as_secs(), 120, "the default");
}

#[test]
fn drop_ins_merge_maps_replace_lists_and_take_back_with_null() {
    let files = Files::new(&[
        (
            "kubelet.yaml",
            "{head}systemReserved: {cpu: '1', memory: 1Gi, pid: '100'}\nclusterDNS: [10.0.0.1, 10.0.0.2]\nmaxPods: 10\nlogging: {verbosity: 3}\n",
        ),
        (
            "d/a/10.conf",
            "{head}systemReserved: {cpu: '2', pid: null}\nclusterDNS: [10.0.0.3]\nmaxPods: null\nlogging: null\n",
        ),
    ]);
    let (config, _) = files.config(&["--config={dir}/kubelet.yaml", "--config-dir={dir}/d"]);
    let reserved = config.cgroups.system_reserved;
    assert_eq!(reserved.cpu.value(), 2);
    assert_eq!(reserved.memory.value(), 1 << 30);
    assert!(reserved.pids.is_zero());
    assert_eq!(
        config.dns.cluster_dns,
        ["10.0.0.3".parse::<std::net::IpAddr>().expect("an address")]
    );
    assert_eq!(config.node.max_pods, 110);
    assert_eq!(config.process.verbosity, 0);
}

#[test]
fn a_drop_in_without_a_file_stands_on_the_older_defaults() {
    let files = Files::new(&[("d/10.conf", "{head}maxPods: 5\n")]);
    let (config, _) = files.config(&["--config-dir={dir}/d"]);
    assert_eq!(config.node.max_pods, 5);
    assert!(config.servers.read_only.is_some());
    let files = Files::new(&[("d/10.conf", "{head}readOnlyPort: 0\n")]);
    let (config, _) = files.config(&["--config-dir={dir}/d"]);
    assert!(config.servers.read_only.is_none());
}

#[test]
fn a_map_flag_replaces_the_files_map_and_gates_are_merged_one_by_one() {
    let files = Files::new(&[(
        "kubelet.yaml",
        "{head}systemReserved: {cpu: '1', memory: 1Gi}\nfeatureGates: {NodeSwap: true, KubeletCrashLoopBackOffMax: false}\n",
    )]);
    let (config, _) = files.config(&[
        "--config={dir}/kubelet.yaml",
        "--system-reserved=cpu=500m",
        "--feature-gates=KubeletCrashLoopBackOffMax=true",
    ]);
    assert_eq!(config.cgroups.system_reserved.cpu.milli_value(), 500);
    assert!(config.cgroups.system_reserved.memory.is_zero());
    assert!(config.gates.is_enabled("KubeletCrashLoopBackOffMax"));
    assert!(config.gates.is_enabled("NodeSwap"));
}

// === Values ===

#[test]
fn every_built_setting_arrives() {
    let files = Files::new(&[(
        "kubelet.yaml",
        "{head}\
staticPodPath: manifests
staticPodURL: https://pods.example/list
staticPodURLHeader: {token: [secret]}
fileCheckFrequency: 5s
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
cgroupRoot: /pods
failCgroupV1: false
podPidsLimit: 100
cpuCFSQuota: false
cpuCFSQuotaPeriod: 10ms
singleProcessOOMKill: true
enforceNodeAllocatable: [none]
maxParallelImagePulls: 4
registryPullQPS: 0
containerLogMaxSize: '-1'
containerLogMaxFiles: 3
containerLogMaxWorkers: 2
containerLogMonitorInterval: 3s
resolvConf: ''
healthzPort: 0
podLogsDir: logs
seccompDefault: true
podsPerCore: 10
imageServiceEndpoint: /run/images.sock
logging: {format: json, verbosity: 4}
",
    )]);
    let (config, warnings) = files.config(&[
        "--config={dir}/kubelet.yaml",
        "--hostname-override= Worker-1 ",
        "--node-ip=10.0.0.1,fd00::1",
        "--pleg-mode=stream",
        "--pleg-safety-period=1h",
        "--kernel-ring-bytes=4096",
        "--max-container-starts=2",
        "--maximum-dead-containers=0",
        "--lock-file=/run/lock",
    ]);
    let source = config.sources.file.as_ref().expect("a folder");
    assert_eq!(source.path, files.path().join("manifests"));
    assert_eq!(source.period.as_secs(), 5);
    let http = config.sources.http.as_ref().expect("a URL");
    assert_eq!(http.headers, [("token".to_owned(), "secret".to_owned())]);
    assert!(!format!("{config:?}").contains("secret"));
    assert_eq!(config.sync.max_restart_backoff.as_secs(), 1);
    assert_eq!(config.cgroups.root, "/pods");
    assert!(!config.cgroups.fail_v1 && !config.cgroups.cpu_cfs_quota);
    assert!(!config.cgroups.enforce_pods);
    assert_eq!(config.cgroups.pids_limit, Some(100));
    assert_eq!(config.cgroups.single_process_oom_kill, Some(true));
    assert_eq!(config.images.max_parallel_pulls, Some(4));
    assert_eq!(config.images.pull_qps, 0);
    assert_eq!(config.logs.max_size, None);
    assert_eq!(config.dns.resolv_conf, None);
    assert_eq!(config.servers.healthz, None);
    assert_eq!(config.dirs.pod_logs, files.path().join("logs"));
    assert!(config.node.seccomp_default);
    assert_eq!(config.node.max_pods, 40, "10 a core, 4 cores");
    assert_eq!(config.node.name, "worker-1");
    assert_eq!(config.node.ips.len(), 2);
    assert_eq!(
        config.runtime.image_endpoint.as_deref(),
        Some("unix:///run/images.sock")
    );
    assert!(config.process.log_json);
    assert_eq!(config.process.verbosity, 4);
    assert_eq!(config.pleg.best_mode, PlegMode::Stream);
    assert_eq!(config.pleg.ring_bytes, 4096);
    assert_eq!(config.sync.max_starts, 2);
    assert_eq!(config.gc.max_dead, Some(0));
    assert_eq!(config.process.lock_file, Some("/run/lock".into()));
    assert!(
        warnings.contains(
            &"imageServiceEndpoint (--image-service-endpoint): using a bare path as an endpoint is deprecated, use unix:///run/images.sock"
                .to_owned()
        ),
        "{warnings:?}"
    );
}

#[test]
fn a_file_in_json_is_read_too() {
    let files = Files::new(&[(
        "kubelet.json",
        r#"{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 7}"#,
    )]);
    assert_eq!(
        files
            .config(&["--config={dir}/kubelet.json"])
            .0
            .node
            .max_pods,
        7
    );
}

#[test]
fn unknown_and_double_fields_and_further_documents_are_warned_about() {
    let files = Files::new(&[(
        "kubelet.yaml",
        "{head}maxPods: 1\nmaxPods: 7\nmaxPodz: 3\nlogging: {colour: red}\n---\n{head}",
    )]);
    let (config, warnings) = files.config(&["--config={dir}/kubelet.yaml"]);
    assert_eq!(config.node.max_pods, 7);
    for expected in [
        "using lenient decoding as strict decoding failed",
        "it holds 2 documents: only the first is read",
        "unknown field \"maxPodz\" is passed over",
        "unknown field \"logging.colour\" is passed over",
    ] {
        assert!(
            warnings.iter().any(|line| line.contains(expected)),
            "{expected}: {warnings:?}"
        );
    }
}

#[test]
fn what_kubeadm_writes_is_refused_only_for_what_needs_the_api_server() {
    let files = Files::new(&[(
        "kubelet.yaml",
        "{head}\
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ''
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: 0}}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
",
    )]);
    let (config, _) = files.config(&["--config={dir}/kubelet.yaml"]);
    assert_eq!(config.sync.period.as_secs(), 60);
    assert_eq!(
        files.mistakes(&[
            "--config={dir}/kubelet.yaml",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap.conf",
        ]),
        [
            "invalid configuration: --bootstrap-kubeconfig: talking to the API server is not built yet; leave it unset (set by --bootstrap-kubeconfig)",
            "invalid configuration: --kubeconfig: talking to the API server is not built yet; leave it unset (set by --kubeconfig)",
        ]
    );
}

// === Mistakes ===

#[rstest]
#[case(&["--foo"], "failed to parse kubelet flag: unknown flag: --foo")]
#[case(
    &["--pod-infra-container-image=pause"],
    "failed to parse kubelet flag: unknown flag: --pod-infra-container-image"
)]
#[case(&["start"], "unknown command start")]
#[case(
    &["--version=v1.0"],
    "failed to parse kubelet flag: invalid argument \"v1.0\" for \"--version\" flag: expected true, false or raw"
)]
#[case(
    &["--eviction-hard=memory.available<1Gi"],
    "invalid configuration: evictionHard (--eviction-hard): eviction is not built yet; leave it unset (set by --eviction-hard)"
)]
#[case(
    &["--cpu-manager-policy=static"],
    "invalid configuration: cpuManagerPolicy (--cpu-manager-policy): the CPU manager is not built yet; leave it unset, or at \"none\" (set by --cpu-manager-policy)"
)]
#[case(
    &["--node-labels=a=b"],
    "invalid configuration: --node-labels: talking to the API server is not built yet; leave it unset (set by --node-labels)"
)]
#[case(
    &["--register-with-taints=a=b:NoSchedule"],
    "invalid configuration: registerWithTaints (--register-with-taints): talking to the API server is not built yet; leave it unset (set by --register-with-taints)"
)]
#[case(
    &["--port=1"],
    "invalid configuration: port (--port): the authenticated API is not built yet; leave it unset, or at 10250 (set by --port)"
)]
#[case(
    &["--runonce"],
    "invalid configuration: runOnce (--runonce) true, Runonce mode has been deprecated and should not be set (set by --runonce)"
)]
#[case(
    &["--max-pods=-1"],
    "invalid configuration: maxPods (--max-pods) -1 must not be a negative number (set by --max-pods)"
)]
#[case(
    &["--healthz-port=70000"],
    "invalid configuration: healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive (set by --healthz-port)"
)]
#[case(
    &["--read-only-port=-1"],
    "invalid configuration: readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive (set by --read-only-port)"
)]
#[case(
    &["--cpu-cfs-quota-period=2s"],
    "invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, inclusive (set by --cpu-cfs-quota-period)"
)]
#[case(
    &["--oom-score-adj=2000"],
    "invalid configuration: oomScoreAdj (--oom-score-adj) 2000 must be between -1000 and 1000, inclusive (set by --oom-score-adj)"
)]
#[case(
    &["--sync-frequency=0s"],
    "invalid configuration: syncFrequency (--sync-frequency) 0s must be greater than 0 (set by --sync-frequency)"
)]
#[case(
    &["--container-runtime-endpoint="],
    "invalid configuration: containerRuntimeEndpoint (--container-runtime-endpoint) was not specified or empty: expected unix:///path/to/runtime.sock (set by --container-runtime-endpoint)"
)]
#[case(
    &["--container-runtime-endpoint=tcp://127.0.0.1:1"],
    "invalid configuration: containerRuntimeEndpoint (--container-runtime-endpoint) \"tcp://127.0.0.1:1\" must be a unix socket: expected unix:///path/to/runtime.sock (set by --container-runtime-endpoint)"
)]
#[case(
    &["--cgroup-driver=systemd"],
    "invalid configuration: cgroupDriver (--cgroup-driver) \"systemd\": the systemd driver is not built yet; set cgroupfs, in the runtime too (set by --cgroup-driver)"
)]
#[case(
    &["--enforce-node-allocatable=pods,pods"],
    "invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) has \"pods\" twice (set by --enforce-node-allocatable)"
)]
#[case(
    &["--enforce-node-allocatable=pods,none"],
    "invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when \"none\" is specified (set by --enforce-node-allocatable)"
)]
#[case(
    &["--enforce-node-allocatable=kube-reserved"],
    "invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) \"kube-reserved\": enforcing reservations on cgroups is not built yet (set by --enforce-node-allocatable)"
)]
#[case(
    &["--cgroups-per-qos=false"],
    "invalid configuration: cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in enforceNodeAllocatable (--enforce-node-allocatable) (set by --cgroups-per-qos)"
)]
#[case(
    &["--system-reserved=cpu=lots"],
    "invalid configuration: systemReserved (--system-reserved) cpu: \"lots\" is not a quantity: expected a number with an optional suffix, like 100m, 64Mi or 1.5 (set by --system-reserved)"
)]
#[case(
    &["--kube-reserved=memory=-1Gi"],
    "invalid configuration: kubeReserved (--kube-reserved) memory=-1Gi must not be negative (set by --kube-reserved)"
)]
#[case(
    &["--kube-reserved=gpu=1"],
    "invalid configuration: kubeReserved (--kube-reserved) has \"gpu\": expected cpu, memory, pid or ephemeral-storage (set by --kube-reserved)"
)]
#[case(
    &["--container-log-max-files=1"],
    "invalid configuration: containerLogMaxFiles (--container-log-max-files) 1 must be greater than 1 (set by --container-log-max-files)"
)]
#[case(
    &["--cluster-dns=dns.local"],
    "invalid configuration: clusterDNS (--cluster-dns) has \"dns.local\": expected IP addresses (set by --cluster-dns)"
)]
#[case(
    &["--node-ip=10.0.0.1,10.0.0.2"],
    "invalid configuration: --node-ip \"10.0.0.1,10.0.0.2\" must be one address, or one of each family (set by --node-ip)"
)]
#[case(
    &["--hostname-override= "],
    "the name of the node is empty: set --hostname-override or the host name"
)]
#[case(
    &["--root-dir=var"],
    "invalid configuration: --root-dir \"var\" must be an absolute path (set by --root-dir)"
)]
#[case(
    &["--root-dir=/var/../lib"],
    "invalid configuration: --root-dir \"/var/../lib\" must be normalized (set by --root-dir)"
)]
#[case(
    &["--manifest-url=ftp://x"],
    "invalid configuration: staticPodURL (--manifest-url) \"ftp://x\" must start with http:// or https:// (set by --manifest-url)"
)]
#[case(
    &["--logging-format=xml"],
    "invalid configuration: logging.format (--logging-format) \"xml\" must be text or json (set by --logging-format)"
)]
#[case(
    &["--pleg-mode=magic"],
    "invalid configuration: --pleg-mode \"magic\" must be one of kernel, stream or listing (set by --pleg-mode)"
)]
#[case(
    &["--kernel-ring-bytes=100"],
    "invalid configuration: --kernel-ring-bytes 100 must be a power of two of at least a page (4096) and at most 1 GiB (set by --kernel-ring-bytes)"
)]
#[case(
    &["--max-container-starts=0"],
    "invalid configuration: --max-container-starts 0 must be between 1 and 1000, inclusive (set by --max-container-starts)"
)]
#[case(
    &["--feature-gates=NoSuch=true"],
    "unrecognized feature gate: NoSuch (set by --feature-gates)"
)]
#[case(
    &["--hairpin-mode=left"],
    "invalid configuration: hairpinMode (--hairpin-mode) \"left\" must be promiscuous-bridge, hairpin-veth or none (set by --hairpin-mode)"
)]
#[case(
    &["--exit-on-lock-contention"],
    "invalid configuration: --exit-on-lock-contention: leaving when the lock is contended is not built yet; leave it unset (set by --exit-on-lock-contention)"
)]
fn a_bad_command_line_gives_one_clear_line(#[case] args: &[&str], #[case] line: &str) {
    assert_eq!(mistakes(args), [line]);
}

#[rstest]
#[case("", "{file}: the kubelet config file was empty")]
#[case(
    "maxPods: 1",
    "{file}: apiVersion is missing: expected kubelet.config.k8s.io/v1beta1"
)]
#[case(
    "apiVersion: v1\nkind: KubeletConfiguration",
    "{file}: apiVersion: expected kubelet.config.k8s.io/v1beta1, found \"v1\""
)]
#[case(
    "- a",
    "{file}: expected a map with apiVersion: kubelet.config.k8s.io/v1beta1 and kind: KubeletConfiguration"
)]
#[case(
    "{head}maxPods: ten",
    "{file}: maxPods (--max-pods): expected a whole number, found \"ten\""
)]
#[case(
    "{head}maxPods: 1.5",
    "{file}: maxPods (--max-pods): expected a whole number, found 1.5"
)]
#[case(
    "{head}maxPods: 3000000000",
    "{file}: maxPods (--max-pods): expected a whole number of 32 bits, found 3000000000"
)]
#[case(
    "{head}failSwapOn: maybe",
    "{file}: failSwapOn (--fail-swap-on): expected true or false, found \"maybe\""
)]
#[case(
    "{head}syncFrequency: 20",
    "{file}: syncFrequency (--sync-frequency): expected a duration like \"1m30s\", found 20"
)]
#[case(
    "{head}syncFrequency: 1 minute",
    "{file}: syncFrequency (--sync-frequency): expected a duration like 20s, 1m30s or 300ms, found \"1 minute\""
)]
#[case(
    "{head}clusterDNS: 10.0.0.1",
    "{file}: clusterDNS (--cluster-dns): expected a list of strings, found \"10.0.0.1\""
)]
#[case(
    "{head}clusterDNS: [1]",
    "{file}: clusterDNS (--cluster-dns): entry 0: expected a string, found 1"
)]
#[case(
    "{head}systemReserved: {cpu: 1}",
    "{file}: systemReserved (--system-reserved): key \"cpu\": expected a string, found 1"
)]
#[case(
    "{head}featureGates: {NodeSwap: 'on'}",
    "{file}: featureGates (--feature-gates): key \"NodeSwap\": expected true or false, found \"on\""
)]
#[case(
    "{head}healthzBindAddress: localhost",
    "{file}: healthzBindAddress (--healthz-bind-address): expected an IP address like 127.0.0.1 or ::, found \"localhost\""
)]
#[case(
    "{head}logging: loud",
    "{file}: logging: expected a map, found \"loud\""
)]
#[case(
    "{head}containerRuntimeEndpoint: [a]",
    "{file}: containerRuntimeEndpoint (--container-runtime-endpoint): expected a string, found a list"
)]
#[case(
    "{head}evictionHard: {memory.available: 1Gi}",
    "invalid configuration: evictionHard (--eviction-hard): eviction is not built yet; leave it unset (set in {file})"
)]
#[case(
    "{head}shutdownGracePeriod: 10s",
    "invalid configuration: shutdownGracePeriod: graceful node shutdown is not built yet; leave it unset (set in {file})"
)]
#[case(
    "{head}reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]",
    "invalid configuration: reservedMemory (--reserved-memory): the memory manager is not built yet; leave it unset (set in {file})"
)]
#[case(
    "{head}memorySwap: {swapBehavior: LimitedSwap}",
    "invalid configuration: memorySwap.swapBehavior: swap for pods is not built yet; leave it unset (set in {file})"
)]
#[case(
    "{head}tracing: {endpoint: 'localhost:4317'}",
    "invalid configuration: tracing.endpoint: tracing is not built yet; leave it unset (set in {file})"
)]
#[case(
    "{head}crashLoopBackOff: {maxContainerRestartPeriod: 10m}",
    "invalid configuration: crashLoopBackOff.maxContainerRestartPeriod (got: 10m0s) must be set between 1s and 300s (set in {file})"
)]
#[case(
    "{head}serializeImagePulls: true\nmaxParallelImagePulls: 3",
    "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls (--serialize-image-pulls) is set to false (set in {file})"
)]
#[case(
    "{head}maxParallelImagePulls: 0",
    "invalid configuration: maxParallelImagePulls 0 must be a positive number (set in {file})"
)]
#[case(
    "{head}containerLogMonitorInterval: 1s",
    "invalid configuration: containerLogMonitorInterval 1s must be a duration of at least 3s (set in {file})"
)]
#[case(
    "{head}containerLogMaxSize: big",
    "invalid configuration: containerLogMaxSize (--container-log-max-size) \"big\" is not a quantity: expected a number with an optional suffix, like 100m, 64Mi or 1.5 (set in {file})"
)]
#[case(
    "{head}featureGates: {NodeSwap: false}",
    "cannot set feature gate NodeSwap to false, feature is locked to true (set in {file})"
)]
#[case(
    "{head}podLogsDir: /var/log/p\u{f6}ds",
    "invalid configuration: podLogsDir \"/var/log/p\u{f6}ds\" must contain ASCII characters only (set in {file})"
)]
fn a_bad_file_gives_one_clear_line(#[case] text: &str, #[case] line: &str) {
    let files = Files::new(&[("kubelet.yaml", text)]);
    let line = files.fill(&line.replace("{file}", "{dir}/kubelet.yaml"));
    let found = files.mistakes(&["--config={dir}/kubelet.yaml"]);
    assert_eq!(found.first(), Some(&line));
    assert!(found.len() == 1 || line.contains("missing") || line.contains("apiVersion:"));
}

#[test]
fn a_file_that_is_no_yaml_is_told_in_one_line_with_the_place() {
    let files = Files::new(&[("kubelet.yaml", "{head}maxPods: [1\n")]);
    let found = files.mistakes(&["--config={dir}/kubelet.yaml"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("kubelet.yaml: expected YAML or JSON: "),
        "{found:?}"
    );
    assert!(found[0].contains("line "), "{found:?}");
    assert!(!found[0].contains('\n'));
}

#[test]
fn files_that_are_no_files_are_told_and_never_wait() {
    let files = Files::new(&[("d/a.yaml", "x")]);
    let folder = files.path();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a FIFO");
    std::os::unix::fs::symlink("/proc/self/mem", folder.join("mem")).expect("a link");
    std::os::unix::fs::symlink("loop", folder.join("loop")).expect("a link");
    fs::write(folder.join("large"), vec![b'#'; (1 << 20) + 1]).expect("a file");
    fs::write(folder.join("latin1"), b"a: \xe9").expect("a file");
    for (name, expected) in [
        (
            "fifo",
            "expected a configuration file, this is no regular file",
        ),
        ("d", "expected a configuration file, this is a folder"),
        (
            "missing",
            "cannot open the configuration file: No such file",
        ),
        (
            "loop",
            "cannot open the configuration file: Too many levels",
        ),
        ("mem", "cannot read the configuration file: "),
        ("large", "the configuration file is larger than 1 MiB"),
        ("latin1", "the configuration file is not UTF-8"),
    ] {
        let found = files.mistakes(&[&format!("--config={{dir}}/{name}")]);
        let line = format!("{}/{name}: {expected}", folder.display());
        assert!(found.len() == 1 && found[0].starts_with(&line), "{found:?}");
    }
}

#[test]
fn a_bad_folder_of_drop_ins_is_told() {
    let files = Files::new(&[
        ("d/10.conf", "maxPods: 1\n"),
        ("d/20.conf", ""),
        ("d/30.conf", "{head}maxPods: x\n"),
    ]);
    assert_eq!(
        files.mistakes(&["--config-dir={dir}/d"]),
        [
            "{dir}/d/10.conf: apiVersion is missing: expected kubelet.config.k8s.io/v1beta1",
            "{dir}/d/10.conf: kind is missing: expected KubeletConfiguration",
            "{dir}/d/20.conf: the kubelet config file was empty",
            "{dir}/d/30.conf: maxPods (--max-pods): expected a whole number, found \"x\"",
        ]
        .map(|line| files.fill(line))
    );
    let found = files.mistakes(&["--config-dir={dir}/none"]);
    assert!(
        found[0].contains("none: cannot read the folder of --config-dir: No such file"),
        "{found:?}"
    );
}

#[test]
fn all_mistakes_are_told_at_once_each_on_its_line() {
    let files = Files::new(&[("kubelet.yaml", "{head}maxPods: -1\nregistryBurst: -2\n")]);
    let error = parse(&[
        &files.fill("--config={dir}/kubelet.yaml"),
        "--healthz-port=99999",
        "--eviction-soft=memory.available<1Gi",
    ])
    .expect_err("four mistakes");
    assert_eq!(error.lines().len(), 4, "{error}");
    assert_eq!(error.to_string().lines().count(), 4);
}

#[test]
fn a_machine_that_does_not_fit_is_refused() {
    use super::super::validate::{Machine, refuse_machine};
    let machine = Machine {
        is_cgroup_v1: true,
        is_swap_on: true,
    };
    let (defaults, _) = config(&[]);
    let error = refuse_machine(&defaults, machine).expect_err("v1 and swap");
    assert_eq!(error.lines().len(), 2);
    assert!(error.lines()[0].starts_with(
        "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
         unsupported and will be removed in a future release"
    ));
    let (accepting, _) = config(&["--fail-cgroupv1=false", "--fail-swap-on=false"]);
    assert_eq!(refuse_machine(&accepting, machine), Ok(()));
}

#[test]
fn settings_without_effect_are_warned_about() {
    let (_, warnings) = config(&["--streaming-connection-idle-timeout=1h"]);
    assert!(
        warnings.contains(
            &"streamingConnectionIdleTimeout (--streaming-connection-idle-timeout) has no effect: no kubelet reads it any more"
                .to_owned()
        ),
        "{warnings:?}"
    );
}

proptest::proptest! {
    #[test]
    fn no_command_line_makes_the_reader_panic(
        args in proptest::collection::vec("(--?)?[-a-z_=,:<>0-9.]{0,24}", 0..6)
    ) {
        // Files are read elsewhere; here they would be those of this machine.
        if !args.iter().any(|arg: &String| arg.contains("config")) {
            let _ = parse(&args.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_file_makes_the_reader_panic_and_each_mistake_is_one_line(
        text in "([a-zA-Z]{1,12}: ?[-a-z0-9\"'{}\\[\\],:&*!|>~]{0,12}\n){0,6}"
    ) {
        let files = Files::new(&[("kubelet.yaml", &format!("{HEAD}{text}"))]);
        if let Err(mistakes) = parse(&[&files.fill("--config={dir}/kubelet.yaml")]) {
            for line in mistakes.lines() {
                proptest::prop_assert!(!line.contains('\n'), "{line}");
            }
        }
    }
}
