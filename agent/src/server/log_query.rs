//! A request for a log: its options, and the container that it means (LOG-03, LOG-12, LOG-13). Pure.

use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use serde::Deserialize;

use super::error::Refusal;
use crate::{logs::LogOptions, types::id::ContainerId};

/// The query as it comes: upstream's `PodLogOptions`, and its old name `tail`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogQuery {
    pub container: Option<String>,
    pub follow: bool,
    pub previous: bool,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
    timestamps: bool,
    tail_lines: Option<i64>,
    tail: Option<String>,
    limit_bytes: Option<i64>,
}

impl LogQuery {
    /// Upstream's bounds, with its words.
    pub(super) fn options(&self, now: Timestamp) -> Result<LogOptions, Refusal> {
        let undecodable = || Refusal::new(StatusCode::BAD_REQUEST, "Unable to decode query.");
        let invalid = || Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid request.");
        let tail = match self.tail.as_deref() {
            Some("all") => None,
            Some(text) if !text.is_empty() => Some(text.parse().map_err(|_error| undecodable())?),
            Some(_) | None => self.tail_lines,
        };
        let at_least = |value: Option<i64>, least: i64| match value {
            Some(value) if value < least => Err(invalid()),
            Some(value) => Ok(Some(value.unsigned_abs())),
            None => Ok(None),
        };
        let since = match (at_least(self.since_seconds, 1)?, self.since_time) {
            (Some(_), Some(_)) => return Err(invalid()),
            (None, since) => since,
            (Some(seconds), None) => {
                let ago = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
                Some(now.checked_sub(ago).unwrap_or(Timestamp::MIN))
            }
        };
        Ok(LogOptions {
            follow: self.follow,
            tail: at_least(tail, 0)?,
            since,
            limit_bytes: at_least(self.limit_bytes, 1)?,
            timestamps: self.timestamps,
        })
    }
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    pub id: ContainerId,
    /// The id as the status has it, `containerd://...`.
    pub api_id: String,
    /// The restart count that it was made with, which names its log file.
    pub restart: i32,
}

/// Which instance's log is meant, by the pod's status; the error is the message of a 400.
pub(super) fn instance(
    status: &PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<Instance, String> {
    let Some(found) = status_of(status, container) else {
        return Err(format!(
            "container {container:?} in pod {pod:?} is not available"
        ));
    };
    let state = found.state.as_ref();
    let last = found
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last_id = last.and_then(|last| with_text(last.container_id.as_deref()));
    let current = |(id, api_id): (ContainerId, &str)| Instance {
        id,
        api_id: api_id.to_owned(),
        restart: found.restart_count,
    };
    let before = |id| Instance {
        restart: (found.restart_count - 1).max(0),
        ..current(id)
    };
    let is_terminated = || format!("container {container:?} in pod {pod:?} is terminated");
    if previous {
        return last_id.map(before).ok_or_else(|| {
            format!("previous terminated container {container:?} in pod {pod:?} not found")
        });
    }
    if state.is_some_and(|state| state.running.is_some()) {
        let id = with_text(found.container_id.as_deref());
        return id
            .map(current)
            .ok_or_else(|| format!("container {container:?} in pod {pod:?} is not available"));
    }
    if let Some(end) = state.and_then(|state| state.terminated.as_ref()) {
        let own = with_text(end.container_id.as_deref());
        return own
            .map(current)
            .or_else(|| last_id.map(before))
            .ok_or_else(is_terminated);
    }
    if last.is_some() {
        // It waits for its next start: the instance that ended last has the current count.
        return last_id.map(current).ok_or_else(is_terminated);
    }
    let why = match state.and_then(|state| state.waiting.as_ref()) {
        Some(waiting) => match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => ": image can't be pulled".to_owned(),
            "ImagePullBackOff" => ": trying and failing to pull image".to_owned(),
            reason => format!(": {reason}"),
        },
        None => " - no logs yet".to_owned(),
    };
    Err(format!(
        "container {container:?} in pod {pod:?} is waiting to start{why}"
    ))
}

/// Regular containers first, then init containers, then ephemeral ones (LOG-12).
pub(super) fn status_of<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|statuses| statuses.iter().flatten())
    .find(|status| status.name == container)
}

/// The id, and how the status writes it.
fn with_text(text: Option<&str>) -> Option<(ContainerId, &str)> {
    text.and_then(parse_id).zip(text)
}

/// `containerd://4f2a...` to its id; none of an empty one.
pub(super) fn parse_id(text: &str) -> Option<ContainerId> {
    let id = text.split_once("://").map_or(text, |(_, id)| id);
    (!id.is_empty()).then(|| id.into())
}

/// The instance runs, as far as the status says.
pub(super) fn is_running(status: &PodStatus, container: &str, id: &ContainerId) -> bool {
    status_of(status, container).is_some_and(|found| {
        found
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
            && found.container_id.as_deref().and_then(parse_id).as_ref() == Some(id)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: &str = "2024-01-01T01:00:00Z";

    fn options(query: &str) -> Result<LogOptions, (u16, String)> {
        let query: LogQuery = serde_json::from_str(query).unwrap();
        query
            .options(NOW.parse().unwrap())
            .map_err(|refusal| (refusal.status.as_u16(), refusal.message))
    }

    #[rstest]
    #[case(r#"{"tailLines": -1}"#, 422, "Invalid request.")]
    #[case(r#"{"sinceSeconds": 0}"#, 422, "Invalid request.")]
    #[case(r#"{"limitBytes": 0}"#, 422, "Invalid request.")]
    #[case(
        r#"{"sinceSeconds": 5, "sinceTime": "2024-01-01T00:00:00Z"}"#,
        422,
        "Invalid request."
    )]
    #[case(r#"{"tail": "many"}"#, 400, "Unable to decode query.")]
    fn refuses_what_upstream_refuses(
        #[case] query: &str,
        #[case] status: u16,
        #[case] message: &str,
    ) {
        assert_eq!(options(query), Err((status, message.to_owned())));
    }

    #[test]
    fn takes_upstreams_options_and_the_old_tail() {
        let all = options(r#"{"tail": "all", "tailLines": 4}"#).unwrap();
        assert_eq!(all.tail, None);
        let some = options(r#"{"tail": "3", "sinceSeconds": 60, "limitBytes": 9}"#).unwrap();
        assert_eq!(some.tail, Some(3));
        assert_eq!(some.limit_bytes, Some(9));
        assert_eq!(some.since, Some("2024-01-01T00:59:00Z".parse().unwrap()));
    }

    fn status(container: &str) -> PodStatus {
        serde_saphyr::from_str(&format!("containerStatuses: [{{name: c, image: i, imageID: x, ready: false, restartCount: 3, {container}}}]")).unwrap()
    }

    #[rstest]
    #[case::running("containerID: 'containerd://a', state: {running: {}}", false, Ok(("a", 3)))]
    #[case::ended("state: {terminated: {exitCode: 1, containerID: 'containerd://a'}}", false, Ok(("a", 3)))]
    #[case::crash_looping_shows_the_last(
        "state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1, containerID: 'containerd://b'}}",
        false, Ok(("b", 3))
    )]
    #[case::previous(
        "containerID: 'containerd://a', state: {running: {}}, lastState: {terminated: {exitCode: 1, containerID: 'containerd://b'}}",
        true, Ok(("b", 2))
    )]
    #[case::no_previous(
        "containerID: 'containerd://a', state: {running: {}}",
        true,
        Err(r#"previous terminated container "c" in pod "p" not found"#)
    )]
    #[case::ended_without_id(
        "state: {terminated: {exitCode: 1}}",
        false,
        Err(r#"container "c" in pod "p" is terminated"#)
    )]
    #[case::creating(
        "state: {waiting: {reason: ContainerCreating}}",
        false,
        Err(r#"container "c" in pod "p" is waiting to start: ContainerCreating"#)
    )]
    #[case::no_image(
        "state: {waiting: {reason: ErrImagePull}}",
        false,
        Err(r#"container "c" in pod "p" is waiting to start: image can't be pulled"#)
    )]
    #[case::image_back_off(
        "state: {waiting: {reason: ImagePullBackOff}}",
        false,
        Err(r#"container "c" in pod "p" is waiting to start: trying and failing to pull image"#)
    )]
    fn finds_the_instance_as_upstream_does(
        #[case] container: &str,
        #[case] previous: bool,
        #[case] expected: Result<(&str, i32), &str>,
    ) {
        let expected = expected
            .map(|(id, restart)| Instance {
                id: id.into(),
                api_id: format!("containerd://{id}"),
                restart,
            })
            .map_err(ToOwned::to_owned);
        assert_eq!(instance(&status(container), "p", "c", previous), expected);
    }

    #[test]
    fn an_unknown_container_is_not_available() {
        assert_eq!(
            instance(&PodStatus::default(), "p", "c", false),
            Err(r#"container "c" in pod "p" is not available"#.to_owned())
        );
    }
}
