use std::{io::Write as _, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _};
use proptest::prelude::*;
use tokio::{sync::watch, time::timeout};

use super::*;
use crate::logs::rotate::{
    look_after,
    tests::{Writer, log_at, second},
};

const SOON: Duration = Duration::from_secs(20);

/// A number of files at which rotation removes none: each line can be read.
const ALL_FILES: usize = 1_000_000;

/// A stream whose first item tells what became of opening.
fn read(
    path: PathBuf,
    options: LogOptions,
    ended: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    futures::stream::once(open(path, options, ended)).try_flatten()
}

async fn text(path: &Path, options: LogOptions) -> String {
    let pieces: Vec<_> = timeout(
        SOON,
        read(path.to_owned(), options, std::future::pending()).collect(),
    )
    .await
    .unwrap();
    let bytes: Vec<u8> = pieces
        .into_iter()
        .flat_map(|piece| piece.unwrap().to_vec())
        .collect();
    String::from_utf8(bytes).unwrap()
}

fn following() -> LogOptions {
    LogOptions {
        follow: true,
        ..LogOptions::default()
    }
}

/// A container's end, for a follower.
fn life() -> (
    watch::Sender<bool>,
    impl Future<Output = ()> + Send + 'static,
) {
    let (ended_tx, mut ended_rx) = watch::channel(false);
    let ended = async move {
        // A sender that is gone is an end as well.
        let _ = ended_rx.wait_for(|ended| *ended).await;
    };
    (ended_tx, ended)
}

fn numbers(text: &[u8]) -> Vec<usize> {
    std::str::from_utf8(text)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

#[tokio::test]
async fn shows_the_last_lines_then_filters_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(
        &path,
        "2024-01-01T00:00:01Z stdout F one\n\
         2024-01-01T00:00:02Z stderr F two\n\
         2024-01-01T00:00:03Z stdout F three\n",
    )
    .unwrap();
    let all = text(&path, LogOptions::default()).await;
    assert_eq!(all, "one\ntwo\nthree\n");
    let last = LogOptions {
        tail: Some(2),
        ..LogOptions::default()
    };
    assert_eq!(text(&path, last.clone()).await, "two\nthree\n");
    let late = LogOptions {
        since: Some("2024-01-01T00:00:03Z".parse().unwrap()),
        ..last
    };
    assert_eq!(text(&path, late).await, "three\n");
    let none = LogOptions {
        tail: Some(0),
        ..LogOptions::default()
    };
    assert_eq!(text(&path, none).await, "");
    let cut = LogOptions {
        limit_bytes: Some(5),
        follow: true,
        ..LogOptions::default()
    };
    assert_eq!(
        text(&path, cut).await,
        "one\nt",
        "the limit ends a follower"
    );
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let mut stream = Box::pin(read(
        "/nowhere/0.log".into(),
        following(),
        std::future::pending(),
    ));
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"failed to try resolving symlinks in path "/nowhere/0.log""#
    );
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_container_that_has_stopped_is_read_to_its_end_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    fs::write(
        &path,
        "2024-01-01T00:00:01Z stdout F one\n2024-01-01T00:00:02Z stdout F tw",
    )
    .unwrap();
    let before = Instant::now();
    let pieces: Vec<_> = timeout(
        SOON,
        read(path, following(), std::future::ready(())).collect(),
    )
    .await
    .unwrap();
    let bytes: Vec<u8> = pieces
        .into_iter()
        .flat_map(|piece| piece.unwrap().to_vec())
        .collect();
    assert_eq!(bytes, b"one\ntw");
    assert!(before.elapsed() < CLOSE_WITHIN);
}

#[tokio::test]
async fn lines_written_after_the_stop_and_before_the_close_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    let (ended_tx, life) = life();
    let (watching_tx, watching_rx) = tokio::sync::oneshot::channel();
    // First looked at when the file is being watched.
    let ended = async move {
        watching_tx.send(()).unwrap();
        life.await;
    };
    let mut stream = Box::pin(read(path, following(), ended));
    writer.write(1);
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    let rest = async {
        watching_rx.await.unwrap();
        ended_tx.send_replace(true);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        writer.write(1);
        writer.close();
    };
    let (rest_of, ()) = timeout(SOON, futures::future::join(stream.next(), rest))
        .await
        .unwrap();
    assert_eq!(rest_of.unwrap().unwrap(), "1\n");
    assert!(timeout(SOON, stream.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_half_line_waits_for_its_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"2024-01-01T00:00:01Z stdout F one\n2024-01-01T00:00:02Z std")
        .unwrap();
    let (_ended_tx, ended) = life();
    let mut stream = Box::pin(read(path, following(), ended));
    assert_eq!(stream.next().await.unwrap().unwrap(), "one\n");
    let write = async {
        tokio::task::yield_now().await;
        file.write_all(b"out F two\n").unwrap();
    };
    let (next, ()) = timeout(SOON, futures::future::join(stream.next(), write))
        .await
        .unwrap();
    assert_eq!(next.unwrap().unwrap(), "two\n");
}

/// The writer never stops while its file is rotated under a follower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_across_rotations_loses_and_doubles_nothing() {
    const LINES: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    let (ended_tx, ended) = life();
    let mut stream = Box::pin(read(path.clone(), following(), ended));
    // A follower begins with the file that is live when it opens the log: here the first.
    writer.write(1);
    let mut all = stream.next().await.unwrap().unwrap().to_vec();

    let busy = writer.clone();
    let writing = tokio::task::spawn_blocking(move || {
        while busy.written() < LINES {
            busy.write(10);
        }
    });
    let rotating = async {
        let mut round = 0;
        while writer.written() < LINES {
            round += 1;
            look_after(
                &log_at(&path),
                4096,
                ALL_FILES,
                &writer.reopen(),
                second(round),
            )
            .await
            .unwrap();
            tokio::task::yield_now().await;
        }
        ended_tx.send_replace(true);
        writer.close();
    };
    let reading = async {
        while let Some(piece) = stream.next().await {
            all.extend_from_slice(&piece.unwrap());
        }
    };
    timeout(SOON * 3, futures::future::join3(writing, rotating, reading))
        .await
        .unwrap()
        .0
        .unwrap();
    let all = numbers(&all);
    let wrong = all.iter().zip(0..).find(|(found, line)| *found != line);
    assert_eq!(wrong, None, "the first line that is not in its place");
    assert_eq!(all.len(), writer.written());
}

/// What else comes from a stream whose container has ended.
async fn rest_of(stream: impl Stream<Item = Result<Bytes, Error>>) -> String {
    let pieces: Vec<_> = timeout(SOON, stream.try_collect()).await.unwrap().unwrap();
    String::from_utf8(pieces.concat()).unwrap()
}

#[tokio::test]
async fn a_follower_is_told_of_files_that_were_removed_before_it_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    writer.write(1);
    let (ended_tx, ended) = life();
    let mut stream = Box::pin(read(path.clone(), following(), ended));
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    writer.write(1);
    for round in 0..6 {
        look_after(&log_at(&path), 1, 4, &writer.reopen(), second(round))
            .await
            .unwrap();
        writer.write(2);
    }
    ended_tx.send_replace(true);
    writer.close();
    // Its own file is read to the end though it is removed; then come the two compressed ones, the
    // plain one and the live one.
    assert_eq!(
        rest_of(stream).await,
        format!("1\n{MISSING}\n6\n7\n8\n9\n10\n11\n12\n13\n")
    );
}

#[tokio::test]
async fn a_rotated_file_that_the_runtime_still_writes_to_is_read_until_it_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    writer.write(1);
    let (ended_tx, ended) = life();
    let mut stream = Box::pin(read(path.clone(), following(), ended));
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    look_after(&log_at(&path), 1, ALL_FILES, &writer.reopen(), second(0))
        .await
        .unwrap();
    writer.write(1);
    // Between the second rotation's new file and the runtime's use of it.
    fs::rename(&path, rotate::rotated_path(&path, "29990101-000000")).unwrap();
    fs::write(&path, "").unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "1\n");
    let rest = async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
            writer.write(1);
        }
        writer.open();
        writer.write(1);
        ended_tx.send_replace(true);
        writer.close();
    };
    let (rest, ()) = futures::future::join(rest_of(stream), rest).await;
    assert_eq!(rest, "2\n3\n4\n5\n");
}

#[tokio::test]
async fn what_was_rotated_last_is_read_though_no_new_file_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    writer.write(1);
    let (ended_tx, ended) = life();
    let mut stream = Box::pin(read(path.clone(), following(), ended));
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    look_after(&log_at(&path), 1, ALL_FILES, &writer.reopen(), second(0))
        .await
        .unwrap();
    writer.write(1);
    fs::rename(&path, rotate::rotated_path(&path, "29990101-000000")).unwrap();
    ended_tx.send_replace(true);
    writer.close();
    assert_eq!(rest_of(stream).await, "1\n");
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Rotate,
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(
        prop_oneof![
            (1usize..6).prop_map(Step::Write),
            Just(Step::Rotate),
            Just(Step::Read),
        ],
        1..30,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However reading, writing and rotating fall: also where whole files were rotated away and
    /// compressed between two looks of a slow reader.
    #[test]
    fn a_slow_follower_still_sees_every_line(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("0.log");
            let writer = Writer::new(&path);
            writer.write(1);
            let (ended_tx, ended) = life();
            let mut stream = Box::pin(read(path.clone(), following(), ended));
            let mut all = stream.next().await.unwrap().unwrap().to_vec();
            let mut rotations = 0;
            for step in steps {
                match step {
                    Step::Write(lines) => writer.write(lines),
                    Step::Rotate => {
                        rotations += 1;
                        let log = log_at(&path);
                        look_after(&log, 1, ALL_FILES, &writer.reopen(), second(rotations)).await.unwrap();
                    }
                    Step::Read => {
                        if numbers(&all).len() < writer.written() {
                            let piece = timeout(SOON, stream.next()).await.unwrap();
                            all.extend_from_slice(&piece.unwrap().unwrap());
                        }
                    }
                }
            }
            ended_tx.send_replace(true);
            writer.close();
            while let Some(piece) = timeout(SOON, stream.next()).await.unwrap() {
                all.extend_from_slice(&piece.unwrap());
            }
            assert_eq!(numbers(&all), (0..writer.written()).collect::<Vec<_>>());
        });
    }
}

#[tokio::test]
async fn a_file_that_was_removed_and_made_again_is_read_from_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let writer = Writer::new(&path);
    writer.write(2);
    let (_ended_tx, ended) = life();
    let mut stream = Box::pin(read(path.clone(), following(), ended));
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n1\n");
    fs::remove_file(&path).unwrap();
    writer.open();
    writer.write(1);
    assert_eq!(
        timeout(SOON, stream.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap(),
        "2\n"
    );
    drop(Arc::new(writer));
}
