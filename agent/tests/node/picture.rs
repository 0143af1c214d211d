//! The pods at one moment, and how tests look at them.

use std::fmt;

use agent::server::wire::PodView;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

use super::NAME;

/// All pods of a node at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Picture(pub(crate) Vec<PodView>);

/// What a static pod by that name is called in the end.
pub(super) fn full_name(pod: &str) -> String {
    format!("{pod}-{NAME}")
}

impl Picture {
    /// By the name in its manifest.
    pub(crate) fn pod(&self, name: &str) -> Option<&PodView> {
        let full = full_name(name);
        self.0
            .iter()
            .find(|pod| pod.object.metadata.name.as_ref() == Some(&full))
    }

    pub(crate) fn phase(&self, pod: &str) -> Option<&str> {
        self.pod(pod)?.object.status.as_ref()?.phase.as_deref()
    }

    /// Of any kind.
    pub(crate) fn container(&self, pod: &str, name: &str) -> Option<&ContainerStatus> {
        containers(self.pod(pod)?).find(|status| status.name == name)
    }

    /// The container, if it runs.
    pub(crate) fn running(&self, pod: &str, name: &str) -> Option<&ContainerStatus> {
        self.container(pod, name)
            .filter(|status| is_running(status))
    }

    /// The end of the container's current instance.
    pub(crate) fn terminated(&self, pod: &str, name: &str) -> Option<&ContainerStateTerminated> {
        state(self.container(pod, name)?)?.terminated.as_ref()
    }

    /// The end of the instance before the current one.
    pub(crate) fn last_end(&self, pod: &str, name: &str) -> Option<&ContainerStateTerminated> {
        let last = self.container(pod, name)?.last_state.as_ref()?;
        last.terminated.as_ref()
    }

    /// Why the container waits.
    pub(crate) fn waiting(&self, pod: &str, name: &str) -> Option<&str> {
        let waiting = state(self.container(pod, name)?)?.waiting.as_ref()?;
        waiting.reason.as_deref()
    }

    /// All regular containers of the pod run.
    pub(crate) fn all_run(&self, pod: &str) -> Option<()> {
        let status = self.pod(pod)?.object.status.as_ref()?;
        let wanted = self.pod(pod)?.object.spec.as_ref()?.containers.len();
        let all = status.container_statuses.as_deref().unwrap_or_default();
        let running = all.iter().filter(|status| is_running(status)).count();
        (running == wanted).then_some(())
    }
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}

fn is_running(status: &ContainerStatus) -> bool {
    state(status).is_some_and(|state| state.running.is_some())
}

fn containers(pod: &PodView) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.object.status.as_ref();
    status.into_iter().flat_map(|status| {
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten()
    })
}

impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pod in &self.0 {
            let printed = &pod.printed;
            writeln!(
                f,
                "{} {}/{} {} restarts {}{}",
                pod.object.metadata.name.as_deref().unwrap_or_default(),
                printed.ready,
                printed.total,
                printed.status,
                printed.restarts,
                if pod.is_terminating {
                    " terminating"
                } else {
                    ""
                },
            )?;
            for status in containers(pod) {
                let shown = |state: &Option<ContainerState>| {
                    serde_json::to_string(state).unwrap_or_default()
                };
                writeln!(
                    f,
                    "  {} restarts {} state {} last {}",
                    status.name,
                    status.restart_count,
                    shown(&status.state),
                    shown(&status.last_state),
                )?;
            }
        }
        Ok(())
    }
}

/// From the Prometheus text.
pub(super) fn sum_of_series(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with(['{', ' ']))
        .filter(|rest| {
            labels
                .iter()
                .all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")))
        })
        .map(|rest| {
            let (_, value) = rest.rsplit_once(' ').expect("a series has a value");
            value.parse::<f64>().expect("a value is a number")
        })
        // A sum of nothing is -0.
        .fold(0.0, |sum, value| sum + value)
}
