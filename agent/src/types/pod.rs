//! A desired pod: its object, and what is derived from it once.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod as PodObject, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{
    id::{PodKey, PodUid},
    resources::{QosClass, qos_class},
};

/// Where a pod comes from; the text is the value of `kubernetes.io/config.source`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SourceKind {
    File,
    Http,
    Api,
}

/// A pod as its source wants it, with defaults filled in and validated. Cheap to clone.
#[derive(Clone)]
pub struct Pod(Arc<Inner>);

struct Inner {
    object: PodObject,
    uid: PodUid,
    key: PodKey,
    source: SourceKind,
    qos: QosClass,
}

/// A container of a pod with the part it plays. Sidecars stand among the init containers of the
/// spec, with `restartPolicy: Always`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Init,
    Sidecar,
    Regular,
}

impl Pod {
    /// `object` must have been through the source's defaults and validation: uid, name and
    /// namespace are set and there is a spec.
    pub fn new(object: PodObject, source: SourceKind) -> Self {
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        let key = PodKey::new(
            object.metadata.namespace.as_deref().unwrap_or("default"),
            object.metadata.name.as_deref().unwrap_or_default(),
        );
        let qos = object.spec.as_ref().map_or(QosClass::BestEffort, qos_class);
        Self(Arc::new(Inner {
            object,
            uid,
            key,
            source,
            qos,
        }))
    }

    pub fn object(&self) -> &PodObject {
        &self.0.object
    }

    pub fn metadata(&self) -> &ObjectMeta {
        &self.0.object.metadata
    }

    pub fn spec(&self) -> &PodSpec {
        self.0
            .object
            .spec
            .as_ref()
            .expect("a source validated that there is a spec")
    }

    pub fn uid(&self) -> &PodUid {
        &self.0.uid
    }

    pub fn key(&self) -> &PodKey {
        &self.0.key
    }

    pub fn source(&self) -> SourceKind {
        self.0.source
    }

    pub fn qos(&self) -> QosClass {
        self.0.qos
    }

    /// File and HTTP pods live without an API server (IsStaticPod).
    pub fn is_static(&self) -> bool {
        matches!(self.0.source, SourceKind::File | SourceKind::Http)
    }

    pub fn is_host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    /// Init containers and sidecars, in the order of the spec.
    pub fn init_containers(&self) -> impl Iterator<Item = (&Container, Role)> {
        self.spec()
            .init_containers
            .iter()
            .flatten()
            .map(|container| {
                let is_sidecar = container.restart_policy.as_deref() == Some("Always");
                (
                    container,
                    if is_sidecar {
                        Role::Sidecar
                    } else {
                        Role::Init
                    },
                )
            })
    }

    pub fn regular_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec().containers.iter()
    }

    /// Every container with its role: init containers and sidecars first, then the regular ones.
    pub fn all_containers(&self) -> impl Iterator<Item = (&Container, Role)> {
        self.init_containers()
            .chain(self.regular_containers().map(|c| (c, Role::Regular)))
    }

    /// Does `container`, which ended with `exit_code`, start again? The container's own rules and
    /// policy come before the pod's (RST-06). Not asked of an init container that succeeded: that
    /// one is done, whatever the policy.
    pub fn should_restart(&self, container: &Container, exit_code: i32) -> bool {
        if let Some(policy) = container.restart_policy.as_deref() {
            let has_rule = container
                .restart_policy_rules
                .iter()
                .flatten()
                .find(|rule| {
                    rule.exit_codes.as_ref().is_some_and(|codes| {
                        let is_listed = codes.values.iter().flatten().any(|&v| v == exit_code);
                        is_listed == (codes.operator == "In")
                    })
                })
                .is_some_and(|rule| rule.action == "Restart");
            return has_rule || restarts(policy, exit_code);
        }
        restarts(
            self.spec().restart_policy.as_deref().unwrap_or("Always"),
            exit_code,
        )
    }

    /// The pod's name as messages of the kubelet have it: `name_namespace(uid)`.
    pub fn described(&self) -> String {
        format!(
            "{}_{}({})",
            self.key().name,
            self.key().namespace,
            self.uid()
        )
    }
}

fn restarts(policy: &str, exit_code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pod({} {})", self.key(), self.uid())
    }
}

impl PartialEq for Pod {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.source == other.0.source && self.0.object == other.0.object)
    }
}
