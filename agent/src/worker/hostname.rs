//! The name that a pod's processes see as their machine's (NET-12, NET-13, NET-14). Pure.

use super::config_error::ConfigError;
use crate::types::pod::Pod;

/// What fits the kernel's node name beside its closing zero byte.
const MAX_HOSTNAME: usize = 63;
const MAX_FQDN: usize = 64;

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
    '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Short name and domain of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) host: String,
    /// Empty without `spec.subdomain`.
    pub(crate) domain: String,
}

pub(crate) fn pod_name(pod: &Pod, cluster_domain: &str) -> Result<PodName, ConfigError> {
    let spec = pod.spec();
    let name = &pod.key().name;
    if let Some(host) = &spec.hostname_override {
        check(
            "HostnameOverride",
            "subdomain",
            host,
            &subdomain_faults(host),
        )?;
        return Ok(PodName {
            host: shortened(name, host)?,
            domain: String::new(),
        });
    }
    let host = match spec.hostname.as_deref().filter(|host| !host.is_empty()) {
        Some(host) => {
            check("Hostname", "label", host, &label_faults(host))?;
            host
        }
        None => name,
    };
    let domain = match spec.subdomain.as_deref().filter(|sub| !sub.is_empty()) {
        Some(sub) => {
            check("Subdomain", "label", sub, &label_faults(sub))?;
            format!("{sub}.{}.svc.{cluster_domain}", pod.key().namespace)
        }
        None => String::new(),
    };
    Ok(PodName {
        host: shortened(name, host)?,
        domain,
    })
}

/// What the sandbox is told: the short name, or all of it with `setHostnameAsFQDN`.
pub(crate) fn sandbox_hostname(pod: &Pod, name: &PodName) -> Result<String, ConfigError> {
    if name.domain.is_empty() || pod.spec().set_hostname_as_fqdn != Some(true) {
        return Ok(name.host.clone());
    }
    let fqdn = format!("{}.{}", name.host, name.domain);
    if fqdn.len() > MAX_FQDN {
        return Err(ConfigError::new(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too \
             long ({MAX_FQDN} characters is the max, {} characters requested)",
            fqdn.len()
        )));
    }
    Ok(fqdn)
}

fn shortened(pod: &str, host: &str) -> Result<String, ConfigError> {
    if host.len() <= MAX_HOSTNAME {
        return Ok(host.to_owned());
    }
    let end = (0..=MAX_HOSTNAME)
        .rev()
        .find(|end| host.is_char_boundary(*end))
        .unwrap_or(0);
    let short = host[..end].trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(ConfigError::new(format!(
            "hostname for pod {pod:?} was invalid: {host:?}"
        )));
    }
    Ok(short.to_owned())
}

fn check(field: &str, kind: &str, value: &str, faults: &[String]) -> Result<(), ConfigError> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "pod {field} {value:?} is not a valid DNS {kind}: {}",
        faults.join(";")
    )))
}

fn label_faults(label: &str) -> Vec<String> {
    faults(label, 63, is_label(label), LABEL_RULE)
}

fn subdomain_faults(name: &str) -> Vec<String> {
    faults(name, 253, name.split('.').all(is_label), SUBDOMAIN_RULE)
}

fn faults(text: &str, most: usize, is_well_formed: bool, rule: &str) -> Vec<String> {
    let too_long = (text.len() > most).then(|| format!("must be no more than {most} characters"));
    let malformed = (!is_well_formed).then(|| rule.to_owned());
    too_long.into_iter().chain(malformed).collect()
}

fn is_label(label: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.first().copied().is_some_and(is_plain)
        && bytes.last().copied().is_some_and(is_plain)
        && bytes.iter().all(|byte| is_plain(*byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing::pod;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::plain(json!({}), "web", "")]
    #[case::hostname(json!({"hostname": "front"}), "front", "")]
    #[case::subdomain(json!({"subdomain": "sub"}), "web", "sub.default.svc.cluster.local")]
    #[case::both(json!({"hostname": "front", "subdomain": "sub"}), "front", "sub.default.svc.cluster.local")]
    #[case::overridden(
        json!({"hostname": "front", "subdomain": "sub", "hostnameOverride": "a.b"}), "a.b", ""
    )]
    fn names_a_pod(#[case] spec: Value, #[case] host: &str, #[case] domain: &str) {
        let name = pod_name(&pod(spec), "cluster.local").unwrap();
        assert_eq!((name.host.as_str(), name.domain.as_str()), (host, domain));
    }

    #[test]
    fn cuts_a_long_name_and_what_it_must_not_end_in() {
        let long = format!("{}-.-tail", "a".repeat(61));
        let name = pod_name(&pod(json!({"hostnameOverride": "b".repeat(70)})), "x").unwrap();
        assert_eq!(name.host, "b".repeat(63));
        assert_eq!(shortened("web", &long).unwrap(), "a".repeat(61));
    }

    #[rstest]
    #[case(json!({"hostname": "No"}), "pod Hostname \"No\" is not a valid DNS label: a lowercase RFC 1123 label must")]
    #[case(json!({"subdomain": "-x"}), "pod Subdomain \"-x\" is not a valid DNS label: a lowercase")]
    #[case(
        json!({"hostnameOverride": "a..b"}),
        "pod HostnameOverride \"a..b\" is not a valid DNS subdomain: a lowercase RFC 1123 subdomain"
    )]
    fn refuses_names_that_are_none(#[case] spec: Value, #[case] start: &str) {
        let message = pod_name(&pod(spec), "cluster.local").unwrap_err().message;
        assert!(message.starts_with(start), "{message}");
    }

    #[test]
    fn a_full_name_must_fit_the_kernel() {
        let spec = |sub: &str| json!({"subdomain": sub, "setHostnameAsFQDN": true});
        let short = pod(spec("sub"));
        let name = pod_name(&short, "cluster.local").unwrap();
        assert_eq!(
            sandbox_hostname(&short, &name).unwrap(),
            "web.sub.default.svc.cluster.local"
        );

        let long = pod(spec(&"s".repeat(40)));
        let name = pod_name(&long, "cluster.local").unwrap();
        let fqdn = format!("web.{}.default.svc.cluster.local", "s".repeat(40));
        assert_eq!(
            sandbox_hostname(&long, &name).unwrap_err().message,
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too \
                 long (64 characters is the max, 70 characters requested)"
            )
        );
    }
}
