//! What is measured, as a black box: an agent that is given manifests, or the floor, which is the
//! bench itself driving the runtime.

mod agent;
mod asked;
mod floor;
pub mod settings;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

pub use self::{
    agent::Agent,
    floor::{Floor, Placed, Removed},
};
use crate::{
    clock::Nanos,
    node::Node,
    pods::Pod,
    record::{Subject, Versions},
};

/// The agents' programs, as far as they were given.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub kubelet: Option<PathBuf>,
    pub skep: Option<PathBuf>,
}

impl Programs {
    /// The subject's; none for the floor. A program that was not given is an error.
    fn of(&self, subject: Subject) -> Result<Option<&PathBuf>> {
        match subject {
            Subject::Kubelet | Subject::KubeletEvented => self
                .kubelet
                .as_ref()
                .context("--kubelet is missing")
                .map(Some),
            Subject::SkepKernel | Subject::SkepStream | Subject::SkepListing => {
                self.skep.as_ref().context("--skep is missing").map(Some)
            }
            Subject::Floor => Ok(None),
        }
    }
}

/// A subject that is ready for pods.
#[derive(Debug)]
pub enum Running {
    Agent(Agent),
    Floor(Floor),
}

impl Running {
    /// Returns once it is ready.
    pub async fn start(subject: Subject, programs: &Programs, node: &Node) -> Result<Self> {
        let Some(program) = programs.of(subject)? else {
            return Ok(Self::Floor(Floor::new(node)));
        };
        Ok(Self::Agent(Agent::start(subject, program, node).await?))
    }

    /// Gives it the pod. An agent has it once the manifest's rename is done, and this returns then,
    /// with the time right before the rename; the floor has made the pod when this returns.
    pub async fn place(&self, pod: &Pod) -> Result<Nanos> {
        match self {
            Self::Agent(agent) => agent.place(pod),
            Self::Floor(floor) => Ok(floor.place(pod).await?.began),
        }
    }

    /// Takes the pod away; an agent does the work later.
    pub async fn remove(&self, pod: &str) -> Result<()> {
        match self {
            Self::Agent(agent) => agent.remove(pod),
            Self::Floor(floor) => {
                floor.remove(pod).await?;
                Ok(())
            }
        }
    }

    /// None for the floor.
    pub fn agent(&self) -> Option<&Agent> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::Floor(_) => None,
        }
    }

    pub fn agent_mut(&mut self) -> Option<&mut Agent> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::Floor(_) => None,
        }
    }

    /// None for an agent.
    pub fn floor(&self) -> Option<&Floor> {
        match self {
            Self::Agent(_) => None,
            Self::Floor(floor) => Some(floor),
        }
    }

    /// What the subject's pods have behind their names in the runtime.
    pub fn suffix(subject: Subject) -> &'static str {
        match subject {
            Subject::Floor => "",
            Subject::Kubelet
            | Subject::KubeletEvented
            | Subject::SkepKernel
            | Subject::SkepStream
            | Subject::SkepListing => settings::NODE_SUFFIX,
        }
    }

    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Agent(agent) => agent.stop().await,
            Self::Floor(_) => Ok(()),
        }
    }
}

/// What runs, for the records.
pub async fn versions(subject: Subject, programs: &Programs, node: &Node) -> Result<Versions> {
    let agent = match programs.of(subject)? {
        None => "none".to_owned(),
        Some(program) => {
            let program = program.to_str().context("a program's name is no text")?;
            let is_skep = programs
                .skep
                .as_deref()
                .is_some_and(|skep| skep.as_os_str() == program);
            let args: &[&str] = if is_skep {
                &["version"]
            } else {
                &["--version"]
            };
            node.version_of(program, args).await?
        }
    };
    Ok(Versions {
        agent,
        containerd: node.version_of("containerd", &["--version"]).await?,
        runc: node.version_of("runc", &["--version"]).await?,
    })
}
