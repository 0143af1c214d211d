//! All settings of all subjects.
//!
//! What makes the comparison fair:
//! - one configuration file for both agents, [`config`], with upstream's defaults for everything
//!   that is not named there: the same folders, log level (`--v=2`), back-off, sync frequency,
//!   the same pods from the same folder, the same containerd with the same configuration;
//! - what differs is in [`plan`], and only there.
//!
//! What it can't make equal: Skep does not yet gather statistics (cAdvisor's part), evict, or run
//! probes, and the kubelet does, so figures for CPU and memory compare what the two are today. The
//! pods have no probes; the kubelet's eviction has one signal, which never comes.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::record::Subject;

/// The node's name, which static pods have behind their own.
pub const NODE_NAME: &str = "node";
/// The same with what joins them.
pub const NODE_SUFFIX: &str = "-node";
/// In the box's own network.
pub const HEALTHZ: &str = "127.0.0.1:10248";
/// Pods, `/metrics`: without authentication.
pub const READ_ONLY: &str = "127.0.0.1:10255";
/// More than any bench makes.
const MAX_PODS: u32 = 250;

/// Where an agent finds its things.
#[derive(Clone, Debug)]
pub struct Places {
    /// The turn's folder.
    pub dir: PathBuf,
    /// The runtime's.
    pub endpoint: String,
    /// All pods' cgroup.
    pub cgroup_root: String,
}

impl Places {
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    pub fn root(&self) -> PathBuf {
        self.dir.join("agent")
    }

    pub fn config_file(&self) -> PathBuf {
        self.dir.join("agent.yaml")
    }
}

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub args: Vec<OsString>,
    /// The file of `--config`.
    pub config: Value,
    /// Feature gates that are not at their defaults.
    pub gates: BTreeMap<String, bool>,
}

/// None for the floor, which has no agent.
pub fn plan(subject: Subject, places: &Places) -> Option<Plan> {
    let mut config = config(places);
    let mut gates = BTreeMap::new();
    let mut args = Vec::new();
    let mut mode = None;
    match subject {
        Subject::Floor => return None,
        Subject::Kubelet => {}
        Subject::KubeletEvented => {
            // Its precondition, PLEGOnDemandRelist, is on and cannot be turned off.
            gates.insert("EventedPLEG".to_owned(), true);
        }
        Subject::SkepKernel => mode = Some("kernel"),
        Subject::SkepStream => mode = Some("stream"),
        Subject::SkepListing => mode = Some("listing"),
    }
    let path = |name: &str, path: &Path| {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(path);
        arg
    };
    if let Some(mode) = mode {
        args.push("run".into());
        args.push(format!("--pleg-mode={mode}").into());
    } else {
        // Without it the kubelet ends on a machine where it may not write oom_score_adj and some of
        // /proc/sys; it then goes on without. Skep finds out by itself.
        gates.insert("KubeletInUserNamespace".to_owned(), true);
        config["featureGates"] = json!(gates);
        // Skep has no eviction yet, and takes no settings for it. One signal, which never comes.
        config["evictionHard"] = json!({"memory.available": "1Mi"});
        // Skep has no authenticated API yet, and takes no folder for its certificates.
        args.push(path("cert-dir", &places.root().join("pki")));
    }
    args.push(path("config", &places.config_file()));
    args.push(path("root-dir", &places.root()));
    args.push(format!("--hostname-override={NODE_NAME}").into());
    args.push("--v=2".into());
    Some(Plan {
        args,
        config,
        gates,
    })
}

/// The configuration of both agents.
fn config(places: &Places) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": places.manifests(),
        "containerRuntimeEndpoint": places.endpoint,
        "podLogsDir": places.dir.join("logs/pods"),
        "cgroupRoot": places.cgroup_root,
        "cgroupDriver": "cgroupfs",
        "maxPods": MAX_PODS,
        "healthzPort": 10248,
        "readOnlyPort": 10255,
        // The machine's, not the subject's: cgroup v1 and swap are allowed, nothing is enforced on
        // the machine's own groups, no firewall rules.
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": false,
        // There is no API server to ask.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            dir: "/t".into(),
            endpoint: "unix:///t/c.sock".to_owned(),
            cgroup_root: "/b".to_owned(),
        }
    }

    #[test]
    fn both_agents_get_the_same_file_apart_from_the_peers_gates_and_eviction() {
        let mut kubelet = plan(Subject::KubeletEvented, &places()).unwrap().config;
        let fields = kubelet.as_object_mut().unwrap();
        let gates = fields.remove("featureGates");
        assert!(fields.remove("evictionHard").is_some());
        assert_eq!(
            gates,
            Some(json!({"EventedPLEG": true, "KubeletInUserNamespace": true}))
        );
        let skep = plan(Subject::SkepListing, &places()).unwrap();
        assert_eq!(kubelet, skep.config);
        assert_eq!(skep.args[..2], ["run", "--pleg-mode=listing"]);
        assert_eq!(plan(Subject::Floor, &places()), None);
    }
}
