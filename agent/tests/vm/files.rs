//! Files of a pod's cgroups.

use std::{fs, path::PathBuf};

use crate::node::{
    Node,
    yaml::{self, Manifest},
};

/// A pod on the host's network: nothing here is about that.
pub(crate) fn pod(name: &str) -> Manifest {
    yaml::pod(name).spec(serde_json::json!({"hostNetwork": true}))
}

/// A folder of cgroups, named from the node's own.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// By the name that [`Node::pod_cgroup`] gives, or one above it.
    pub(crate) fn new(name: &str) -> Self {
        let dir = PathBuf::from("/sys/fs/cgroup").join(name);
        assert!(dir.is_dir(), "no cgroup {}", dir.display());
        Self(dir)
    }

    /// The container's, below its pod's.
    pub(crate) async fn of(node: &Node, pod: &str, class: &str, container: &str) -> Self {
        let id = node.container_id(pod, container).await;
        Self::new(&format!("{}/{id}", node.pod_cgroup(pod, class).await))
    }

    /// What the files hold.
    pub(crate) fn read<const N: usize>(&self, files: [&str; N]) -> [String; N] {
        files.map(|file| {
            let path = self.0.join(file);
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            text.trim().to_owned()
        })
    }
}
