//! Manifests, built from a few words. They are JSON, which is YAML as well.

use std::fmt;

use serde_json::{Value, json};

/// The image that all containers run.
pub(crate) const IMAGE: &str = "skep.local/busybox:1";

/// Runs until it is told to end, and then ends well and at once.
pub(crate) const STAY: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A pod's manifest.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    value: Value,
    /// Where the container that was added last is.
    last: String,
}

/// A pod whose containers have two seconds to end.
pub(crate) fn pod(name: &str) -> Manifest {
    Manifest {
        value: json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 2, "initContainers": [], "containers": []},
        }),
        last: String::new(),
    }
}

impl Manifest {
    /// A container that runs a shell script.
    pub(crate) fn container(self, name: &str, script: &str) -> Self {
        self.add("containers", name, script)
    }

    pub(crate) fn init(self, name: &str, script: &str) -> Self {
        self.add("initContainers", name, script)
    }

    pub(crate) fn sidecar(self, name: &str, script: &str) -> Self {
        self.init(name, script)
            .with(json!({"restartPolicy": "Always"}))
    }

    /// Sets fields of the container that was added last.
    pub(crate) fn with(self, fields: Value) -> Self {
        let at = self.last.clone();
        self.set_at(&at, fields)
    }

    /// Sets fields of the pod's spec.
    pub(crate) fn spec(self, fields: Value) -> Self {
        self.set_at("/spec", fields)
    }

    /// Sets fields of the pod's metadata.
    pub(crate) fn metadata(self, fields: Value) -> Self {
        self.set_at("/metadata", fields)
    }

    fn add(mut self, list: &str, name: &str, script: &str) -> Self {
        let container = json!({
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
        });
        let list = format!("/spec/{list}");
        let containers = self.value.pointer_mut(&list).and_then(Value::as_array_mut);
        let containers = containers.expect("is a list");
        self.last = format!("{list}/{}", containers.len());
        containers.push(container);
        self
    }

    fn set_at(mut self, at: &str, fields: Value) -> Self {
        let Some(Value::Object(target)) = self.value.pointer_mut(at) else {
            panic!("nothing at {at}");
        };
        let Value::Object(fields) = fields else {
            panic!("no fields: {fields}");
        };
        target.extend(fields);
        self
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.value)
    }
}
