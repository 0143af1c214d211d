//! What the kernel said of containers' ends, laid over what the runtime says of them.
//!
//! The kernel is ahead of the runtime by some 50 ms, by seconds in a storm. Once it has shown both
//! the exit of the main process and an empty cgroup, nothing of the container is left, and the exit
//! may be acted on (design 2.1). The runtime's record is compared when it comes: it stands in the
//! status, except for the reason OOMKilled, which is the kernel's to give, and where the runtime
//! lost it (255 / Unknown after a restart of its own).

use std::collections::HashMap;

use crate::{
    metrics,
    types::{
        clock::Mono,
        id::ContainerId,
        kernel::KernelExit,
        runtime::{Container, ContainerState, Exit, RuntimePod, Witness},
    },
};

pub(super) const OOM_KILLED: &str = "OOMKilled";

/// What the kernel has shown of one container's end so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Death {
    /// The main process ended.
    pub(super) exit: Option<(KernelExit, Mono)>,
    /// No process is left.
    pub(super) emptied_at: Option<Mono>,
    /// The main process was a victim of the memory killer.
    pub(super) is_oom: bool,
    /// Some process of the container was.
    pub(super) oom_seen: bool,
    /// The main process, once it is certain which one that is.
    pub(super) main_pid: Option<u32>,
    /// The main process had called exec: the container's own program ran.
    pub(super) has_run: bool,
}

impl Death {
    /// Exit and emptiness are both known: `(exit, when it ended)`.
    fn proof(&self) -> Option<(KernelExit, Mono)> {
        self.emptied_at.and(self.exit)
    }
}

#[derive(Debug, Default)]
pub(super) struct Deaths {
    containers: HashMap<ContainerId, Death>,
}

impl Deaths {
    pub(super) fn entry(&mut self, id: &ContainerId) -> &mut Death {
        self.containers.entry(id.clone()).or_default()
    }

    pub(super) fn get(&self, id: &ContainerId) -> Option<&Death> {
        self.containers.get(id)
    }

    pub(super) fn is_proven(&self, id: &ContainerId) -> bool {
        self.containers
            .get(id)
            .is_some_and(|death| death.proof().is_some())
    }

    /// Its main process ended for certain, or nothing of it is left.
    pub(super) fn has_ended(&self, id: &ContainerId) -> bool {
        self.containers
            .get(id)
            .is_some_and(|death| death.exit.is_some() || death.emptied_at.is_some())
    }

    /// Keeps only containers for which `is_known` holds: removed ones cannot be asked about again.
    pub(super) fn retain(&mut self, is_known: impl Fn(&ContainerId) -> bool) {
        self.containers.retain(|id, _| is_known(id));
    }

    /// Lays the kernel's word over a reading, and keeps an exit that was already recorded: a
    /// container never runs again, so a reading that says so, or that still stands on the kernel's
    /// word, is an older one.
    pub(super) fn lay_over(&self, reading: &mut RuntimePod, known: Option<&RuntimePod>) {
        for container in &mut reading.containers {
            let before = known.and_then(|known| known.container(&container.id));
            let is_older = match &container.state {
                ContainerState::Running { .. } => true,
                ContainerState::Exited(exit) => exit.witness == Witness::Kernel,
                ContainerState::Created | ContainerState::Unknown => false,
            };
            if let Some(exit) = before.and_then(|before| before.state.exit())
                && is_older
                && exit.witness == Witness::Runtime
            {
                container.state = ContainerState::Exited(exit.clone());
            }
            let Some(death) = self.containers.get(&container.id) else {
                continue;
            };
            match &mut container.state {
                ContainerState::Running { started_at } => {
                    let started_at = *started_at;
                    if let Some((exit, at)) = death.proof() {
                        container.state =
                            ContainerState::Exited(kernel_exit(exit, at, Some(started_at), death));
                    }
                }
                ContainerState::Exited(exit) if exit.witness == Witness::Runtime => {
                    correct(exit, death);
                }
                ContainerState::Unknown => {
                    // The runtime lost it and has no record to come: the kernel's value stands.
                    if let (Some((exit, at)), true) = (death.proof(), death.has_run) {
                        container.state = ContainerState::Exited(Exit {
                            witness: Witness::Runtime,
                            ..kernel_exit(exit, at, None, death)
                        });
                    }
                }
                ContainerState::Exited(_) | ContainerState::Created => {}
            }
        }
    }

    /// The runtime's record of an exit is here: compares it with the kernel's word and counts.
    /// Returns how long the runtime lagged behind the kernel, in seconds.
    pub(super) fn compare(&self, container: &Container, now: Mono) -> Option<f64> {
        let exit = container.state.exit()?;
        let death = self.containers.get(&container.id)?;
        let (kernel, at) = death.exit?;
        if !is_lost(exit) {
            if exit.code != kernel.code() && is_main_exit_reported(exit) {
                metrics::EXIT_MISMATCH.add(1, &[("field", "code")]);
                tracing::warn!(
                    container = %container.id, runtime = exit.code, kernel = kernel.code(),
                    "The runtime recorded another exit code than the kernel",
                );
            }
            if exit.signal != 0 && kernel != KernelExit::Signal(exit.signal.unsigned_abs() as u8) {
                metrics::EXIT_MISMATCH.add(1, &[("field", "signal")]);
            }
        }
        Some(now.since(at).as_secs_f64())
    }
}

/// The runtime restarted and found the container gone: its code and reason are made up.
fn is_lost(exit: &Exit) -> bool {
    exit.code == 255 && exit.reason == "Unknown"
}

/// A container whose program could not be started gets a code of the runtime's own (128, and
/// reason StartError or ContainerCannotRun): there is nothing to compare.
fn is_main_exit_reported(exit: &Exit) -> bool {
    !matches!(exit.reason.as_str(), "StartError" | "ContainerCannotRun")
}

fn kernel_exit(
    exit: KernelExit,
    at: Mono,
    started_at: Option<jiff::Timestamp>,
    death: &Death,
) -> Exit {
    let reason = match exit.code() {
        _ if death.is_oom => OOM_KILLED,
        0 => "Completed",
        _ => "Error",
    };
    Exit {
        code: exit.code(),
        // The CRI has no signal; upstream's status says 0.
        signal: 0,
        reason: reason.to_owned(),
        message: String::new(),
        started_at,
        finished_at: at.to_wall(),
        witness: Witness::Kernel,
        oom_seen: death.oom_seen,
    }
}

/// Mends the runtime's record where the kernel knows better.
fn correct(exit: &mut Exit, death: &Death) {
    exit.oom_seen |= death.oom_seen;
    if is_lost(exit)
        && let Some((kernel, at)) = death.exit
    {
        let known = kernel_exit(kernel, at, exit.started_at, death);
        *exit = Exit {
            witness: Witness::Runtime,
            ..known
        };
    }
    if death.is_oom && exit.reason != OOM_KILLED {
        exit.reason = OOM_KILLED.to_owned();
    }
}

#[cfg(test)]
#[path = "deaths/tests.rs"]
mod tests;
