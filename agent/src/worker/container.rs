//! What the runtime is asked for as a container (KRT-06, KRT-07, KRT-14). Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, ContainerPort};
use serde::Serialize;

use super::{
    config_error::ConfigError,
    facts::NodeFacts,
    linux_resources,
    sandbox::identity,
    security::{self, ImageUser},
};
use crate::{
    cri::{
        annotations,
        api::{
            ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig, Mount,
        },
        labels,
    },
    types::{expand::expand_known, pod::Pod},
};

#[derive(Debug)]
pub(crate) struct ContainerInput<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    /// Becomes the container's `metadata.attempt` and the number of its log file.
    pub(crate) restart_count: u32,
    /// `source::container_hash` of the container.
    pub(crate) hash: u32,
    /// The id or reference by which the runtime has the image.
    pub(crate) image: &'a str,
    pub(crate) image_user: &'a ImageUser,
    /// From `env::environment`.
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) facts: &'a NodeFacts,
}

/// An error is the reason `CreateContainerConfigError` with its message.
pub(crate) fn container_config(input: ContainerInput<'_>) -> Result<ContainerConfig, ConfigError> {
    let ContainerInput {
        pod,
        container,
        restart_count,
        hash,
        image,
        image_user,
        envs,
        mounts,
        facts,
    } = input;
    let values: HashMap<&str, &str> = envs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        words
            .iter()
            .flatten()
            .map(|word| expand_known(word, |name| values.get(name).copied()))
            .collect()
    };
    let (command, args) = (expanded(&container.command), expanded(&container.args));
    let name = (labels::CONTAINER_NAME.to_owned(), container.name.clone());
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: restart_count,
        }),
        image: Some(ImageSpec {
            image: image.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs
            .into_iter()
            .map(|(key, value)| KeyValue {
                key,
                value: value.into_bytes(),
            })
            .collect(),
        mounts,
        labels: identity(pod).into_iter().chain([name]).collect(),
        annotations: container_annotations(pod, container, restart_count, hash),
        log_path: log_path(&container.name, restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(LinuxContainerConfig {
            resources: Some(linux_resources::of_container(pod, container, facts)),
            security_context: Some(security::of_container(pod, container, image_user, facts)?),
        }),
        ..ContainerConfig::default()
    })
}

/// The log file of a container's n-th run, below its pod's folder of logs.
pub(crate) fn log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// A pod's deletionGracePeriodSeconds when the container was made; the CRI client reads the
/// others back.
const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";

fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    hash: u32,
) -> HashMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut all = HashMap::from([
        (annotations::HASH.to_owned(), format!("{hash:x}")),
        (
            annotations::RESTART_COUNT.to_owned(),
            restart_count.to_string(),
        ),
        (
            annotations::TERMINATION_MESSAGE_PATH.to_owned(),
            text(&container.termination_message_path),
        ),
        (
            annotations::TERMINATION_MESSAGE_POLICY.to_owned(),
            text(&container.termination_message_policy),
        ),
    ]);
    if let Some(seconds) = pod.metadata().deletion_grace_period_seconds {
        all.insert(DELETION_GRACE_PERIOD.to_owned(), seconds.to_string());
    }
    if let Some(seconds) = pod.spec().termination_grace_period_seconds {
        all.insert(
            annotations::POD_TERMINATION_GRACE_PERIOD.to_owned(),
            seconds.to_string(),
        );
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    if !ports.is_empty() {
        let ports: Vec<_> = ports.iter().map(WrittenPort::from).collect();
        let json = serde_json::to_string(&ports).expect("strings and numbers make JSON");
        all.insert(annotations::PORTS.to_owned(), json);
    }
    all
}

/// A port as upstream writes it, in the same order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPort<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_port: Option<i32>,
    container_port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'a str>,
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    host_ip: Option<&'a str>,
}

impl<'a> From<&'a ContainerPort> for WrittenPort<'a> {
    fn from(port: &'a ContainerPort) -> Self {
        let text = |value: &'a Option<String>| value.as_deref().filter(|text| !text.is_empty());
        Self {
            name: text(&port.name),
            host_port: port.host_port.filter(|port| *port != 0),
            container_port: port.container_port,
            protocol: text(&port.protocol),
            host_ip: text(&port.host_ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{facts, testing::pod_with_container};
    use serde_json::{Value, json};

    fn config_of(fields: Value) -> Result<ContainerConfig, ConfigError> {
        let pod = pod_with_container(fields);
        container_config(ContainerInput {
            pod: &pod,
            container: &pod.spec().containers[0],
            restart_count: 3,
            hash: 0x0e45_cbd0,
            image: "sha256:abc",
            image_user: &ImageUser {
                uid: Some(7),
                username: String::new(),
            },
            envs: vec![("A".into(), "1".into()), ("B".into(), String::new())],
            mounts: vec![Mount {
                host_path: "/h".into(),
                container_path: "/c".into(),
                ..Mount::default()
            }],
            facts: &facts::for_tests(),
        })
    }

    #[test]
    fn asks_for_what_the_spec_says() {
        let config = config_of(json!({
            "command": ["sh", "-c", "echo $(A) $$(A) $(Z)"],
            "args": ["$(A)$(B)"],
            "workingDir": "/w",
            "stdin": true,
            "tty": true,
        }))
        .unwrap();
        let metadata = config.metadata.clone().unwrap();
        assert_eq!((metadata.name.as_str(), metadata.attempt), ("app", 3));
        let image = config.image.clone().unwrap();
        assert_eq!(image.image, "sha256:abc");
        assert_eq!(image.user_specified_image, "busybox:1");
        assert_eq!(config.command, ["sh", "-c", "echo 1 $(A) $(Z)"]);
        assert_eq!(config.args, ["1"]);
        assert_eq!(config.working_dir, "/w");
        assert_eq!(config.log_path, "app/3.log");
        assert!(config.stdin && !config.stdin_once && config.tty);
        assert_eq!(config.envs[0].key, "A");
        assert_eq!(config.envs[0].value, b"1");
        assert_eq!(config.mounts.len(), 1);
        let linux = config.linux.unwrap();
        assert_eq!(linux.resources.unwrap().oom_score_adj, 1000);
        let user = linux.security_context.unwrap().run_as_user;
        assert_eq!(user.unwrap().value, 7);
    }

    #[test]
    fn labels_and_annotations_are_upstreams() {
        let config = config_of(json!({"ports": [
            {"name": "http", "containerPort": 80, "hostPort": 8080, "protocol": "TCP", "hostIP": "127.0.0.1"},
            {"containerPort": 53, "protocol": "UDP"},
        ]}))
        .unwrap();
        let labels = [
            ("io.kubernetes.container.name", "app"),
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "uid-1"),
        ];
        let annotations = [
            ("io.kubernetes.container.hash", "e45cbd0"),
            ("io.kubernetes.container.restartCount", "3"),
            (
                "io.kubernetes.container.terminationMessagePath",
                "/dev/termination-log",
            ),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
            (
                "io.kubernetes.container.ports",
                r#"[{"name":"http","hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"127.0.0.1"},{"containerPort":53,"protocol":"UDP"}]"#,
            ),
        ];
        let owned = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        assert_eq!(config.labels, owned(&labels));
        assert_eq!(config.annotations, owned(&annotations));
    }

    #[test]
    fn tells_why_a_container_cannot_be_asked_for() {
        let error = config_of(json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}));
        assert_eq!(
            error.unwrap_err().message,
            "container's runAsUser breaks non-root policy (pod: \"web_default(uid-1)\", container: app)"
        );
    }
}
