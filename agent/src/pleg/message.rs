//! A container's termination message: from the file that it has for it, else from its log's end
//! (HOOK-09, HOOK-10).

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::StreamExt as _;

use crate::{
    logs::{self, LogOptions},
    telemetry::chain,
    types::{
        reason::terminated,
        runtime::{Container, ContainerState, Exit, SharedRuntimePod, Witness},
    },
};

/// Bytes of the file, from its end.
const FILE_BYTES: u64 = 4096;
/// Bytes and lines of the log, from its end.
const LOG_BYTES: usize = 2048;
const LOG_LINES: u64 = 80;

/// The pod with the messages of containers whose exit only the kernel has told so far: their files
/// are written. Not their logs, of which the runtime may still hold the end.
pub async fn with_early(pod: SharedRuntimePod) -> SharedRuntimePod {
    let mut added = Vec::new();
    for container in &pod.containers {
        if let ContainerState::Exited(exit) = &container.state
            && exit.witness == Witness::Kernel
            && let Some(path) = &container.termination_message_host_path
        {
            let message = of_file(PathBuf::from(path)).await;
            if !message.is_empty() {
                added.push((container.id.clone(), message));
            }
        }
    }
    if added.is_empty() {
        return pod;
    }
    let mut pod = (*pod).clone();
    for container in &mut pod.containers {
        if let ContainerState::Exited(exit) = &mut container.state
            && let Some((_, message)) = added.iter().find(|(id, _)| *id == container.id)
        {
            exit.message.clone_from(message);
        }
    }
    Arc::new(pod)
}

/// Adds the container's own message to what the runtime says of its exit.
pub(super) async fn add(container: &mut Container) {
    let path = container.termination_message_host_path.clone();
    let log = container.log_path.clone();
    let policy = container.termination_message_policy.clone();
    let ContainerState::Exited(exit) = &mut container.state else {
        return;
    };
    let of_file = match path {
        Some(path) => of_file(PathBuf::from(path)).await,
        None => String::new(),
    };
    let own = if of_file.is_empty() && may_use_log(policy.as_deref(), exit) {
        match log {
            Some(log) => of_log(log.into()).await,
            None => String::new(),
        }
    } else {
        of_file
    };
    exit.message = joined(std::mem::take(&mut exit.message), own);
}

/// Pure.
fn may_use_log(policy: Option<&str>, exit: &Exit) -> bool {
    policy == Some("FallbackToLogsOnError")
        && exit.code != 0
        && exit.reason != terminated::CONTAINER_CANNOT_RUN
}

/// Pure.
fn joined(of_runtime: String, own: String) -> String {
    match (of_runtime.is_empty(), own.is_empty()) {
        (_, true) => of_runtime,
        (true, false) => own,
        (false, false) => format!("{of_runtime}: {own}"),
    }
}

async fn of_file(path: PathBuf) -> String {
    let shown = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || end_of(&path))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    match read {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        // Upstream's words, shown in place of the message.
        Err(error) => format!("Error on reading termination log {shown}: {error}"),
    }
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(FILE_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

async fn of_log(path: PathBuf) -> String {
    let options = LogOptions {
        tail: Some(LOG_LINES),
        ..LogOptions::default()
    };
    let failed = |error: logs::Error| {
        let error = chain(&error);
        format!("Error on reading termination message from logs: {error}")
    };
    let pieces = match logs::open(path, options, std::future::ready(())).await {
        Ok(pieces) => pieces,
        Err(error) => return failed(error),
    };
    let mut pieces = std::pin::pin!(pieces);
    let mut end = Vec::new();
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => end.extend_from_slice(&piece),
            Err(error) => return failed(error),
        }
        end.drain(..end.len().saturating_sub(LOG_BYTES));
    }
    String::from_utf8_lossy(&end).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::types::{
        id::{PodKey, PodUid},
        runtime::{RuntimePod, container_for_tests},
    };

    fn exit(code: i32, reason: &str) -> Exit {
        Exit {
            code,
            signal: 0,
            reason: reason.to_owned(),
            message: String::new(),
            started_at: None,
            finished_at: jiff::Timestamp::UNIX_EPOCH,
            witness: Witness::Runtime,
            oom_seen: false,
        }
    }

    #[rstest]
    #[case(Some("FallbackToLogsOnError"), 1, "Error", true)]
    #[case(Some("FallbackToLogsOnError"), 0, "Completed", false)]
    #[case(Some("FallbackToLogsOnError"), 128, "ContainerCannotRun", false)]
    #[case(Some("File"), 1, "Error", false)]
    #[case(None, 1, "Error", false)]
    fn the_log_stands_in_only_after_a_failure_and_where_asked_for(
        #[case] policy: Option<&str>,
        #[case] code: i32,
        #[case] reason: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(may_use_log(policy, &exit(code, reason)), expected);
    }

    #[rstest]
    #[case("", "", "")]
    #[case("oci error", "", "oci error")]
    #[case("", "own", "own")]
    #[case("oci error", "own", "oci error: own")]
    fn the_containers_word_follows_the_runtimes(
        #[case] runtime: &str,
        #[case] own: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(joined(runtime.to_owned(), own.to_owned()), expected);
    }

    #[rstest]
    #[case(Witness::Kernel, "why")]
    #[case(Witness::Runtime, "")]
    #[tokio::test]
    async fn an_exit_that_the_kernel_told_has_its_message_at_once(
        #[case] witness: Witness,
        #[case] message: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        std::fs::write(&path, "why").unwrap();
        let exit = Exit {
            witness,
            ..exit(1, "Error")
        };
        let mut container = container_for_tests("c", ContainerState::Exited(exit));
        container.termination_message_host_path = Some(path.to_str().unwrap().to_owned());
        let mut pod = RuntimePod::empty(PodUid::from("u"), PodKey::new("default", "p"));
        pod.containers.push(container);
        let pod = with_early(Arc::new(pod)).await;
        assert_eq!(pod.containers[0].state.exit().unwrap().message, message);
    }

    #[tokio::test]
    async fn of_a_long_file_the_end_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        std::fs::write(&path, format!("{}end", "x".repeat(5000))).unwrap();
        let message = of_file(path).await;
        assert_eq!(message.len(), 4096);
        assert!(message.ends_with("xend"));
        assert_eq!(of_file(dir.path().join("none")).await, "");
    }

    #[tokio::test]
    async fn of_a_log_the_last_80_lines_and_2048_bytes_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let line = |number| format!("2026-01-01T00:00:00Z stdout F line {number}\n");
        let log: String = (0..200).map(line).collect();
        std::fs::write(&path, log).unwrap();
        let message = of_log(path.clone()).await;
        assert_eq!(message.lines().count(), 80);
        assert!(message.starts_with("line 120\n") && message.ends_with("line 199\n"));
        let long = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(3000));
        std::fs::write(&path, long).unwrap();
        assert_eq!(of_log(path).await.len(), 2048);
    }
}
