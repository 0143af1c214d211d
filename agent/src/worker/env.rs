//! The environment of a container (ENV-01, 02, 05, 06). Pure.
//!
//! A pod without an API server has no services, configMaps and secrets: what refers to one is
//! refused with upstream's words.

use std::net::IpAddr;

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
};

use super::{config_error::ConfigError, facts::NodeFacts};
use crate::types::{
    expand::expand_known,
    pod::Pod,
    quantity::Quantity,
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, hugepage_size, limit, pod_level, request},
};

/// Name and value of each variable: in the order of the spec, where a later one of the same name
/// gives the first its value.
pub(crate) fn environment(
    pod: &Pod,
    container: &Container,
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<Vec<(String, String)>, ConfigError> {
    if pod.spec().enable_service_links.is_none() {
        return Err(ConfigError::new(
            "nil pod.spec.enableServiceLinks encountered, cannot construct envvars",
        ));
    }
    for from in container.env_from.iter().flatten() {
        if let Some(reference) = &from.config_map_ref {
            return Err(no_api("configMap", pod, &reference.name));
        }
        if let Some(reference) = &from.secret_ref {
            return Err(no_api("secret", pod, &reference.name));
        }
    }

    let mut vars: IndexMap<String, String> = IndexMap::new();
    for var in container.env.iter().flatten() {
        let plain = var.value.as_deref().unwrap_or_default();
        let value = match &var.value_from {
            Some(source) if plain.is_empty() => value_from(source, pod, container, pod_ips, facts)?,
            Some(_) | None => expand_known(plain, |name| vars.get(name).map(String::as_str)),
        };
        vars.insert(var.name.clone(), value);
    }
    Ok(vars.into_iter().collect())
}

fn no_api(kind: &str, pod: &Pod, name: &str) -> ConfigError {
    let namespace = &pod.key().namespace;
    ConfigError::new(format!(
        "couldn't get {kind} {namespace}/{name}, no kubeClient defined"
    ))
}

fn value_from(
    source: &EnvVarSource,
    pod: &Pod,
    container: &Container,
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<String, ConfigError> {
    if let Some(field) = &source.field_ref {
        field_value(field, pod, pod_ips, facts)
    } else if let Some(field) = &source.resource_field_ref {
        resource_value(field, pod, container, facts)
    } else if let Some(key) = &source.config_map_key_ref {
        Err(no_api("configMap", pod, &key.name))
    } else if let Some(key) = &source.secret_key_ref {
        Err(no_api("secret", pod, &key.name))
    } else if source.file_key_ref.is_some() {
        Err(ConfigError::new("fileKeyRef is not supported yet"))
    } else {
        Ok(String::new())
    }
}

/// A field of the pod's (ENV-05).
fn field_value(
    field: &ObjectFieldSelector,
    pod: &Pod,
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<String, ConfigError> {
    let (metadata, spec) = (pod.metadata(), pod.spec());
    let path = field.field_path.as_str();
    let value = match path {
        "metadata.name" => pod.key().name.to_string(),
        "metadata.namespace" => pod.key().namespace.to_string(),
        "metadata.uid" => pod.uid().to_string(),
        // A static pod runs where it was found.
        "spec.nodeName" => spec
            .node_name
            .clone()
            .unwrap_or_else(|| facts.node_name.clone()),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => match facts.node_ips.first() {
            Some(ip) => ip.to_string(),
            None => return Err(ConfigError::new("failed to get the host IPs")),
        },
        "status.hostIPs" => joined(&facts.node_ips),
        "status.podIP" => joined(&by_family(pod_ips, facts)[..1.min(pod_ips.len())]),
        "status.podIPs" => joined(&by_family(pod_ips, facts)),
        _ => match path
            .strip_suffix("']")
            .and_then(|path| path.split_once("['"))
        {
            Some(("metadata.labels", key)) => of_key(metadata.labels.as_ref(), key),
            Some(("metadata.annotations", key)) => of_key(metadata.annotations.as_ref(), key),
            Some(_) => {
                return Err(ConfigError::new(format!(
                    "fieldPath {path:?} does not support subscript"
                )));
            }
            None => {
                return Err(ConfigError::new(format!("unsupported fieldPath: {path}")));
            }
        },
    };
    Ok(value)
}

fn of_key(map: Option<&std::collections::BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key))
        .cloned()
        .unwrap_or_default()
}

fn joined(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    ips.join(",")
}

/// At most one address of each family, that of the node's primary family first (NET-02).
pub(crate) fn by_family(pod_ips: &[IpAddr], facts: &NodeFacts) -> Vec<IpAddr> {
    let v6_first = facts
        .node_ips
        .first()
        .or(pod_ips.first())
        .is_some_and(IpAddr::is_ipv6);
    [v6_first, !v6_first]
        .into_iter()
        .filter_map(|v6| pod_ips.iter().find(|ip| ip.is_ipv6() == v6).copied())
        .collect()
}

/// A request or limit, in whole divisors, rounded up (ENV-06).
fn resource_value(
    field: &ResourceFieldSelector,
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
) -> Result<String, ConfigError> {
    let name = field
        .container_name
        .as_deref()
        .filter(|name| !name.is_empty());
    // Init containers named by containerName are the only ones whose limits get no default.
    let (container, has_default) = match name {
        None => (container, true),
        Some(name) => {
            let named = |wanted: &&Container| wanted.name == name;
            let mut init = pod.init_containers().map(|(container, _)| container);
            match (pod.regular_containers().find(named), init.find(named)) {
                (Some(regular), _) => (regular, true),
                (None, Some(init)) => (init, false),
                (None, None) => {
                    return Err(ConfigError::new(format!("container {name} not found")));
                }
            }
        }
    };

    let unsupported = || {
        ConfigError::new(format!(
            "unsupported container resource : {}",
            field.resource
        ))
    };
    let (side, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let is_plain = [CPU, MEMORY, EPHEMERAL_STORAGE].contains(&resource);
    if !is_plain && hugepage_size(resource).is_none() {
        return Err(unsupported());
    }
    let own = container.resources.as_ref();
    let amount = match side {
        "requests" => request(own, resource),
        "limits" => limit(own, resource)
            .filter(|limit| !limit.is_zero() || !is_plain)
            .or_else(|| default_limit(resource, pod, facts).filter(|_| has_default && is_plain)),
        _ => return Err(unsupported()),
    };
    let amount = amount.unwrap_or_default();

    let divisor = match &field.divisor {
        None => Quantity::ZERO,
        Some(divisor) => Quantity::try_from(divisor)
            .map_err(|error| ConfigError::new(format!("divisor of {}: {error}", field.resource)))?,
    };
    let divisor = if divisor.is_zero() {
        Quantity::of(1)
    } else {
        divisor
    };
    // Thousandths matter for the CPU only: a tenth of a byte is a byte.
    let value = if resource == CPU {
        amount.divided_by(divisor)
    } else {
        Quantity::of(amount.value()).divided_by(Quantity::of(divisor.value()))
    };
    Ok(value.to_string())
}

/// What a container without a limit may use: as much as its pod, else as all pods.
fn default_limit(resource: &str, pod: &Pod, facts: &NodeFacts) -> Option<Quantity> {
    let of_pod = limit(pod_level(pod.spec()), resource)
        .filter(|limit| !limit.is_zero() && resource != EPHEMERAL_STORAGE);
    of_pod.or(match resource {
        CPU => Some(facts.allocatable.cpu),
        MEMORY => Some(facts.allocatable.memory),
        _ => facts.allocatable.ephemeral_storage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{
        facts,
        testing::{pod, pod_with_container},
    };
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn ips() -> Vec<IpAddr> {
        vec!["fd00::2".parse().unwrap(), "10.0.0.2".parse().unwrap()]
    }

    fn env_of(pod: &Pod) -> Result<Vec<(String, String)>, ConfigError> {
        environment(pod, &pod.spec().containers[0], &ips(), &facts::for_tests())
    }

    fn one(source: Value, resources: Value) -> Result<String, String> {
        let pod = pod_with_container(json!({
            "env": [{"name": "X", "valueFrom": source}], "resources": resources
        }));
        match env_of(&pod) {
            Ok(vars) => Ok(vars[0].1.clone()),
            Err(error) => Err(error.message),
        }
    }

    #[test]
    fn a_value_may_refer_to_those_before_it() {
        let pod = pod_with_container(json!({"env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(C)-$$(A)"},
            {"name": "C", "value": "3"},
            {"name": "A", "value": "$(A)2"},
            {"name": "E"},
        ]}));
        let expected = [("A", "12"), ("B", "1-$(C)-$(A)"), ("C", "3"), ("E", "")];
        assert_eq!(
            env_of(&pod).unwrap(),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[rstest]
    #[case("metadata.name", "web")]
    #[case("metadata.namespace", "default")]
    #[case("metadata.uid", "uid-1")]
    #[case("metadata.labels['app']", "web")]
    #[case("metadata.labels['none']", "")]
    #[case("metadata.annotations['kubernetes.io/config.source']", "file")]
    #[case("spec.nodeName", "node-1")]
    #[case("spec.serviceAccountName", "sa")]
    #[case("status.hostIP", "192.0.2.10")]
    #[case("status.hostIPs", "192.0.2.10")]
    #[case("status.podIP", "10.0.0.2")]
    #[case("status.podIPs", "10.0.0.2,fd00::2")]
    fn reads_fields_of_the_pod(#[case] path: &str, #[case] value: &str) {
        assert_eq!(
            one(json!({"fieldRef": {"fieldPath": path}}), json!({})),
            Ok(value.to_owned())
        );
    }

    #[rstest]
    #[case("limits.cpu", None, "2")] // node allocatable: 1900m
    #[case("limits.cpu", Some("1m"), "1900")]
    #[case("requests.cpu", None, "1")]
    #[case("requests.cpu", Some("1m"), "250")]
    #[case("limits.memory", Some("1Mi"), "65")]
    #[case("limits.memory", Some("0"), "68000000")]
    #[case("requests.memory", None, "0")]
    #[case("limits.ephemeral-storage", Some("1Gi"), "50")]
    #[case("limits.hugepages-2Mi", None, "0")]
    fn reads_requests_and_limits(
        #[case] resource: &str,
        #[case] divisor: Option<&str>,
        #[case] value: &str,
    ) {
        let mut field = json!({"resource": resource});
        if let Some(divisor) = divisor {
            field["divisor"] = divisor.into();
        }
        let resources = json!({"requests": {"cpu": "250m"}, "limits": {"memory": "68M"}});
        assert_eq!(
            one(json!({"resourceFieldRef": field}), resources),
            Ok(value.to_owned())
        );
    }

    #[test]
    fn limits_of_the_pod_come_before_the_nodes() {
        let pod = pod(json!({
            "resources": {"limits": {"cpu": "3"}},
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "app", "env": [
                {"name": "OWN", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "INIT", "valueFrom": {"resourceFieldRef":
                    {"resource": "limits.cpu", "containerName": "init"}}},
            ]}],
        }));
        let vars = env_of(&pod).unwrap();
        assert_eq!(vars[0].1, "3");
        assert_eq!(vars[1].1, "0");
    }

    #[rstest]
    #[case(json!({"fieldRef": {"fieldPath": "spec.x"}}), "unsupported fieldPath: spec.x")]
    #[case(json!({"fieldRef": {"fieldPath": "spec['x']"}}), "fieldPath \"spec['x']\" does not support subscript")]
    #[case(json!({"resourceFieldRef": {"resource": "limits.gpu"}}), "unsupported container resource : limits.gpu")]
    #[case(json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "z"}}), "container z not found")]
    #[case(
        json!({"configMapKeyRef": {"name": "cm", "key": "k"}}),
        "couldn't get configMap default/cm, no kubeClient defined"
    )]
    #[case(
        json!({"secretKeyRef": {"name": "s", "key": "k"}}),
        "couldn't get secret default/s, no kubeClient defined"
    )]
    fn refuses_what_it_cannot_read(#[case] source: Value, #[case] message: &str) {
        assert_eq!(one(source, json!({})), Err(message.to_owned()));
    }

    #[test]
    fn needs_service_links_to_be_decided() {
        let pod = pod(json!({"enableServiceLinks": null}));
        assert_eq!(
            env_of(&pod).unwrap_err().message,
            "nil pod.spec.enableServiceLinks encountered, cannot construct envvars"
        );
    }

    proptest! {
        #[test]
        fn never_panics(
            vars in proptest::collection::vec(("[A-C]", "[$()A-C]{0,8}"), 0..6),
            path in "(metadata|status|spec)\\.[a-zA-Z]{0,8}(\\[')?[a-z]{0,3}('\\])?",
            resource in "(limits|requests|x)?\\.?[a-z0-9M-]{0,12}",
        ) {
            let env: Vec<Value> =
                vars.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let plain = env_of(&pod_with_container(json!({"env": env})));
            prop_assert!(plain.is_ok());
            let _ = one(json!({"fieldRef": {"fieldPath": path}}), json!({}));
            let _ = one(json!({"resourceFieldRef": {"resource": resource}}), json!({}));
        }
    }
}
