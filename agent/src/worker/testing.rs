//! Pods for the tests of this module.

use serde_json::{Value, json};

use crate::types::pod::{Pod, SourceKind};

/// The pod `default/web` of uid `uid-1` with one container `app`; `fields` are laid over its spec.
pub(crate) fn pod(fields: Value) -> Pod {
    let mut object = json!({
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "uid-1",
            "labels": {"app": "web"},
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {
            "containers": [{
                "name": "app",
                "image": "busybox:1",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": true,
            "nodeName": "node-1",
            "restartPolicy": "Always",
            "serviceAccountName": "sa",
            "terminationGracePeriodSeconds": 30,
        },
    });
    let Value::Object(fields) = fields else {
        panic!("fields of a spec are an object");
    };
    for (name, value) in fields {
        object["spec"][name] = value;
    }
    Pod::new(
        serde_json::from_value(object).expect("a pod"),
        SourceKind::File,
    )
}

/// As `pod`, with `fields` laid over its one container.
pub(crate) fn pod_with_container(fields: Value) -> Pod {
    let mut container = json!({
        "name": "app",
        "image": "busybox:1",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    });
    let Value::Object(fields) = fields else {
        panic!("fields of a container are an object");
    };
    for (name, value) in fields {
        container[name] = value;
    }
    pod(json!({"containers": [container]}))
}
