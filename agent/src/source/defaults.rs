//! What the API server would fill in, and what every static pod gets on top (SRC-10).
//!
//! Pure. The fields are those that a static pod uses; the order is upstream's, because the uid is
//! a hash over the pod as the API's defaults leave it.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, Pod as PodObject, PodSpec, PodStatus, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};

use super::manifest::Origin;
use crate::{image::reference::Reference, types::pod::SourceKind};

/// `kubernetes.io/config.hash`: the uid that the source made.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The API's defaults of v1, on decode.
pub(super) fn apply_api_defaults(pod: &mut PodObject) {
    let spec = pod.spec.get_or_insert_default();
    default_spec(spec);
    let is_host_network = spec.host_network == Some(true);
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(spec.containers.iter_mut()) {
        default_container(container, is_host_network);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        default_volume(volume);
    }
}

fn default_spec(spec: &mut PodSpec) {
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    let grace = spec
        .termination_grace_period_seconds
        .get_or_insert(DEFAULT_GRACE_SECONDS);
    if *grace < 0 {
        *grace = 1;
    }
}

fn default_container(container: &mut Container, is_host_network: bool) {
    if container
        .image_pull_policy
        .as_deref()
        .is_none_or(str::is_empty)
    {
        let policy = pull_policy(container.image.as_deref().unwrap_or_default());
        container.image_pull_policy = Some(policy.to_owned());
    }
    fill(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
    fill(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
        if is_host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    for variable in container.env.iter_mut().flatten() {
        let field = variable
            .value_from
            .as_mut()
            .and_then(|from| from.field_ref.as_mut());
        if let Some(field) = field {
            fill(&mut field.api_version, "v1");
        }
    }
    if let Some(resources) = &mut container.resources
        && let Some(limits) = &resources.limits
    {
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests
                .entry(name.clone())
                .or_insert_with(|| limit.clone());
        }
    }
}

/// `Always` for the tag `latest`, be it written or meant; else `IfNotPresent`. A name that can't
/// be read gets the latter too and fails when the image is wanted.
fn pull_policy(image: &str) -> &'static str {
    let is_latest =
        Reference::parse(image).is_ok_and(|reference| reference.tag_or_default() == Some("latest"));
    if is_latest { "Always" } else { "IfNotPresent" }
}

fn default_volume(volume: &mut Volume) {
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    let without_source = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == without_source {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
}

fn fill(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

/// What makes a manifest's pod this node's static pod.
pub(super) fn apply_static_defaults(pod: &mut PodObject, origin: Origin<'_>, node_name: &str) {
    // Without effect on a node (see `fields`), so they must not change the uid either.
    pod.status = None;
    let written = std::mem::take(&mut pod.metadata);
    pod.metadata = ObjectMeta {
        name: written.name,
        namespace: written.namespace,
        uid: written.uid.filter(|uid| !uid.is_empty()),
        labels: written.labels,
        annotations: written.annotations,
        ..ObjectMeta::default()
    };

    let uid = match pod.metadata.uid.take() {
        Some(uid) => uid,
        None => made_uid(pod, origin, node_name),
    };
    let metadata = &mut pod.metadata;
    let name = metadata.name.take().unwrap_or_default();
    metadata.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    fill(&mut metadata.namespace, "default");
    metadata
        .annotations
        .get_or_insert_default()
        .insert(CONFIG_HASH.to_owned(), uid.clone());
    metadata.uid = Some(uid);

    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if origin.source() == SourceKind::File {
        let survives_taints = Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            ..Toleration::default()
        };
        let tolerations = spec.tolerations.get_or_insert_default();
        if !tolerations.contains(&survives_taints) {
            tolerations.push(survives_taints);
        }
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        ..PodStatus::default()
    });
}

/// 32 hex digits, as upstream's, of a hash of our own: upstream hashes a dump of its Go object.
fn made_uid(pod: &PodObject, origin: Origin<'_>, node_name: &str) -> String {
    let mut hasher = Sha256::new();
    // The object's JSON has its fields in the order of the alphabet.
    hasher.update(serde_json::to_vec(pod).unwrap_or_default());
    match origin {
        Origin::File(path) => {
            hasher.update(format!("host:{node_name}"));
            hasher.update("file:");
            hasher.update(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
        }
        Origin::Url(url) => hasher.update(format!("url:{url}")),
    }
    hasher
        .finalize()
        .iter()
        .take(16)
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::path::Path;

    fn pod(json: serde_json::Value) -> PodObject {
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case("busybox", "Always")]
    #[case("busybox:latest", "Always")]
    #[case("busybox:1.36", "IfNotPresent")]
    #[case("localhost:5000/a/busybox", "Always")]
    #[case("localhost:5000/a/busybox:v1", "IfNotPresent")]
    #[case(
        "busybox@sha256:9ae97d36d26566ff84e8893c64a6dc4fe8ca6d1144bf5b87b2b85a32def253c7",
        "IfNotPresent"
    )]
    #[case("Not An Image", "IfNotPresent")]
    fn the_pull_policy_follows_the_tag(#[case] image: &str, #[case] policy: &str) {
        assert_eq!(pull_policy(image), policy);
    }

    #[test]
    fn the_api_s_defaults_are_filled_in() {
        let mut object = pod(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {
                "hostNetwork": true,
                "volumes": [{"name": "a"}, {"name": "b", "hostPath": {"path": "/b"}}],
                "containers": [{
                    "name": "c", "image": "busybox:1",
                    "ports": [{"containerPort": 80}],
                    "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
                }],
            },
        }));
        apply_api_defaults(&mut object);
        assert_eq!(
            serde_json::to_value(&object.spec).unwrap(),
            serde_json::json!({
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "hostNetwork": true,
                "schedulerName": "default-scheduler", "securityContext": {},
                "enableServiceLinks": true, "terminationGracePeriodSeconds": 30,
                "volumes": [
                    {"name": "a", "emptyDir": {}},
                    {"name": "b", "hostPath": {"path": "/b", "type": ""}},
                ],
                "containers": [{
                    "name": "c", "image": "busybox:1", "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                    "env": [{"name": "N", "valueFrom": {"fieldRef": {
                        "apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                    "resources": {
                        "limits": {"cpu": "1", "memory": "1Gi"},
                        "requests": {"cpu": "100m", "memory": "1Gi"},
                    },
                }],
            })
        );
    }

    #[test]
    fn a_static_pod_gets_name_uid_annotations_and_its_node() {
        let mut object = pod(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
        }));
        apply_static_defaults(&mut object, Origin::File(Path::new("/m/web.yaml")), "Node1");
        let metadata = &object.metadata;
        let uid = metadata.uid.clone().unwrap();
        assert_eq!(metadata.name.as_deref(), Some("web-node1"));
        assert_eq!(metadata.namespace.as_deref(), Some("default"));
        assert_eq!(metadata.resource_version, None);
        assert_eq!(metadata.annotations.as_ref().unwrap()[CONFIG_HASH], uid);
        assert!(uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit()));
        let spec = object.spec.as_ref().unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("Node1"));
        assert_eq!(
            serde_json::to_value(&spec.tolerations).unwrap(),
            serde_json::json!([{"operator": "Exists", "effect": "NoExecute"}])
        );
        assert_eq!(object.status.unwrap().phase.as_deref(), Some("Pending"));
    }

    #[test]
    fn the_uid_depends_on_content_node_and_file_and_on_nothing_else() {
        let uid = |image: &str, path: &str, node: &str| {
            let mut object = pod(serde_json::json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                "spec": {"containers": [{"name": "c", "image": image}]},
                "status": {"phase": "Running"},
            }));
            apply_api_defaults(&mut object);
            apply_static_defaults(&mut object, Origin::File(Path::new(path)), node);
            object.metadata.uid.unwrap()
        };
        let first = uid("busybox:1", "/m/a.yaml", "n");
        assert_eq!(first, uid("busybox:1", "/m/a.yaml", "n"));
        assert_ne!(first, uid("busybox:2", "/m/a.yaml", "n"));
        assert_ne!(first, uid("busybox:1", "/m/b.yaml", "n"));
        assert_ne!(first, uid("busybox:1", "/m/a.yaml", "o"));
        // Golden: a new release must not restart every static pod of a node.
        assert_eq!(first, "da9d5942cc5f397b0632f9fe7e3e6b31");
    }

    #[test]
    fn a_uid_that_the_manifest_sets_is_kept() {
        let mut object = pod(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "mine"},
            "spec": {"containers": []},
        }));
        apply_static_defaults(&mut object, Origin::Url("http://x/"), "n");
        assert_eq!(object.metadata.uid.as_deref(), Some("mine"));
        assert_eq!(object.spec.unwrap().tolerations, None);
    }
}
