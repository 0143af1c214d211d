//! The fields of `KubeletConfiguration` v1beta1, in its own order, and the flags that set them.

use super::{Kind, Row};

// One setting reads as one entry of a table: name and defaults, what is done with it, what it is.
#[rustfmt::skip]
pub(super) static FIELDS: &[Row] = &[
    Row::field("enableServer", Kind::Bool).flag("enable-server").default("true").pointer()
        .not_built("the authenticated API").off("false").wanted()
        .about("serve the authenticated HTTPS API on port"),
    Row::field("staticPodPath", Kind::Path).flag("pod-manifest-path").default("")
        .built("sources.file")
        .about("directory or single file with static pod manifests"),
    Row::field("podLogsDir", Kind::Path).default("/var/log/pods")
        .built("dirs.pod_logs")
        .about("root of the pod log directories (absolute path, ASCII)"),
    Row::field("syncFrequency", Kind::Duration).flag("sync-frequency").default("1m0s")
        .built("sync.period")
        .about("longest time between two syncs of a pod; also TTL/resync base of secret/configmap managers"),
    Row::field("fileCheckFrequency", Kind::Duration).flag("file-check-frequency").default("20s")
        .built("sources.file")
        .about("re-read period of staticPodPath"),
    Row::field("httpCheckFrequency", Kind::Duration).flag("http-check-frequency").default("20s")
        .built("sources.http")
        .about("poll period of staticPodURL"),
    Row::field("staticPodURL", Kind::Text).flag("manifest-url").default("")
        .built("sources.http")
        .about("URL that delivers static pods"),
    Row::field("staticPodURLHeader", Kind::Headers).flag("manifest-url-header")
        .built("sources.http")
        .about("HTTP headers sent to staticPodURL"),
    Row::field("address", Kind::Ip).flag("address").default("0.0.0.0")
        .built("servers.read_only")
        .about("listen address of the HTTPS and read-only servers"),
    Row::field("port", Kind::Int32).flag("port").default("10250")
        .not_built("the authenticated API")
        .about("HTTPS port, published in node.status.daemonEndpoints"),
    Row::field("readOnlyPort", Kind::Int32).flag("read-only-port").default("0").bare("10255")
        .built("servers.read_only")
        .about("unauthenticated HTTP port"),
    Row::field("tlsCertFile", Kind::Path).flag("tls-cert-file").default("")
        .not_built("the authenticated API")
        .about("serving certificate chain"),
    Row::field("tlsPrivateKeyFile", Kind::Path).flag("tls-private-key-file").default("")
        .not_built("the authenticated API")
        .about("key of the serving certificate"),
    Row::field("tlsCipherSuites", Kind::List).flag("tls-cipher-suites")
        .not_built("the authenticated API")
        .about("allowed TLS ≤1.2 cipher suite names"),
    Row::field("tlsCurvePreferences", Kind::Raw)
        .not_built("the authenticated API")
        .about("allowed key exchange groups"),
    Row::field("tlsMinVersion", Kind::Text).flag("tls-min-version").default("")
        .not_built("the authenticated API")
        .about("lowest TLS version"),
    Row::field("rotateCertificates", Kind::Bool).flag("rotate-certificates").default("false")
        .not_built("talking to the API server")
        .about("rotate the client certificate through CSRs"),
    Row::field("serverTLSBootstrap", Kind::Bool).flag("rotate-server-certificates").default("false")
        .not_built("the authenticated API")
        .about("get the serving certificate through CSRs (gate RotateKubeletServerCertificate)"),
    Row::field("authentication.x509.clientCAFile", Kind::Path).flag("client-ca-file").default("")
        .not_built("the authenticated API")
        .about("CA bundle for client certificates"),
    Row::field("authentication.webhook.enabled", Kind::Bool).flag("authentication-token-webhook").default("true").bare("false").pointer()
        .not_built("the authenticated API")
        .about("bearer tokens by TokenReview"),
    Row::field("authentication.webhook.cacheTTL", Kind::Duration).flag("authentication-token-webhook-cache-ttl").default("2m0s")
        .not_built("the authenticated API")
        .about("cache time of TokenReview answers"),
    Row::field("authentication.anonymous.enabled", Kind::Bool).flag("anonymous-auth").default("false").bare("true").pointer()
        .not_built("the authenticated API")
        .about("anonymous callers"),
    Row::field("authorization.mode", Kind::Text).flag("authorization-mode").default("Webhook").bare("AlwaysAllow")
        .not_built("the authenticated API")
        .about("AlwaysAllow or Webhook"),
    Row::field("authorization.webhook.cacheAuthorizedTTL", Kind::Duration).flag("authorization-webhook-cache-authorized-ttl").default("5m0s")
        .not_built("the authenticated API")
        .about("cache time of allow answers"),
    Row::field("authorization.webhook.cacheUnauthorizedTTL", Kind::Duration).flag("authorization-webhook-cache-unauthorized-ttl").default("30s")
        .not_built("the authenticated API")
        .about("cache time of deny answers"),
    Row::field("registryPullQPS", Kind::Int32).flag("registry-qps").default("5").pointer()
        .built("images.pull_qps")
        .about("image pulls per second, 0 = no limit"),
    Row::field("registryBurst", Kind::Int32).flag("registry-burst").default("10")
        .built("images.pull_burst")
        .about("burst for registryPullQPS"),
    Row::field("imagePullCredentialsVerificationPolicy", Kind::Text).default("NeverVerifyPreloadedImages")
        .not_built("checking pull credentials").off("NeverVerify")
        .about("NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify: when pull credentials are checked for an image already on the node"),
    Row::field("preloadedImagesVerificationAllowlist", Kind::List)
        .not_built("checking pull credentials")
        .about("image names without tag/digest, suffix /* allowed; only with policy NeverVerifyAllowlistedImages"),
    Row::field("eventRecordQPS", Kind::Int32).flag("event-qps").default("50").pointer()
        .not_built("talking to the API server")
        .about("event writes per second, 0 = no limit"),
    Row::field("eventBurst", Kind::Int32).flag("event-burst").default("100")
        .not_built("talking to the API server")
        .about("burst for eventRecordQPS"),
    Row::field("enableDebuggingHandlers", Kind::Bool).flag("enable-debugging-handlers").default("true").pointer()
        .not_built("the authenticated API").off("false")
        .about("exec, attach, run, portForward, logs, configz, pprof … endpoints"),
    Row::field("enableContentionProfiling", Kind::Bool).flag("contention-profiling").default("false")
        .not_built("the authenticated API")
        .about("block profile rate 1 for pprof"),
    Row::field("healthzPort", Kind::Int32).flag("healthz-port").default("10248").pointer()
        .built("servers.healthz")
        .about("port of the plain healthz server, 0 = off"),
    Row::field("healthzBindAddress", Kind::Ip).flag("healthz-bind-address").default("127.0.0.1")
        .built("servers.healthz")
        .about("address of the healthz server"),
    Row::field("oomScoreAdj", Kind::Int32).flag("oom-score-adj").default("-999").pointer()
        .built("process.oom_score_adj")
        .about("oom_score_adj of the kubelet, −1000…1000"),
    Row::field("clusterDomain", Kind::Text).flag("cluster-domain").default("")
        .built("dns.cluster_domain")
        .about("cluster DNS domain for pod search lists"),
    Row::field("clusterDNS", Kind::List).flag("cluster-dns")
        .built("dns.cluster_dns")
        .about("cluster DNS server addresses"),
    Row::field("streamingConnectionIdleTimeout", Kind::Duration).flag("streaming-connection-idle-timeout").default("4h0m0s")
        .no_effect("no kubelet reads it any more")
        .about("accepted, no effect"),
    Row::field("nodeStatusUpdateFrequency", Kind::Duration).flag("node-status-update-frequency").default("10s")
        .not_built("talking to the API server")
        .about("period of node status computation; also heartbeat client time-out"),
    Row::field("nodeStatusReportFrequency", Kind::Duration).default("5m0s")
        .not_built("talking to the API server")
        .about("longest time between two unchanged status reports"),
    Row::field("nodeLeaseDurationSeconds", Kind::Int32).default("40")
        .not_built("talking to the API server")
        .about("duration written to the node Lease; renewed at a quarter of it; > 0"),
    Row::field("imageMinimumGCAge", Kind::Duration).flag("minimum-image-ttl-duration").default("2m0s")
        .not_built("image garbage collection")
        .about("unused images younger than this are not collected"),
    Row::field("imageMaximumGCAge", Kind::Duration).default("0s")
        .not_built("image garbage collection")
        .about("unused images older than this are always collected; must be > imageMinimumGCAge"),
    Row::field("imageGCHighThresholdPercent", Kind::Int32).flag("image-gc-high-threshold").default("85").pointer()
        .not_built("image garbage collection").off("100").wanted()
        .about("image fs usage that starts image GC; 100 = off"),
    Row::field("imageGCLowThresholdPercent", Kind::Int32).flag("image-gc-low-threshold").default("80").pointer()
        .not_built("image garbage collection")
        .about("image GC target; < high"),
    Row::field("volumeStatsAggPeriod", Kind::Duration).flag("volume-stats-agg-period").default("1m0s")
        .not_built("collecting volume statistics")
        .about("period of volume usage calculation; negative = off"),
    Row::field("kubeletCgroups", Kind::Text).flag("kubelet-cgroups").default("")
        .not_built("moving processes into cgroups")
        .about("absolute cgroup for the kubelet process"),
    Row::field("systemCgroups", Kind::Text).flag("system-cgroups").default("")
        .not_built("moving processes into cgroups")
        .about("absolute cgroup for remaining non-kernel processes; needs cgroupRoot"),
    Row::field("cgroupRoot", Kind::Text).flag("cgroup-root").default("")
        .built("cgroups.root")
        .about("root cgroup of pods"),
    Row::field("cgroupsPerQOS", Kind::Bool).flag("cgroups-per-qos").default("true").pointer()
        .built("cgroups.per_qos")
        .about("QoS and pod cgroup hierarchy"),
    Row::field("cgroupDriver", Kind::Text).flag("cgroup-driver").default("cgroupfs")
        .built("cgroups.driver")
        .about("who manages cgroups: cgroupfs or systemd"),
    Row::field("cpuManagerPolicy", Kind::Text).flag("cpu-manager-policy").default("none")
        .not_built("the CPU manager")
        .about("none or static"),
    Row::field("singleProcessOOMKill", Kind::Bool).pointer()
        .built("cgroups.single_process_oom_kill")
        .about("a memory kill takes the one process only, not its whole container; on v1 it is always so"),
    Row::field("cpuManagerPolicyOptions", Kind::Pair).flag("cpu-manager-policy-options")
        .not_built("the CPU manager")
        .about("options of the CPU manager policy"),
    Row::field("cpuManagerReconcilePeriod", Kind::Duration).flag("cpu-manager-reconcile-period").default("10s")
        .not_built("the CPU manager")
        .about("cpuset reconcile period"),
    Row::field("memoryManagerPolicy", Kind::Text).flag("memory-manager-policy").default("None")
        .not_built("the memory manager")
        .about("None or Static (BestEffort on Windows)"),
    Row::field("topologyManagerPolicy", Kind::Text).flag("topology-manager-policy").default("none")
        .not_built("the topology manager")
        .about("none, best-effort, restricted, single-numa-node"),
    Row::field("topologyManagerScope", Kind::Text).flag("topology-manager-scope").default("container")
        .not_built("the topology manager")
        .about("container or pod"),
    Row::field("topologyManagerPolicyOptions", Kind::Pairs).flag("topology-manager-policy-options")
        .not_built("the topology manager")
        .about("options of the topology manager"),
    Row::field("qosReserved", Kind::Pairs).flag("qos-reserved")
        .not_built("reserving memory by QoS class")
        .about("percent of memory kept for Guaranteed (gate QOSReserved)"),
    Row::field("runtimeRequestTimeout", Kind::Duration).flag("runtime-request-timeout").default("2m0s")
        .built("runtime.request_timeout")
        .about("time-out of CRI calls except pull, logs, exec, attach"),
    Row::field("hairpinMode", Kind::Text).flag("hairpin-mode").default("promiscuous-bridge")
        .no_effect("it is checked only: the network plugin decides")
        .about("promiscuous-bridge, hairpin-veth or none; validated only"),
    Row::field("maxPods", Kind::Int32).flag("max-pods").default("110")
        .built("node.max_pods")
        .about("pod capacity"),
    Row::field("podCIDR", Kind::Text).flag("pod-cidr").default("")
        .not_built("handing a pod CIDR to the runtime")
        .about("pod CIDR sent to the runtime at start"),
    Row::field("podPidsLimit", Kind::Int64).flag("pod-max-pids").default("-1").pointer()
        .built("cgroups.pids_limit")
        .about("pids per pod; −1 = node allocatable pids"),
    Row::field("resolvConf", Kind::Path).flag("resolv-conf").default("/etc/resolv.conf").pointer()
        .built("dns.resolv_conf")
        .about("the node's resolver file that pods' ones start from; empty: none"),
    Row::field("runOnce", Kind::Bool).flag("runonce").default("false")
        .no_effect("the mode was removed upstream: only false is accepted")
        .about("run-once mode, which does not exist any more"),
    Row::field("cpuCFSQuota", Kind::Bool).flag("cpu-cfs-quota").default("true").pointer()
        .built("cgroups.cpu_cfs_quota")
        .about("enforce CPU limits by CFS quota"),
    Row::field("cpuCFSQuotaPeriod", Kind::Duration).flag("cpu-cfs-quota-period").default("100ms").pointer()
        .built("cgroups.cpu_cfs_quota_period")
        .about("CFS period, 1 ms–1 s (gate CustomCPUCFSQuotaPeriod)"),
    Row::field("nodeStatusMaxImages", Kind::Int32).flag("node-status-max-images").default("50").pointer()
        .not_built("talking to the API server")
        .about("images listed in node.status; −1 = all, ≥ −1"),
    Row::field("maxOpenFiles", Kind::Int64).flag("max-open-files").default("1000000")
        .built("process.max_open_files")
        .about("RLIMIT_NOFILE of the kubelet"),
    Row::field("contentType", Kind::Text).flag("kube-api-content-type").default("application/vnd.kubernetes.protobuf")
        .not_built("talking to the API server")
        .about("content type towards the API server"),
    Row::field("kubeAPIQPS", Kind::Int32).flag("kube-api-qps").default("50").pointer()
        .not_built("talking to the API server")
        .about("API client rate (not events, not heartbeats)"),
    Row::field("kubeAPIBurst", Kind::Int32).flag("kube-api-burst").default("100")
        .not_built("talking to the API server")
        .about("burst for kubeAPIQPS"),
    Row::field("serializeImagePulls", Kind::Bool).flag("serialize-image-pulls").default("true").pointer()
        .built("images.max_parallel_pulls")
        .about("one image pull at a time; false by itself where maxParallelImagePulls is 2 or more"),
    Row::field("maxParallelImagePulls", Kind::Int32).pointer()
        .built("images.max_parallel_pulls")
        .about("parallel pulls; only with serializeImagePulls=false"),
    Row::field("evictionHard", Kind::Thresholds).flag("eviction-hard").default("memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%").unset_when_bare()
        .not_built("eviction").off("").wanted()
        .about("hard eviction thresholds"),
    Row::field("evictionSoft", Kind::Thresholds).flag("eviction-soft")
        .not_built("eviction")
        .about("soft eviction thresholds"),
    Row::field("evictionSoftGracePeriod", Kind::Pairs).flag("eviction-soft-grace-period")
        .not_built("eviction")
        .about("grace period per soft signal (required)"),
    Row::field("evictionPressureTransitionPeriod", Kind::Duration).flag("eviction-pressure-transition-period").default("5m0s")
        .not_built("eviction")
        .about("how long a pressure condition stays after the last observation"),
    Row::field("evictionMaxPodGracePeriod", Kind::Int32).flag("eviction-max-pod-grace-period").default("0")
        .not_built("eviction")
        .about("longest grace period in seconds of a soft eviction"),
    Row::field("evictionMinimumReclaim", Kind::Pairs).flag("eviction-minimum-reclaim")
        .not_built("eviction")
        .about("extra amount to free per signal"),
    Row::field("mergeDefaultEvictionSettings", Kind::Bool).default("false").pointer()
        .not_built("eviction")
        .about("true in --config: default hard signals missing from evictionHard are added (only evictionHard is affected)"),
    Row::field("podsPerCore", Kind::Int32).flag("pods-per-core").default("0")
        .built("node.max_pods")
        .about("pods per CPU core, capped by maxPods"),
    Row::field("enableControllerAttachDetach", Kind::Bool).flag("enable-controller-attach-detach").default("true").pointer()
        .not_built("talking to the API server").off("false")
        .about("volumes are attached by the controller; sets the node annotation"),
    Row::field("protectKernelDefaults", Kind::Bool).flag("protect-kernel-defaults").default("false")
        .not_built("setting kernel tunables")
        .about("error instead of changing kernel tunables"),
    Row::field("makeIPTablesUtilChains", Kind::Bool).flag("make-iptables-util-chains").default("true").pointer()
        .not_built("keeping the iptables hint chains").off("false").wanted()
        .about("create the KUBE-IPTABLES-HINT (and canary) chains"),
    Row::field("iptablesMasqueradeBit", Kind::Int32).default("14").pointer()
        .no_effect("no kubelet reads it any more")
        .about("accepted, no effect"),
    Row::field("iptablesDropBit", Kind::Int32).default("15").pointer()
        .no_effect("no kubelet reads it any more")
        .about("accepted, no effect"),
    Row::field("featureGates", Kind::Gates).flag("feature-gates")
        .built("gates")
        .about("feature gate overrides"),
    Row::field("failSwapOn", Kind::Bool).flag("fail-swap-on").default("true").pointer()
        .built("process.fail_swap_on")
        .about("refuse to start with active swap"),
    Row::field("memorySwap.swapBehavior", Kind::Text).default("")
        .not_built("swap for pods").off("NoSwap")
        .about("swap for workloads: empty, NoSwap or LimitedSwap"),
    Row::field("containerLogMaxSize", Kind::Text).flag("container-log-max-size").default("10Mi")
        .built("logs.max_size")
        .about("size that triggers log rotation"),
    Row::field("containerLogMaxFiles", Kind::Int32).flag("container-log-max-files").default("5").pointer()
        .built("logs.max_files")
        .about("log files kept per container, ≥ 2"),
    Row::field("containerLogMaxWorkers", Kind::Int32).default("1").pointer()
        .built("logs.workers")
        .about("parallel rotation workers"),
    Row::field("containerLogMonitorInterval", Kind::Duration).default("10s").pointer()
        .built("logs.interval")
        .about("log size check period, ≥ 3 s"),
    Row::field("configMapAndSecretChangeDetectionStrategy", Kind::Text).default("Watch")
        .not_built("talking to the API server")
        .about("Watch, Cache or Get"),
    Row::field("systemReserved", Kind::Pairs).flag("system-reserved")
        .built("cgroups.system_reserved")
        .about("cpu, memory, ephemeral-storage, pid reserved for the system"),
    Row::field("kubeReserved", Kind::Pairs).flag("kube-reserved")
        .built("cgroups.kube_reserved")
        .about("cpu, memory, ephemeral-storage, pid reserved for node agents"),
    Row::field("reservedSystemCPUs", Kind::Text).flag("reserved-cpus").default("")
        .not_built("the CPU manager")
        .about("explicit CPU list for the system; replaces the cpu of system/kubeReserved"),
    Row::field("showHiddenMetricsForVersion", Kind::Text).default("")
        .not_built("showing hidden metrics")
        .about("previous minor \"1.x\" whose hidden metrics are shown"),
    Row::field("systemReservedCgroup", Kind::Text).flag("system-reserved-cgroup").default("")
        .not_built("enforcing reservations on cgroups")
        .about("cgroup on which systemReserved is enforced"),
    Row::field("kubeReservedCgroup", Kind::Text).flag("kube-reserved-cgroup").default("")
        .not_built("enforcing reservations on cgroups")
        .about("cgroup on which kubeReserved is enforced"),
    Row::field("enforceNodeAllocatable", Kind::List).flag("enforce-node-allocatable").default("pods")
        .built("cgroups.enforce_pods")
        .about("which limits are put on the pods together: pods, or none"),
    Row::field("allowedUnsafeSysctls", Kind::List).flag("allowed-unsafe-sysctls")
        .not_built("allowing sysctls to pods")
        .about("unsafe sysctls or patterns x.* pods may set"),
    Row::field("defaultPodSysctls", Kind::Pairs)
        .not_built("allowing sysctls to pods")
        .about("sysctls set on every pod unless the pod sets them (gate DefaultPodSysctls, alpha)"),
    Row::field("volumePluginDir", Kind::Path).flag("volume-plugin-dir").default("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
        .not_built("FlexVolume")
        .about("FlexVolume plugin directory"),
    Row::field("providerID", Kind::Text).lasting_flag("provider-id").default("")
        .not_built("talking to the API server")
        .about("spec.providerID at registration"),
    Row::field("kernelMemcgNotification", Kind::Bool).flag("kernel-memcg-notification").default("false")
        .not_built("eviction")
        .about("memcg eventfd notifier (cgroup v1 only)"),
    Row::field("enableSystemLogHandler", Kind::Bool).default("true").pointer()
        .not_built("the authenticated API").off("false")
        .about("serve /logs/"),
    Row::field("enableSystemLogQuery", Kind::Bool).default("false").pointer()
        .not_built("the authenticated API")
        .about("node log query on /logs/ (needs enableSystemLogHandler)"),
    Row::field("shutdownGracePeriod", Kind::Duration).default("0s")
        .not_built("graceful node shutdown")
        .about("total time for graceful node shutdown, 0 or ≥ 1 s"),
    Row::field("shutdownGracePeriodCriticalPods", Kind::Duration).default("0s")
        .not_built("graceful node shutdown")
        .about("part of it for critical pods, ≤ shutdownGracePeriod"),
    Row::field("shutdownGracePeriodByPodPriority", Kind::Raw)
        .not_built("graceful node shutdown")
        .about("shutdown period per priority; excludes the two fields above"),
    Row::field("crashLoopBackOff.maxContainerRestartPeriod", Kind::Duration).default("5m0s").pointer()
        .built("sync.max_restart_backoff")
        .about("longest restart back-off, 1 s–300 s"),
    Row::field("reservedMemory", Kind::Raw).flag("reserved-memory")
        .not_built("the memory manager")
        .about("memory per NUMA node kept back by the memory manager"),
    Row::field("enableProfilingHandler", Kind::Bool).default("true").pointer()
        .not_built("the authenticated API").off("false")
        .about("serve /debug/pprof/"),
    Row::field("enableDebugFlagsHandler", Kind::Bool).default("true").pointer()
        .not_built("the authenticated API").off("false")
        .about("serve /debug/flags/v"),
    Row::field("seccompDefault", Kind::Bool).default("false").pointer()
        .built("node.seccomp_default")
        .about("RuntimeDefault seccomp profile where none is given"),
    Row::field("memoryThrottlingFactor", Kind::Float).pointer()
        .not_built("memory QoS")
        .about("factor for memory.high (gate MemoryQoS, on in 1.37), 0 < x ≤ 1"),
    Row::field("memoryReservationPolicy", Kind::Text).default("None")
        .not_built("memory QoS")
        .about("None or TieredReservation (memory.min for Guaranteed, memory.low for Burstable; gate MemoryQoS)"),
    Row::field("registerWithTaints", Kind::Raw).flag("register-with-taints")
        .not_built("talking to the API server")
        .about("taints of a newly created Node"),
    Row::field("registerNode", Kind::Bool).flag("register-node").default("true").pointer()
        .not_built("talking to the API server").off("false")
        .about("create the Node object"),
    Row::field("tracing.endpoint", Kind::Text).pointer()
        .not_built("tracing")
        .about("OpenTelemetry collector"),
    Row::field("tracing.samplingRatePerMillion", Kind::Int32).pointer()
        .not_built("tracing")
        .about("samples per million spans"),
    Row::field("localStorageCapacityIsolation", Kind::Bool).flag("local-storage-capacity-isolation").default("true").pointer()
        .not_built("limiting local storage").off("false").wanted()
        .about("ephemeral-storage capacity, limits and eviction"),
    Row::field("containerRuntimeEndpoint", Kind::Text).flag("container-runtime-endpoint").default("unix:///run/containerd/containerd.sock")
        .built("runtime.endpoint")
        .about("CRI runtime endpoint"),
    Row::field("imageServiceEndpoint", Kind::Text).flag("image-service-endpoint").default("")
        .built("runtime.image_endpoint")
        .about("CRI image endpoint"),
    Row::field("failCgroupV1", Kind::Bool).lasting_flag("fail-cgroupv1").default("true").pointer()
        .built("cgroups.fail_v1")
        .about("refuse to start on cgroup v1"),
    Row::field("userNamespaces.idsPerPod", Kind::Int64).pointer()
        .not_built("giving pods user namespaces")
        .about("ids per pod, multiple of 65536, < 2^32"),
    Row::field("logging.format", Kind::Text).flag("logging-format").default("text")
        .built("process.log_json")
        .about("log lines as text or json"),
    Row::field("logging.flushFrequency", Kind::DurationOrNanos).lasting_flag("log-flush-frequency").default("5s")
        .no_effect("log lines are not buffered")
        .about("longest time that log lines are held back"),
    Row::field("logging.verbosity", Kind::Int32).lasting_flag("v").default("0")
        .built("process.verbosity")
        .about("how much is logged: 2 and more shows what happened to each container, 4 and more debugging, 6 and more everything"),
    Row::field("logging.vmodule", Kind::Raw).lasting_flag("vmodule")
        .not_built("a log level by file")
        .about("verbosity by source file"),
    Row::field("logging.options.text.splitStream", Kind::Bool).flag("log-text-split-stream").default("false")
        .not_built("splitting and buffering log streams")
        .about("text: errors to stderr, the rest to stdout"),
    Row::field("logging.options.text.infoBufferSize", Kind::Quantity).flag("log-text-info-buffer-size").default("0")
        .not_built("splitting and buffering log streams")
        .about("text: buffer of the split stream"),
    Row::field("logging.options.json.splitStream", Kind::Bool).flag("log-json-split-stream").default("false")
        .not_built("splitting and buffering log streams")
        .about("json: errors to stderr, the rest to stdout"),
    Row::field("logging.options.json.infoBufferSize", Kind::Quantity).flag("log-json-info-buffer-size").default("0")
        .not_built("splitting and buffering log streams")
        .about("json: buffer of the split stream"),
];
