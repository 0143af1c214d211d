//! The words of a pod's line in a table, as `kubectl get pods` prints them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};

use super::{Phase, PodRecord};
use crate::types::{
    pod::Role,
    reason::{terminated, waiting},
};

/// READY, STATUS and RESTARTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    pub ready: usize,
    /// Regular containers and sidecars.
    pub total: usize,
    /// `Running`, `Init:0/1`, `CrashLoopBackOff`, `Completed`, `OOMKilled`, `Terminating` ...
    pub status: String,
    pub restarts: i32,
    /// When the newest instance that was restarted had ended.
    pub last_restart: Option<Timestamp>,
}

pub fn printed(record: &PodRecord) -> Printed {
    let (pod, status) = (&record.pod, &record.status);
    let phase = status.phase.as_deref().unwrap_or_default();
    let sidecars = pod
        .init_containers()
        .filter(|(_, role)| *role == Role::Sidecar)
        .count();
    let mut line = Printed {
        ready: 0,
        total: pod.regular_containers().count() + sidecars,
        status: status.reason.as_deref().unwrap_or(phase).to_owned(),
        restarts: 0,
        last_restart: None,
    };

    let (init, sidecar_restarts) = print_init(record, &mut line);
    let has = |type_: &str| {
        let mut all = status.conditions.iter().flatten();
        all.any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    if init.is_none() || has("Initialized") {
        (line.restarts, line.last_restart) = sidecar_restarts;
        print_regular(record, &mut line, has("Ready"));
    } else if let Some(word) = init {
        line.status = word;
    }
    let is_over = Phase::from_text(phase).is_some_and(Phase::is_terminal);
    if record.is_terminating && !is_over {
        line.status = "Terminating".to_owned();
    }
    line
}

/// Counts init containers up to the first that is not done, and says what that one is at. The
/// second value is the restarts of sidecars alone.
fn print_init(
    record: &PodRecord,
    line: &mut Printed,
) -> (Option<String>, (i32, Option<Timestamp>)) {
    let mut sidecars = (0, None);
    let statuses = record.status.init_container_statuses.iter().flatten();
    let roles: Vec<_> = record.pod.init_containers().collect();
    for (index, status) in statuses.enumerate() {
        let is_sidecar = roles
            .iter()
            .any(|(c, role)| c.name == status.name && *role == Role::Sidecar);
        line.restarts += status.restart_count;
        line.last_restart = line.last_restart.max(last_end(status));
        if is_sidecar {
            sidecars.0 += status.restart_count;
            sidecars.1 = sidecars.1.max(last_end(status));
        }
        let state = status.state.as_ref();
        let end = state.and_then(|state| state.terminated.as_ref());
        let wait = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        let word = match (end, wait) {
            (Some(end), _) if end.exit_code == 0 => continue,
            _ if is_sidecar && status.started == Some(true) => {
                line.ready += usize::from(status.ready);
                continue;
            }
            (Some(end), _) => format!("Init:{}", end_word(end)),
            (None, Some(reason)) if reason != waiting::POD_INITIALIZING => {
                format!("Init:{reason}")
            }
            (None, _) => format!("Init:{index}/{}", roles.len()),
        };
        return (Some(word), sidecars);
    }
    (None, sidecars)
}

fn print_regular(record: &PodRecord, line: &mut Printed, is_ready: bool) {
    let mut has_running = false;
    let mut error = None;
    let statuses = record.status.container_statuses.as_deref();
    // From the last to the first: the first has the last word.
    for status in statuses.unwrap_or_default().iter().rev() {
        line.restarts += status.restart_count;
        line.last_restart = line.last_restart.max(last_end(status));
        let state = status.state.as_ref();
        let end = state.and_then(|state| state.terminated.as_ref());
        if let Some(reason) = state.and_then(|state| state.waiting.as_ref()?.reason.as_ref()) {
            line.status.clone_from(reason);
        } else if let Some(end) = end {
            line.status = end_word(end);
            if end.exit_code != 0 {
                error = Some(line.status.clone());
            }
        } else if status.ready && state.is_some_and(|state| state.running.is_some()) {
            has_running = true;
            line.ready += 1;
        }
    }
    if line.status == terminated::COMPLETED {
        if has_running && is_ready {
            line.status = Phase::Running.text().to_owned();
        } else if let Some(error) = error {
            line.status = error;
        } else if has_running {
            line.status = "NotReady".to_owned();
        }
    }
}

fn end_word(end: &ContainerStateTerminated) -> String {
    match (end.reason.as_deref(), end.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", end.exit_code),
    }
}

fn last_end(status: &ContainerStatus) -> Option<Timestamp> {
    let last = status.last_state.as_ref()?.terminated.as_ref()?;
    Some(last.finished_at.as_ref()?.0)
}
