//! `/healthz`, `/readyz`, `/metrics`, `/pods`.
//!
//! `/healthz` is about the agent alone: it answers, so it is well. Supervisors restart what fails
//! here, which must not happen for the runtime's trouble; that shows in `/readyz`.

use std::fmt::Write as _;

use axum::{
    Json, Router,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use k8s_openapi::{List, api::core::v1::Pod as PodObject};
use metrics_exporter_prometheus::PrometheusHandle;

use super::Links;
use crate::{
    health::{Board, Grade},
    status::Statuses,
};

pub(super) fn router(links: &Links) -> Router {
    let health = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(links.board.clone());
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .with_state(links.metrics.clone());
    health.merge(metrics)
}

pub(super) fn pods_router(links: &Links) -> Router {
    Router::new()
        .route("/pods", get(pods))
        .with_state(links.statuses.clone())
}

async fn healthz(State(board): State<Board>, RawQuery(query): RawQuery) -> String {
    if is_verbose(query.as_deref()) {
        format!("[+]ping ok\n{}healthz check passed\n", lines(&board))
    } else {
        "ok".to_owned()
    }
}

async fn readyz(State(board): State<Board>, RawQuery(query): RawQuery) -> Response {
    let is_ready = board.is_ready();
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let text = if is_ready && !is_verbose(query.as_deref()) {
        "ok".to_owned()
    } else {
        let verdict = if is_ready { "passed" } else { "failed" };
        format!("{}readyz check {verdict}\n", lines(&board))
    };
    (status, text).into_response()
}

/// `?verbose`, with or without a value, as upstream takes it.
fn is_verbose(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query
            .split('&')
            .any(|pair| pair.split('=').next() == Some("verbose"))
    })
}

/// One line a part: `[+]` good, `[!]` degraded, `[-]` bad or silent.
fn lines(board: &Board) -> String {
    let mut text = String::new();
    for (part, state) in board.read() {
        let _ = match state {
            None => writeln!(text, "[-]{part} has not reported yet"),
            Some(state) => {
                let (mark, word) = match state.grade {
                    Grade::Good => ("[+]", "ok"),
                    Grade::Degraded => ("[!]", "degraded"),
                    Grade::Bad => ("[-]", "failed"),
                };
                let (words, since, told_at) = (&state.text, state.since, state.told_at);
                writeln!(
                    text,
                    "{mark}{part} {word}: {words} (since {since:.0}, last turn {told_at:.0})"
                )
            }
        };
    }
    text
}

async fn metrics(State(metrics): State<PrometheusHandle>) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, metrics.render()).into_response()
}

async fn pods(State(statuses): State<Statuses>) -> Json<List<PodObject>> {
    let items = statuses
        .list()
        .iter()
        .map(|record| record.object())
        .collect();
    Json(List {
        items,
        ..List::default()
    })
}
