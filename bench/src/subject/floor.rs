//! The floor: the same pods by bare CRI calls, each made as soon as the kernel says that what it
//! waits for is over. No agent can be faster on this runtime.

use std::{cell::RefCell, collections::HashMap, time::Duration};

use anyhow::{Context as _, Result};

use super::asked::{self, Places};
use crate::{
    clock::{self, Nanos},
    cri::Cri,
    node::Node,
    pods::Pod,
    process::Victim,
};

/// An init container that has not ended by then never will.
const STEP: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Floor {
    cri: Cri,
    places: Places,
    pods: RefCell<HashMap<String, Made>>,
}

/// When the steps of a pod were over; of several containers, the last one's.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub began: Nanos,
    pub sandbox: Nanos,
    pub created: Nanos,
    pub started: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub struct Removed {
    pub began: Nanos,
    pub stopped: Nanos,
    pub removed: Nanos,
}

#[derive(Clone, Debug)]
struct Made {
    pod: Pod,
    sandbox: String,
    /// How many instances of the main container there were.
    instances: u32,
}

impl Floor {
    pub fn new(node: &Node) -> Self {
        Self {
            cri: node.cri.clone(),
            places: Places {
                cgroup: node.cgroups.pods(),
                logs: node.dir.join("logs/pods"),
                files: node.dir.join("pods"),
            },
            pods: RefCell::default(),
        }
    }

    /// Makes the pod; returns when each step was over.
    pub async fn place(&self, pod: &Pod) -> Result<Placed> {
        let began = clock::now();
        let config = asked::sandbox(pod, &self.places)?;
        let sandbox = self.cri.run_sandbox(config.clone()).await?;
        let has_sandbox = clock::now();
        for step in &pod.init {
            let id = self
                .cri
                .create(
                    &sandbox,
                    asked::container(pod, step, 0, &self.places)?,
                    config.clone(),
                )
                .await?;
            self.cri.start(&id).await?;
            // One that is so short may be gone before it can be asked for.
            let victim = self.cri.main_pid(&id).await.and_then(Victim::open);
            if let Ok(victim) = victim {
                let gone = victim.gone(STEP).await?;
                gone.context("an init container does not end")?;
            }
        }
        let mut created = has_sandbox;
        for container in &pod.containers {
            let container = asked::container(pod, container, 0, &self.places)?;
            let id = self.cri.create(&sandbox, container, config.clone()).await?;
            created = clock::now();
            self.cri.start(&id).await?;
        }
        let started = clock::now();
        let made = Made {
            pod: pod.clone(),
            sandbox,
            instances: 1,
        };
        self.pods.borrow_mut().insert(pod.name.clone(), made);
        Ok(Placed {
            began,
            sandbox: has_sandbox,
            created,
            started,
        })
    }

    /// Starts the pod's first container anew, as an agent does after its exit.
    pub async fn replace(&self, pod: &str) -> Result<()> {
        let made = {
            let mut pods = self.pods.borrow_mut();
            let made = pods.get_mut(pod).context("no such pod")?;
            made.instances += 1;
            made.clone()
        };
        let config = asked::sandbox(&made.pod, &self.places)?;
        let container = made.pod.containers.first().context("no container")?;
        let container = asked::container(&made.pod, container, made.instances - 1, &self.places)?;
        let id = self.cri.create(&made.sandbox, container, config).await?;
        self.cri.start(&id).await
    }

    /// Returns when each step was over.
    pub async fn remove(&self, pod: &str) -> Result<Removed> {
        let began = clock::now();
        let made = self.pods.borrow_mut().remove(pod);
        let sandbox = made.context("no such pod")?.sandbox;
        self.cri.stop_sandbox(&sandbox).await?;
        let stopped = clock::now();
        self.cri.remove_sandbox(&sandbox).await?;
        Ok(Removed {
            began,
            stopped,
            removed: clock::now(),
        })
    }
}
