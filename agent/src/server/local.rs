//! The commands' API on the local socket.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/pods` | [`wire::Pods`] |
//! | `GET /v1/pods/{namespace}/{name}/log` | bytes; query as `PodLogOptions`, and `container` |
//! | `POST /v1/exec` | [`wire::ExecResult`] |
//! | `GET /v1/events?pod=&since=&follow=` | timeline entries, one JSON object a line |
//! | `GET /v1/status` | [`wire::Status`] |
//! | `POST /v1/relist` | [`wire::ListingReport`] |
//! | `POST /v1/down` | [`wire::DownProgress`], one JSON object a line |
//!
//! Whatever is refused is answered with [`wire::Refused`]. Who may open the socket may do all this.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, State, rejection::JsonRejection},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    Links,
    error::Refusal,
    log_query::{self, Instance, LogQuery},
    wire,
};
use crate::{
    health::Grade,
    logs,
    status::{self, PodRecord, Statuses},
    telemetry::chain,
    timeline::{Filter, Followed},
    types::{
        clock,
        id::{ContainerId, PodKey, PodUid, SandboxId},
        timeline::{Entry, Level},
    },
};

/// How long a log waits for the runtime's word where it lies; there is another way to know.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Shared {
    links: Links,
    /// Ends answers that would go on for ever.
    stop: CancellationToken,
}

pub(super) fn router(links: &Links, stop: CancellationToken) -> Router {
    let shared = Shared {
        links: links.clone(),
        stop,
    };
    Router::new()
        .route("/v1/pods", get(pods))
        .route("/v1/pods/{namespace}/{name}/log", get(log))
        .route("/v1/exec", post(exec))
        .route("/v1/events", get(events))
        .route("/v1/status", get(status))
        .route("/v1/relist", post(relist))
        .route("/v1/down", post(down))
        .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "no such path") })
        .with_state(shared)
}

async fn pods(State(shared): State<Shared>) -> Json<wire::Pods> {
    let links = &shared.links;
    let pods = links.statuses.list();
    Json(wire::Pods {
        node: (links.describe)().node,
        pods: pods.iter().map(|record| pod_view(record)).collect(),
    })
}

fn pod_view(record: &PodRecord) -> wire::PodView {
    let printed = status::printed(record);
    wire::PodView {
        object: record.object(),
        is_terminating: record.is_terminating,
        printed: wire::PrintedPod {
            ready: printed.ready,
            total: printed.total,
            status: printed.status,
            restarts: printed.restarts,
            last_restart: printed.last_restart,
        },
    }
}

fn find(statuses: &Statuses, namespace: &str, name: &str) -> Result<Arc<PodRecord>, Refusal> {
    statuses.find(&PodKey::new(namespace, name)).ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            format!("pod {name:?} does not exist"),
        )
    })
}

/// The named container of the pod, or its default one.
fn container_of(record: &PodRecord, named: Option<&str>) -> Result<String, Refusal> {
    let pod = &record.pod;
    let Some(name) = named.filter(|name| !name.is_empty()) else {
        return wire::default_container(pod.object())
            .map(ToOwned::to_owned)
            .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "the pod has no containers"));
    };
    if pod
        .all_containers()
        .any(|(container, _)| container.name == name)
    {
        return Ok(name.to_owned());
    }
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        format!("container {name:?} not found in pod {:?}", &*pod.key().name),
    ))
}

async fn log(
    State(shared): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    query: Result<Query<LogQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refusal> {
    let Ok(Query(query)) = query else {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "Unable to decode query.",
        ));
    };
    let options = query.options(clock::wall_now())?;
    let links = &shared.links;
    let record = find(&links.statuses, &namespace, &name)?;
    let container = container_of(&record, query.container.as_deref())?;
    let instance = log_query::instance(&record.status, &name, &container, query.previous)
        .map_err(|message| Refusal::new(StatusCode::BAD_REQUEST, message))?;
    let path = log_path(links, &record, &container, &instance).await?;
    let ended = ended(
        links.statuses.clone(),
        record.pod.uid().clone(),
        container,
        instance.id,
    );
    let bytes = logs::open(path, options, ended)
        .await
        .map_err(|error| Refusal::internal(&error))?;
    // The answer has begun: what fails from here on is told in its text, as upstream does.
    let bytes = bytes.map(|piece| piece.unwrap_or_else(|error| chain(&error).to_string().into()));
    Ok(body(bytes, &shared.stop, "text/plain"))
}

/// From the runtime, or where the log lies by upstream's layout while that cannot be asked.
async fn log_path(
    links: &Links,
    record: &PodRecord,
    container: &str,
    instance: &Instance,
) -> Result<PathBuf, Refusal> {
    // The sandbox is only copied into the answer.
    let sandbox = SandboxId::from("");
    let asking = links.cri.container_status(&instance.id, &sandbox);
    match tokio::time::timeout(RUNTIME_PATIENCE, asking).await {
        Ok(Ok(found)) => {
            if let Some(path) = found.log_path {
                return Ok(path.into());
            }
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, container = %instance.id, "The runtime does not tell a log's path");
        }
        Err(_) => {
            tracing::debug!(container = %instance.id, "The runtime does not tell a log's path in time");
        }
    }
    let (key, uid) = (record.pod.key(), record.pod.uid());
    let path = links
        .pod_logs
        .join(format!("{}_{}_{uid}", key.namespace, key.name))
        .join(container)
        .join(format!("{}.log", instance.restart));
    if tokio::fs::try_exists(&path).await.unwrap_or(false) {
        return Ok(path);
    }
    // Upstream's words (LOG-11).
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        format!("unable to retrieve container logs for {}", instance.api_id),
    ))
}

/// Resolves once the instance no longer runs.
async fn ended(statuses: Statuses, uid: PodUid, container: String, id: ContainerId) {
    let mut changes = statuses.subscribe();
    loop {
        changes.borrow_and_update();
        let is_running = statuses
            .get(&uid)
            .is_some_and(|record| log_query::is_running(&record.status, &container, &id));
        if !is_running || changes.changed().await.is_err() {
            return;
        }
    }
}

async fn exec(
    State(shared): State<Shared>,
    request: Result<Json<wire::ExecRequest>, JsonRejection>,
) -> Result<Json<wire::ExecResult>, Refusal> {
    let Json(request) =
        request.map_err(|bad| Refusal::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    let links = &shared.links;
    let record = find(&links.statuses, &request.namespace, &request.pod)?;
    let container = container_of(&record, request.container.as_deref())?;
    if request.command.is_empty() {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "you must specify at least one command for the container",
        ));
    }
    let running = log_query::status_of(&record.status, &container)
        .filter(|status| {
            let state = status.state.as_ref();
            state.is_some_and(|state| state.running.is_some())
        })
        .and_then(|status| log_query::parse_id(status.container_id.as_deref()?));
    let Some(id) = running else {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!(
                "container {container:?} in pod {:?} is not running",
                request.pod
            ),
        ));
    };
    let timeout = Duration::from_secs(request.timeout_seconds);
    let output = links
        .cri
        .exec_sync(&id, request.command, timeout)
        .await
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.message()))?;
    Ok(Json(wire::ExecResult {
        code: output.code,
        stdout: wire::Base64(output.stdout),
        stderr: wire::Base64(output.stderr),
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventQuery {
    /// `namespace/name`.
    pod: Option<String>,
    since: Option<Timestamp>,
    follow: bool,
}

async fn events(
    State(shared): State<Shared>,
    query: Result<Query<EventQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refusal> {
    let bad = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message);
    let Query(query) = query.map_err(|rejection| bad(rejection.body_text()))?;
    let pod = match query.pod.as_deref().map(|pod| (pod, pod.split_once('/'))) {
        None => None,
        Some((_, Some((namespace, name)))) => Some(PodKey::new(namespace, name)),
        Some((pod, None)) => {
            return Err(bad(format!("pod {pod:?}: expected namespace/name")));
        }
    };
    let filter = Filter {
        pod,
        since: query.since,
    };
    let timeline = &shared.links.timeline;
    let failed = |error: crate::timeline::Error| Refusal::internal(&error);
    if !query.follow {
        let past = timeline.query(&filter).await.map_err(failed)?;
        return Ok(json_lines(futures::stream::iter(past), &shared.stop));
    }
    let (past, live) = timeline.query_and_follow(&filter).await.map_err(failed)?;
    let live = futures::stream::unfold(live, |mut live| async {
        let next = live.next().await?;
        Some((next, live))
    });
    let live = live.filter_map(move |followed| {
        let entry = match followed {
            Followed::Entry(entry) => filter.matches(&entry).then(|| Entry::clone(&entry)),
            Followed::Missed(number) => Some(missed(number)),
        };
        std::future::ready(entry)
    });
    let all = futures::stream::iter(past).chain(live);
    Ok(json_lines(all, &shared.stop))
}

/// What a reader that was too slow sees in place of what it missed.
fn missed(number: u64) -> Entry {
    let message = format!("{number} entries came faster than they were read; see them without -f");
    Entry::now(Level::Warning, "Missed", message)
}

async fn status(State(shared): State<Shared>) -> Json<wire::Status> {
    let links = &shared.links;
    let part = |(part, state): (&str, Option<crate::health::State>)| match state {
        None => wire::PartState {
            part: part.to_owned(),
            grade: "silent".to_owned(),
            text: "has not reported yet".to_owned(),
            since: None,
        },
        Some(state) => wire::PartState {
            part: part.to_owned(),
            grade: match state.grade {
                Grade::Good => "good",
                Grade::Degraded => "degraded",
                Grade::Bad => "bad",
            }
            .to_owned(),
            text: state.text,
            since: Some(state.since),
        },
    };
    Json(wire::Status {
        agent: (links.describe)(),
        is_ready: links.board.is_ready(),
        parts: links.board.read().into_iter().map(part).collect(),
    })
}

async fn relist(State(shared): State<Shared>) -> Result<Json<wire::ListingReport>, Refusal> {
    (shared.links.relist)()
        .await
        .map(Json)
        .map_err(|message| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

/// Goes on while the agent stops: the pods' end is what it tells.
async fn down(State(shared): State<Shared>) -> Response {
    json_lines((shared.links.down)(), &CancellationToken::new())
}

fn json_lines<T: Serialize>(
    items: impl Stream<Item = T> + Send + 'static,
    stop: &CancellationToken,
) -> Response {
    let lines = items.map(|item| {
        let mut line = serde_json::to_vec(&item).unwrap_or_default();
        line.push(b'\n');
        line.into()
    });
    body(lines, stop, "application/x-ndjson")
}

fn body(
    bytes: impl Stream<Item = Bytes> + Send + 'static,
    stop: &CancellationToken,
    kind: &'static str,
) -> Response {
    let bytes = bytes
        .take_until(stop.clone().cancelled_owned())
        .map(Ok::<_, Infallible>);
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(bytes)).into_response()
}
