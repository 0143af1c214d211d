//! The pods that all subjects are given: a description that becomes a manifest for an agent, and
//! CRI calls for the floor.
//!
//! All are in the host's network where nothing else is said, so that no network plugin's time is
//! measured, and have no probes, volumes of their own or requests.

use serde_json::{Value, json};

pub const PAUSE_IMAGE: &str = "skep.local/pause:1";
pub const BUSYBOX_IMAGE: &str = "skep.local/busybox:1";
/// Containers are named so where nothing else is said.
pub const MAIN: &str = "main";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub init: Vec<Container>,
    /// At least one.
    pub containers: Vec<Container>,
    pub network: Network,
    /// Whether containers that end are started again.
    pub is_restarted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The box's.
    Host,
    /// One of its own, on the bridge of [`crate::node::Node::add_bridge`].
    Bridge,
}

impl Network {
    /// For records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Bridge => "bridge",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub image: String,
    /// That of the image, which agents name to the runtime.
    pub user: i64,
    /// Empty: what the image says.
    pub command: Vec<String>,
    /// `resources.limits.memory`, in MiB.
    pub memory_mib: Option<u32>,
}

impl Container {
    /// Does nothing, for ever, and ends at SIGTERM.
    pub fn pause() -> Self {
        Self {
            name: MAIN.to_owned(),
            image: PAUSE_IMAGE.to_owned(),
            user: 65535,
            command: Vec::new(),
            memory_mib: None,
        }
    }

    /// Runs a command of busybox.
    pub fn busybox(name: &str, command: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            image: BUSYBOX_IMAGE.to_owned(),
            user: 0,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            memory_mib: None,
        }
    }

    fn manifest(&self) -> Value {
        let mut value = json!({
            "name": self.name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
        });
        if !self.command.is_empty() {
            value["command"] = json!(self.command);
        }
        if let Some(mib) = self.memory_mib {
            value["resources"] = json!({"limits": {"memory": format!("{mib}Mi")}});
        }
        value
    }
}

impl Pod {
    /// One container that does nothing.
    pub fn pause(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            init: Vec::new(),
            containers: vec![Container::pause()],
            network: Network::Host,
            is_restarted: true,
        }
    }

    /// So many init containers, `i0` and on, that sleep for so many seconds; then one that does
    /// nothing.
    pub fn chain(name: &str, steps: usize, seconds: &str) -> Self {
        Self {
            init: (0..steps)
                .map(|step| Container::busybox(&format!("i{step}"), &["sleep", seconds]))
                .collect(),
            ..Self::pause(name)
        }
    }

    /// The static pod's file, for any agent.
    pub fn manifest(&self) -> String {
        let of = |containers: &[Container]| -> Vec<_> {
            containers.iter().map(Container::manifest).collect()
        };
        let mut spec = json!({
            "hostNetwork": self.network == Network::Host,
            "restartPolicy": if self.is_restarted { "Always" } else { "Never" },
            "terminationGracePeriodSeconds": 2,
            "containers": of(&self.containers),
        });
        if !self.init.is_empty() {
            spec["initContainers"] = json!(of(&self.init));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": spec,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_its_steps_in_order_before_the_main_container() {
        let text = Pod::chain("c", 2, "0.01").manifest();
        let pod: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(pod["spec"]["initContainers"][1]["name"], "i1");
        assert_eq!(
            pod["spec"]["initContainers"][1]["command"],
            json!(["sleep", "0.01"])
        );
        assert_eq!(pod["spec"]["containers"][0]["name"], "main");
        assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
    }
}
