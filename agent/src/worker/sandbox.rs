//! What the runtime is asked for as a pod's sandbox (KRT-05, KRT-07). Pure.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::Path,
};

use k8s_openapi::api::core::v1::{Container, ContainerPort};

use super::{config_error::ConfigError, facts::NodeFacts, hostname, linux_resources, security};
use crate::{
    cri::{
        api::{
            DnsConfig, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping,
            Protocol,
        },
        labels,
    },
    types::pod::Pod,
};

/// `attempt` counts the pod's sandboxes from 0; `cgroup_parent` is the pod's cgroup in the
/// driver's notation; `log_dir` is the pod's own folder of logs.
pub(crate) fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    facts: &NodeFacts,
    cgroup_parent: &str,
    log_dir: &Path,
    dns: DnsConfig,
) -> Result<PodSandboxConfig, ConfigError> {
    let hostname = if pod.is_host_network() {
        String::new()
    } else {
        let name = hostname::pod_name(pod, &facts.dns.cluster_domain)?;
        hostname::sandbox_hostname(pod, &name)?
    };
    let of_pod = pod.spec().security_context.as_ref();
    let sysctls = of_pod.and_then(|of_pod| of_pod.sysctls.as_ref());
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.key().name.to_string(),
            uid: pod.uid().to_string(),
            namespace: pod.key().namespace.to_string(),
            attempt,
        }),
        hostname,
        log_directory: log_dir.to_string_lossy().into_owned(),
        dns_config: Some(dns),
        port_mappings: pod.regular_containers().flat_map(port_mappings).collect(),
        labels: pod_labels(pod),
        annotations: pod
            .metadata()
            .annotations
            .clone()
            .into_iter()
            .flatten()
            .collect(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(security::of_sandbox(pod)?),
            sysctls: sysctls
                .into_iter()
                .flatten()
                .map(|sysctl| (with_dots(&sysctl.name), sysctl.value.clone()))
                .collect(),
            overhead: Some(linux_resources::of_overhead(pod, facts)),
            resources: Some(linux_resources::of_sandbox(pod, facts)),
        }),
        windows: None,
    })
}

/// The pod's own labels, and those by which its sandboxes are found again.
fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let own = pod.metadata().labels.clone().into_iter().flatten();
    own.chain(identity(pod)).collect()
}

pub(crate) fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (labels::POD_NAME.into(), pod.key().name.to_string()),
        (
            labels::POD_NAMESPACE.into(),
            pod.key().namespace.to_string(),
        ),
        (labels::POD_UID.into(), pod.uid().to_string()),
    ]
}

/// Every port of a container, also without a port on the host; a name counts once (NET-15).
fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut names = HashSet::new();
    container
        .ports
        .iter()
        .flatten()
        .filter(|port| names.insert(port_name(port)))
        .map(|port| {
            let protocol = match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                Some(_) | None => Protocol::Tcp,
            };
            PortMapping {
                protocol: protocol.into(),
                container_port: port.container_port,
                host_port: port.host_port.unwrap_or_default(),
                host_ip: port.host_ip.clone().unwrap_or_default(),
            }
        })
        .collect()
}

fn port_name(port: &ContainerPort) -> String {
    if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let host_ip = port.host_ip.as_deref().unwrap_or_default();
    let family = match host_ip.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => "v6",
        Ok(IpAddr::V4(_)) => "v4",
        Err(_) if host_ip.is_empty() => "any",
        Err(_) => "v4",
    };
    format!(
        "{family}-{}-{host_ip}:{}:{}",
        port.protocol.as_deref().unwrap_or("TCP"),
        port.container_port,
        port.host_port.unwrap_or_default()
    )
}

/// `net/ipv4/conf/eno2.100/rp_filter` is `net.ipv4.conf.eno2/100.rp_filter` with the separators
/// swapped; which form it is tells the first one.
fn with_dots(name: &str) -> String {
    if name
        .find(['.', '/'])
        .is_none_or(|first| name.as_bytes()[first] == b'.')
    {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{facts, testing::pod};
    use rstest::rstest;
    use serde_json::{Value, json};

    fn config_of(spec: Value) -> Result<PodSandboxConfig, ConfigError> {
        let dns = DnsConfig {
            servers: vec!["1.1.1.1".into()],
            ..DnsConfig::default()
        };
        sandbox_config(
            &pod(spec),
            2,
            &facts::for_tests(),
            "/kubepods/besteffort/poduid-1",
            Path::new("/var/log/pods/default_web_uid-1"),
            dns,
        )
    }

    #[test]
    fn asks_for_a_sandbox_that_can_be_found_again() {
        let config = config_of(json!({})).unwrap();
        let metadata = config.metadata.clone().unwrap();
        assert_eq!(
            (
                metadata.name.as_str(),
                metadata.namespace.as_str(),
                metadata.uid.as_str()
            ),
            ("web", "default", "uid-1")
        );
        assert_eq!(metadata.attempt, 2);
        assert_eq!(config.hostname, "web");
        assert_eq!(config.log_directory, "/var/log/pods/default_web_uid-1");
        assert_eq!(config.dns_config.unwrap().servers, ["1.1.1.1"]);
        let expected = [
            ("app", "web"),
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "uid-1"),
        ];
        assert_eq!(
            config.labels,
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
        assert_eq!(config.annotations["kubernetes.io/config.source"], "file");
        let linux = config.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/besteffort/poduid-1");
        assert_eq!(linux.resources.unwrap().cpu_shares, 2);
        assert_eq!(linux.overhead.unwrap(), Default::default());
    }

    #[rstest]
    #[case(json!({"hostNetwork": true}), "")]
    #[case(json!({"hostname": "front"}), "front")]
    #[case(
        json!({"subdomain": "sub", "setHostnameAsFQDN": true}), "web.sub.default.svc.cluster.local"
    )]
    fn names_the_machine(#[case] spec: Value, #[case] hostname: &str) {
        assert_eq!(config_of(spec).unwrap().hostname, hostname);
    }

    #[test]
    fn maps_ports_of_regular_containers_only() {
        let ports = json!([
            {"name": "http", "containerPort": 80, "hostPort": 8080, "protocol": "TCP"},
            {"name": "http", "containerPort": 81},
            {"containerPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
            {"containerPort": 53, "protocol": "TCP", "hostIP": "::1"},
        ]);
        let config = config_of(json!({
            "containers": [{"name": "a", "ports": ports}, {"name": "b", "ports": [{"name": "http", "containerPort": 82}]}],
            "initContainers": [{"name": "i", "ports": [{"containerPort": 9}]}],
        }))
        .unwrap();
        let mapped: Vec<_> = config
            .port_mappings
            .iter()
            .map(|port| {
                (
                    port.protocol(),
                    port.container_port,
                    port.host_port,
                    port.host_ip.as_str(),
                )
            })
            .collect();
        assert_eq!(
            mapped,
            [
                (Protocol::Tcp, 80, 8080, ""),
                (Protocol::Udp, 53, 0, "127.0.0.1"),
                (Protocol::Tcp, 53, 0, "::1"),
                (Protocol::Tcp, 82, 0, ""),
            ]
        );
    }

    #[rstest]
    #[case("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter")]
    #[case("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter")]
    #[case("kernel", "kernel")]
    fn writes_sysctls_with_dots(#[case] name: &str, #[case] expected: &str) {
        let config =
            config_of(json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
        let sysctls = config.unwrap().linux.unwrap().sysctls;
        assert_eq!(sysctls.get(expected).map(String::as_str), Some("1"));
    }
}
