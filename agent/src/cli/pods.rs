//! `skep pods`.

use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    List,
    api::core::v1::{ContainerState, ContainerStatus, Pod as PodObject},
};

use super::{
    args::PodsArguments,
    client::Client,
    find_pod, key_of,
    output::{self, Format},
    table::Table,
    time::human,
};
use crate::{server::wire, types::clock};

pub(super) async fn pods(client: &Client, options: &PodsArguments) -> anyhow::Result<ExitCode> {
    let (pods, node) = match &options.pod {
        Some(name) => (vec![find_pod(client, name).await?], None),
        None => {
            let all: wire::Pods = client.get("/v1/pods").await?;
            (all.pods, Some(all.node))
        }
    };
    let now = clock::wall_now();
    let objects = List::<PodObject> {
        items: pods.iter().map(|pod| pod.object.clone()).collect(),
        ..List::default()
    };
    output::show(options.output.output, &objects, || {
        if options.containers {
            container_table(&pods, now)
        } else {
            pod_table(&pods, now)
        }
    })?;
    // Only people are told: programs ask `status`.
    if node.is_some() && options.output.output == Format::Table {
        let status: wire::Status = client.get("/v1/status").await?;
        if pods.is_empty() {
            eprintln!("No pods.");
        }
        for refusal in &status.agent.refusals {
            eprintln!("refused: {}: {}", refusal.origin, refusal.message);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn pod_table(pods: &[wire::PodView], now: Timestamp) -> String {
    let mut table = Table::new(&[
        "NAMESPACE",
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
    ]);
    for pod in pods {
        let key = key_of(pod);
        let printed = &pod.printed;
        let restarts = match printed.last_restart {
            Some(at) if printed.restarts > 0 => {
                format!("{} ({} ago)", printed.restarts, age(at, now))
            }
            Some(_) | None => printed.restarts.to_string(),
        };
        let status = pod.object.status.as_ref();
        let spec = pod.object.spec.as_ref();
        table.push(vec![
            key.namespace.to_string(),
            key.name.to_string(),
            format!("{}/{}", printed.ready, printed.total),
            printed.status.clone(),
            restarts,
            born(&pod.object).map_or_else(unknown, |at| age(at, now)),
            status
                .and_then(|status| status.pod_ip.clone())
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(none),
            spec.and_then(|spec| spec.node_name.clone())
                .unwrap_or_else(none),
        ]);
    }
    table.take()
}

/// A static pod has no creation time: it is as old as the agent's first look at it.
fn born(pod: &PodObject) -> Option<Timestamp> {
    let created = pod.metadata.creation_timestamp.as_ref();
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    created.or(started).map(|time| time.0)
}

fn container_table(pods: &[wire::PodView], now: Timestamp) -> String {
    let mut table = Table::new(&[
        "NAMESPACE",
        "POD",
        "CONTAINER",
        "KIND",
        "READY",
        "STATE",
        "RESTARTS",
        "AGE",
        "LAST EXIT",
    ]);
    for pod in pods {
        let key = key_of(pod);
        for (kind, name, status) in containers(&pod.object) {
            let state = status.and_then(|status| status.state.as_ref());
            let last = status.and_then(|status| status.last_state.as_ref());
            table.push(vec![
                key.namespace.to_string(),
                key.name.to_string(),
                name.to_owned(),
                kind.to_owned(),
                status.is_some_and(|status| status.ready).to_string(),
                state.map_or_else(unknown, state_word),
                status.map_or(0, |status| status.restart_count).to_string(),
                state
                    .and_then(|state| state.running.as_ref()?.started_at.as_ref())
                    .map_or_else(none, |at| age(at.0, now)),
                // The current end is the last one too.
                state
                    .filter(|state| state.terminated.is_some())
                    .or(last)
                    .and_then(|state| exit_text(state, now))
                    .unwrap_or_else(none),
            ]);
        }
    }
    table.take()
}

/// Kind, name and status: init containers first, as they run.
fn containers(pod: &PodObject) -> Vec<(&'static str, &str, Option<&ContainerStatus>)> {
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let find = |name: &str| {
        let of = |statuses: &Option<Vec<ContainerStatus>>| -> Option<usize> {
            statuses
                .iter()
                .flatten()
                .position(|status| status.name == name)
        };
        let status = status?;
        let init = of(&status.init_container_statuses);
        match (init, of(&status.container_statuses)) {
            (Some(at), _) => status.init_container_statuses.as_ref()?.get(at),
            (None, Some(at)) => status.container_statuses.as_ref()?.get(at),
            (None, None) => None,
        }
    };
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let init = init.into_iter().flatten().map(|container| {
        let kind = match container.restart_policy.as_deref() {
            Some("Always") => "sidecar",
            Some(_) | None => "init",
        };
        (kind, container)
    });
    let regular = spec.into_iter().flat_map(|spec| &spec.containers);
    init.chain(regular.map(|container| ("container", container)))
        .map(|(kind, container)| (kind, container.name.as_str(), find(&container.name)))
        .collect()
}

fn state_word(state: &ContainerState) -> String {
    if state.running.is_some() {
        return "Running".to_owned();
    }
    let reason = match (&state.terminated, &state.waiting) {
        (Some(end), _) => end.reason.clone().or(Some("Terminated".to_owned())),
        (None, Some(waiting)) => waiting.reason.clone().or(Some("Waiting".to_owned())),
        (None, None) => None,
    };
    reason.unwrap_or_else(unknown)
}

/// `OOMKilled (137) 5m ago`.
fn exit_text(state: &ContainerState, now: Timestamp) -> Option<String> {
    let end = state.terminated.as_ref()?;
    let reason = end.reason.as_deref().unwrap_or("Terminated");
    let ago = end
        .finished_at
        .as_ref()
        .map_or_else(String::new, |at| format!(" {} ago", age(at.0, now)));
    Some(format!("{reason} ({}){ago}", end.exit_code))
}

fn age(at: Timestamp, now: Timestamp) -> String {
    human(SignedDuration::from_nanos_i128(
        now.as_nanosecond() - at.as_nanosecond(),
    ))
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

fn none() -> String {
    "<none>".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> wire::PodView {
        let object = serde_saphyr::from_str(
            "
metadata: {name: web-node1, namespace: default}
spec:
  nodeName: node1
  initContainers: [{name: setup, image: i}, {name: proxy, image: i, restartPolicy: Always}]
  containers: [{name: app, image: i}]
status:
  startTime: '2024-01-01T00:00:00Z'
  podIP: 10.0.0.7
  initContainerStatuses:
  - {name: setup, image: i, imageID: x, ready: true, restartCount: 0, state: {terminated: {exitCode: 0, reason: Completed, finishedAt: '2024-01-01T00:00:02Z'}}}
  - {name: proxy, image: i, imageID: x, ready: true, restartCount: 0, state: {running: {startedAt: '2024-01-01T00:00:03Z'}}}
  containerStatuses:
  - {name: app, image: i, imageID: x, ready: false, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 137, reason: OOMKilled, finishedAt: '2024-01-01T00:00:03Z'}}}
",
        )
        .unwrap();
        wire::PodView {
            object,
            is_terminating: false,
            printed: wire::PrintedPod {
                ready: 1,
                total: 2,
                status: "CrashLoopBackOff".into(),
                restarts: 3,
                last_restart: Some("2024-01-01T00:00:03Z".parse().unwrap()),
            },
        }
    }

    #[test]
    fn a_pods_line_reads_as_kubectls() {
        let now = "2024-01-01T00:05:06Z".parse().unwrap();
        assert_eq!(
            pod_table(&[view()], now),
            "\
NAMESPACE   NAME        READY   STATUS             RESTARTS       AGE    IP         NODE
default     web-node1   1/2     CrashLoopBackOff   3 (5m3s ago)   5m6s   10.0.0.7   node1
"
        );
    }

    #[test]
    fn containers_show_their_last_exit() {
        let now = "2024-01-01T00:05:06Z".parse().unwrap();
        assert_eq!(
            container_table(&[view()], now),
            "\
NAMESPACE   POD         CONTAINER   KIND        READY   STATE              RESTARTS   AGE      LAST EXIT
default     web-node1   setup       init        true    Completed          0          <none>   Completed (0) 5m4s ago
default     web-node1   proxy       sidecar     true    Running            0          5m3s     <none>
default     web-node1   app         container   false   CrashLoopBackOff   3          <none>   OOMKilled (137) 5m3s ago
"
        );
    }
}
