//! The phase of a pod, from the states of its containers (COND-01, COND-02).

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus};

use crate::types::pod::{Pod, Role};

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn text(self) -> &'static str {
        self.into()
    }

    pub fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    pub fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running => false,
        }
    }
}

/// What a container's status says for the phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// No status, or one without a state.
    Unknown,
    Running,
    /// Never ran.
    Waiting,
    /// Ended, or waits to be started again after an end.
    Stopped {
        code: i32,
        is_waiting: bool,
    },
}

fn standing(status: Option<&&ContainerStatus>) -> Standing {
    let Some(status) = status else {
        return Standing::Unknown;
    };
    match &status.state {
        Some(ContainerState {
            running: Some(_), ..
        }) => Standing::Running,
        Some(ContainerState {
            terminated: Some(end),
            ..
        }) => Standing::Stopped {
            code: end.exit_code,
            is_waiting: false,
        },
        Some(ContainerState {
            waiting: Some(_), ..
        }) => {
            let last = status.last_state.as_ref();
            match last.and_then(|last| last.terminated.as_ref()) {
                Some(end) => Standing::Stopped {
                    code: end.exit_code,
                    is_waiting: true,
                },
                None => Standing::Waiting,
            }
        }
        Some(_) | None => Standing::Unknown,
    }
}

/// `statuses` are those of all containers. `has_initialized`: a regular container has a record in
/// the present sandbox, so sidecars that restart don't make the pod Pending again.
pub fn phase(
    pod: &Pod,
    statuses: &[&ContainerStatus],
    is_terminal: bool,
    has_initialized: bool,
) -> Phase {
    let of = |wanted: &Container| {
        let status = statuses.iter().find(|status| status.name == wanted.name);
        (
            standing(status),
            status.is_some_and(|s| s.started == Some(true)),
        )
    };
    let (mut pending_init, mut pending_sidecars) = (0, 0);
    let (mut unknown, mut running, mut waiting) = (0, 0, 0);
    let (mut stopped, mut succeeded, mut restartable) = (0, 0, 0);

    for (container, role) in pod.all_containers() {
        let (standing, is_started) = of(container);
        match (role, standing) {
            (Role::Init, Standing::Stopped { code: 0, .. }) => {}
            (Role::Init, Standing::Stopped { code, .. }) => {
                // Before anything else: such a pod is over whatever the others do.
                if !pod.should_restart(container, code) {
                    return Phase::Failed;
                }
            }
            (Role::Init, Standing::Unknown | Standing::Running | Standing::Waiting) => {
                pending_init += 1;
            }

            (Role::Sidecar, Standing::Running) => {
                running += 1;
                pending_sidecars += i32::from(!is_started);
            }
            (Role::Sidecar, Standing::Stopped { .. }) => {}
            (Role::Sidecar, Standing::Waiting) => {
                pending_sidecars += 1;
                waiting += 1;
            }
            (Role::Sidecar, Standing::Unknown) => {
                let has_status = statuses.iter().any(|status| status.name == container.name);
                pending_sidecars += i32::from(has_status);
                unknown += 1;
            }

            (Role::Regular, Standing::Running) => running += 1,
            (Role::Regular, Standing::Stopped { code, is_waiting }) => {
                stopped += 1;
                restartable += i32::from(pod.should_restart(container, code));
                succeeded += i32::from(code == 0 && !is_waiting);
            }
            (Role::Regular, Standing::Waiting) => waiting += 1,
            (Role::Regular, Standing::Unknown) => unknown += 1,
        }
    }

    let is_pending = pending_init > 0 || (pending_sidecars > 0 && !has_initialized) || waiting > 0;
    if is_pending || unknown > 0 || (running == 0 && stopped == 0) {
        Phase::Pending
    } else if running > 0 || (restartable > 0 && (pod.is_static() || !is_terminal)) {
        Phase::Running
    } else if stopped == succeeded {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}
