//! The resolver configuration of a pod (NET-04 to NET-08). Pure but for `read_host`.

use std::{net::IpAddr, path::Path};

use indexmap::{IndexMap, IndexSet};

use super::config_error::ConfigError;
use crate::{
    config::DnsSettings,
    cri::api::DnsConfig,
    host::resolv::{self, HostResolver},
    types::{pod::Pod, reason},
};

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Longest search path, in characters; some resolvers abort on longer ones.
const MAX_SEARCH_LEN: usize = 253;
/// Longest search line, in characters.
const MAX_SEARCH_LINE: usize = 2048;

/// A warning event for the pod, or for the node where `is_of_node`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) is_of_node: bool,
}

/// The node's own resolver file, for each sandbox anew (NET-10); empty where `resolvConf` is.
pub(crate) fn read_host(settings: &DnsSettings) -> Result<HostResolver, ConfigError> {
    match &settings.resolv_conf {
        None => Ok(HostResolver::default()),
        Some(path) => resolv::read(path).map_err(|error| ConfigError::new(error.to_string())),
    }
}

/// What of the node's resolver file pods cannot have; for one warning of the node at start
/// (NET-09). `host` is what `read_host` brought.
pub(crate) fn check_limits(
    path: &Path,
    host: &Result<HostResolver, ConfigError>,
    cluster_domain: &str,
) -> Option<Warning> {
    let path = path.display();
    // ClusterFirst puts three of its own before the node's.
    let most = if cluster_domain.is_empty() {
        MAX_SEARCHES
    } else {
        MAX_SEARCHES - 3
    };
    let message = match host {
        Err(error) => error.message.clone(),
        Ok(host) if host.searches.len() > most => format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ),
        Ok(host)
            if host
                .searches
                .iter()
                .any(|search| search.len() > MAX_SEARCH_LEN) =>
        {
            format!(
                "Resolv.conf file \"{path}\" contains a search path which length is more than allowed \
             {MAX_SEARCH_LEN} chars!"
            )
        }
        Ok(host) if host.searches.join(" ").len() > MAX_SEARCH_LINE => format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed \
             {MAX_SEARCH_LINE} chars!"
        ),
        Ok(_) => return None,
    };
    Some(Warning {
        reason: reason::event::CHECK_LIMITS_FOR_RESOLV_CONF,
        message,
        is_of_node: true,
    })
}

/// `node_ips`: which loopback addresses to name where the node has no resolver file (`resolvConf`
/// is empty); `host` is empty then.
pub(crate) fn dns_config(
    pod: &Pod,
    settings: &DnsSettings,
    node_ips: &[IpAddr],
    host: &HostResolver,
) -> (DnsConfig, Vec<Warning>) {
    let mut warnings = Vec::new();
    let mut config = match pod.spec().dns_policy.as_deref() {
        Some("None") => DnsConfig::default(),
        Some("Default") => of_host(settings, node_ips, host),
        Some("ClusterFirstWithHostNet") => of_cluster(pod, settings, node_ips, host, &mut warnings),
        // Anything else is ClusterFirst, as validation leaves nothing else.
        Some(_) | None if pod.is_host_network() => of_host(settings, node_ips, host),
        Some(_) | None => of_cluster(pod, settings, node_ips, host, &mut warnings),
    };
    if let Some(own) = &pod.spec().dns_config {
        let unique = |all: Vec<String>, more: &Option<Vec<String>>| -> Vec<String> {
            let all: IndexSet<String> = all
                .into_iter()
                .chain(more.iter().flatten().cloned())
                .collect();
            all.into_iter().collect()
        };
        config.servers = unique(config.servers, &own.nameservers);
        config.searches = unique(config.searches, &own.searches);
        let mut options: IndexMap<String, String> = config
            .options
            .iter()
            .map(|option| option.split_once(':').unwrap_or((option, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            options.insert(name, option.value.clone().unwrap_or_default());
        }
        let written = options.into_iter().map(|(name, value)| {
            if value.is_empty() {
                name
            } else {
                format!("{name}:{value}")
            }
        });
        config.options = written.collect();
    }
    fit(&mut config, &mut warnings);
    (config, warnings)
}

fn of_host(settings: &DnsSettings, node_ips: &[IpAddr], host: &HostResolver) -> DnsConfig {
    if settings.resolv_conf.is_some() {
        return DnsConfig {
            servers: host.servers.clone(),
            searches: host.searches.clone(),
            options: host.options.clone(),
        };
    }
    let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = node_ips.iter().map(|ip| loopback(ip).to_owned()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    DnsConfig {
        servers,
        searches: vec![".".to_owned()],
        options: Vec::new(),
    }
}

fn of_cluster(
    pod: &Pod,
    settings: &DnsSettings,
    node_ips: &[IpAddr],
    host: &HostResolver,
    warnings: &mut Vec<Warning>,
) -> DnsConfig {
    if settings.cluster_dns.is_empty() {
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
            \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        warnings.push(Warning {
            reason: reason::event::MISSING_CLUSTER_DNS,
            message: text.to_owned(),
            is_of_node: true,
        });
        warnings.push(Warning {
            reason: reason::event::MISSING_CLUSTER_DNS,
            message: format!("pod: {:?}. {text}", pod.described()),
            is_of_node: false,
        });
        return of_host(settings, node_ips, host);
    }
    let domain = &settings.cluster_domain;
    let searches = if domain.is_empty() {
        host.searches.clone()
    } else {
        let own = [
            format!("{}.svc.{domain}", pod.key().namespace),
            format!("svc.{domain}"),
            domain.clone(),
        ];
        let all: IndexSet<String> = own
            .into_iter()
            .chain(host.searches.iter().cloned())
            .collect();
        all.into_iter().collect()
    };
    DnsConfig {
        servers: settings.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

/// Cuts what resolvers would not take.
fn fit(config: &mut DnsConfig, warnings: &mut Vec<Warning>) {
    let mut warn = |text: &str, line: &str| {
        warnings.push(Warning {
            reason: reason::event::DNS_CONFIG_FORMING,
            message: format!("{text}{line}"),
            is_of_node: false,
        });
    };
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        warn(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: ",
            &config.servers.join(" "),
        );
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config
        .searches
        .retain(|search| search.len() <= MAX_SEARCH_LEN);
    while config.searches.join(" ").len() > MAX_SEARCH_LINE {
        config.searches.pop();
    }
    if config.searches.len() < before {
        warn(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: ",
            &config.searches.join(" "),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{facts, testing::pod};
    use rstest::rstest;
    use serde_json::{Value, json};

    fn host() -> HostResolver {
        HostResolver {
            servers: vec!["9.9.9.9".into()],
            searches: vec!["lan".into(), "cluster.local".into()],
            options: vec!["ndots:2".into(), "rotate".into()],
        }
    }

    fn settings(cluster_dns: &[&str]) -> DnsSettings {
        DnsSettings {
            cluster_dns: cluster_dns.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..facts::for_tests().dns
        }
    }

    fn lines(config: &DnsConfig) -> String {
        format!(
            "{} | {} | {}",
            config.servers.join(" "),
            config.searches.join(" "),
            config.options.join(" ")
        )
    }

    const CLUSTER: &str =
        "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local lan | ndots:5";
    const HOST: &str = "9.9.9.9 | lan cluster.local | ndots:2 rotate";

    #[rstest]
    #[case::cluster_first(json!({}), CLUSTER)]
    #[case::on_host_network(json!({"hostNetwork": true}), HOST)]
    #[case::with_host_net(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}), CLUSTER)]
    #[case::host(json!({"dnsPolicy": "Default"}), HOST)]
    #[case::none(
        json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}), "1.1.1.1 |  | "
    )]
    #[case::merged(
        json!({"dnsPolicy": "Default", "dnsConfig": {
            "nameservers": ["1.1.1.1", "9.9.9.9"], "searches": ["lan", "more"],
            "options": [{"name": "ndots", "value": "7"}, {"name": "edns0"}, {"name": "rotate"}]}}),
        "9.9.9.9 1.1.1.1 | lan cluster.local more | ndots:7 rotate edns0"
    )]
    fn follows_the_policy(#[case] spec: Value, #[case] expected: &str) {
        let (config, warnings) = dns_config(&pod(spec), &settings(&["10.96.0.10"]), &[], &host());
        assert_eq!(lines(&config), expected);
        assert_eq!(warnings, []);
    }

    #[test]
    fn says_so_when_there_is_no_cluster_dns() {
        let (config, warnings) = dns_config(&pod(json!({})), &settings(&[]), &[], &host());
        assert_eq!(lines(&config), HOST);
        let messages: Vec<_> = warnings
            .iter()
            .map(|warning| (warning.reason, warning.is_of_node, warning.message.as_str()))
            .collect();
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        assert_eq!(
            messages,
            [
                ("MissingClusterDNS", true, text),
                (
                    "MissingClusterDNS",
                    false,
                    format!("pod: \"web_default(uid-1)\". {text}").as_str()
                ),
            ]
        );
    }

    #[rstest]
    #[case(&[], "127.0.0.1 | . | ")]
    #[case(&["192.0.2.1", "fd00::1"], "127.0.0.1 ::1 | . | ")]
    fn without_a_resolver_file_asks_this_machine(#[case] ips: &[&str], #[case] expected: &str) {
        let settings = DnsSettings {
            resolv_conf: None,
            ..settings(&[])
        };
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let default = pod(json!({"dnsPolicy": "Default"}));
        let (config, _) = dns_config(&default, &settings, &ips, &HostResolver::default());
        assert_eq!(lines(&config), expected);
    }

    #[test]
    fn cuts_what_resolvers_would_not_take() {
        let own = json!({"dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"],
            "searches": ["x".repeat(254), "y".repeat(253)],
        }});
        let (config, warnings) =
            dns_config(&pod(own), &settings(&[]), &[], &HostResolver::default());
        assert_eq!(config.servers, ["1.1.1.1", "1.1.1.2", "1.1.1.3"]);
        assert_eq!(config.searches, ["y".repeat(253)]);
        let messages: Vec<_> = warnings.iter().map(|warning| &warning.message).collect();
        assert_eq!(
            messages,
            [
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3",
                &format!(
                    "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                    "y".repeat(253)
                ),
            ]
        );
    }

    #[rstest]
    #[case(29, 3, "cluster.local", None)]
    #[case(
        30,
        3,
        "cluster.local",
        Some("Resolv.conf file '/r' contains search line consisting of more than 29 domains!")
    )]
    #[case(32, 3, "", None)]
    #[case(
        33,
        3,
        "",
        Some("Resolv.conf file '/r' contains search line consisting of more than 32 domains!")
    )]
    #[case(
        1,
        254,
        "",
        Some(
            "Resolv.conf file \"/r\" contains a search path which length is more than allowed 253 chars!"
        )
    )]
    #[case(
        11,
        200,
        "",
        Some(
            "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"
        )
    )]
    fn warns_once_of_a_resolver_file_beyond_the_limits(
        #[case] count: usize,
        #[case] len: usize,
        #[case] domain: &str,
        #[case] message: Option<&str>,
    ) {
        let host = Ok(HostResolver {
            servers: vec!["1.1.1.1".into(); 5],
            searches: (0..count).map(|n| format!("{n:0len$}")).collect(),
            options: Vec::new(),
        });
        let warning = check_limits(Path::new("/r"), &host, domain);
        assert_eq!(warning.map(|warning| warning.message).as_deref(), message);
    }

    #[test]
    fn an_unreadable_resolver_file_is_an_error_of_the_sandbox() {
        let settings = DnsSettings {
            resolv_conf: Some("/proc/none".into()),
            ..settings(&[])
        };
        let message = "cannot read /proc/none: No such file or directory (os error 2)";
        let host = read_host(&settings);
        assert_eq!(host, Err(ConfigError::new(message)));
        let warning = check_limits(Path::new("/proc/none"), &host, "").unwrap();
        assert_eq!(warning.message, message);
    }

    #[rstest]
    #[case::count(40, 10, 32)]
    #[case::line(20, 200, 10)] // 10 * 200 + 9 blanks fit into 2048
    fn bounds_the_search_line(#[case] count: usize, #[case] len: usize, #[case] kept: usize) {
        let searches: Vec<String> = (0..count).map(|n| format!("{n:0len$}")).collect();
        let own = json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}});
        let (config, warnings) =
            dns_config(&pod(own), &settings(&[]), &[], &HostResolver::default());
        assert_eq!(config.searches, searches[..kept]);
        assert_eq!(warnings.len(), 1);
    }
}
