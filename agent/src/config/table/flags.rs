//! The flags that no field stands behind: the kubelet's, and Skep's own.

use super::{Kind, Row};

#[rustfmt::skip]
pub(super) static KUBELET: &[Row] = &[
    Row::flag_only("bootstrap-kubeconfig", Kind::Text).default("")
        .not_built("talking to the API server")
        .about("credentials to ask the API server for a certificate with"),
    Row::flag_only("cert-dir", Kind::Text).default("/var/lib/kubelet/pki")
        .not_built("the authenticated API")
        .about("folder of the TLS certificates"),
    Row::flag_only("cloud-provider", Kind::Text).default("")
        .not_built("talking to the API server")
        .about("external, or empty for none"),
    Row::flag_only("config", Kind::Text).default("")
        .about("file with a KubeletConfiguration; flags win over it"),
    Row::flag_only("config-dir", Kind::Text).default("")
        .about("folder of *.conf files that are merged over the file, in the order of their names"),
    Row::flag_only("exit-on-lock-contention", Kind::Bool).default("false")
        .not_built("leaving when the lock is contended")
        .about("leave when another process opens the lock file"),
    Row::flag_only("experimental-allocatable-ignore-eviction", Kind::Bool).deprecated().default("false")
        .not_built("eviction")
        .about("leave eviction thresholds out of what pods may use"),
    Row::flag_only("experimental-mounter-path", Kind::Text).deprecated().default("")
        .not_built("another mount program")
        .about("mount program; empty: the default"),
    Row::flag_only("help", Kind::Bool).default("false")
        .about("print this text and leave"),
    Row::flag_only("hostname-override", Kind::Text).default("")
        .built("node.name")
        .about("name of the node; empty: the host name"),
    Row::flag_only("housekeeping-interval", Kind::Duration).default("10s")
        .no_effect("it belongs to cAdvisor, which is not a part of Skep")
        .about("period of cAdvisor"),
    Row::flag_only("image-credential-provider-bin-dir", Kind::Text).default("")
        .not_built("asking image credential providers")
        .about("folder of the credential provider programs"),
    Row::flag_only("image-credential-provider-config", Kind::Text).default("")
        .not_built("asking image credential providers")
        .about("configuration of the credential providers"),
    Row::flag_only("kubeconfig", Kind::Text).default("")
        .not_built("talking to the API server")
        .about("how to reach the API server; empty: no cluster, static pods only"),
    Row::flag_only("lock-file", Kind::Text).default("")
        .built("process.lock_file")
        .about("file that is locked, so that one agent runs at a time"),
    Row::flag_only("maximum-dead-containers", Kind::Int32).deprecated().default("-1")
        .built("gc.max_dead")
        .about("dead containers kept in all; negative: no bound"),
    Row::flag_only("maximum-dead-containers-per-container", Kind::Int32).deprecated().default("1")
        .built("gc.max_per_container")
        .about("dead instances kept of each container; negative: no bound"),
    Row::flag_only("minimum-container-ttl-duration", Kind::Duration).deprecated().default("0s")
        .built("gc.min_age")
        .about("age at which a dead container may be removed"),
    Row::flag_only("node-ip", Kind::Text).default("")
        .built("node.ips")
        .about("address of the node, or one of each family with a comma between; 0.0.0.0 or :: choose the family"),
    Row::flag_only("node-labels", Kind::Pairs)
        .not_built("talking to the API server")
        .about("labels of the Node object"),
    Row::flag_only("root-dir", Kind::Text).default("/var/lib/kubelet")
        .built("dirs.root")
        .about("folder of everything that the agent keeps"),
    Row::flag_only("runtime-cgroups", Kind::Text).default("")
        .not_built("moving processes into cgroups")
        .about("cgroup of the runtime"),
    Row::flag_only("seccomp-default", Kind::Bool).default("false")
        .built("node.seccomp_default")
        .about("RuntimeDefault where a pod names no seccomp profile; or seccompDefault: either switches it on"),
    Row::flag_only("version", Kind::Version).default("false")
        .about("print the version of Kubernetes that Skep follows and leave; raw: more of it"),
];

/// Flags that no kubelet has.
#[rustfmt::skip]
pub(super) static SKEP: &[Row] = &[
    Row::flag_only("pleg-mode", Kind::Text).default("kernel")
        .built("pleg.best_mode")
        .about("best source of pod events to use: kernel, stream or listing; a worse one is used while it cannot be had"),
    Row::flag_only("pleg-safety-period", Kind::Duration).default("5m0s")
        .built("pleg.safety_period")
        .about("time between two full listings in the modes kernel and stream"),
    Row::flag_only("kernel-ring-bytes", Kind::Int64).default("1048576")
        .built("pleg.ring_bytes")
        .about("size of the kernel's event buffer: a power of two, at least a page"),
    Row::flag_only("max-container-starts", Kind::Int32).default("8")
        .built("sync.max_starts")
        .about("containers and sandboxes that may be starting at one time"),
    Row::flag_only("container-logs-dir", Kind::Text).default("/var/log/containers")
        .built("dirs.container_logs")
        .about("folder of the links to container logs"),
];
