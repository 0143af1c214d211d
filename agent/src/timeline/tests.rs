use std::{fs, time::Duration};

use tokio::time::timeout;

use super::*;
use crate::types::timeline::Level;

const SOON: Duration = Duration::from_secs(10);

fn entry(pod: &str, second: i64) -> Entry {
    Entry {
        agent_at: Timestamp::from_second(1_700_000_000 + second).unwrap(),
        kernel_at: None,
        runtime_at: None,
        runtime_known_at: None,
        pod: Some(PodKey::new("default", pod)),
        uid: Some("u1".into()),
        container: Some("app".into()),
        container_id: None,
        level: Level::Normal,
        reason: "Started".into(),
        message: format!("number {second}"),
    }
}

/// Records the entries and waits until the task has written them.
async fn write(dir: &std::path::Path, max_bytes: u64, entries: Vec<Entry>) {
    let (recorder, task) = open(dir.to_owned(), max_bytes).unwrap();
    let stop = CancellationToken::new();
    for chunk in entries {
        recorder.record(chunk);
    }
    stop.cancel();
    timeout(SOON, task.run(stop)).await.unwrap();
}

async fn messages(recorder: &Recorder, filter: &Filter) -> Vec<String> {
    recorder
        .query(filter)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.message)
        .collect()
}

fn bytes_in(dir: &std::path::Path) -> u64 {
    fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

#[tokio::test]
async fn what_was_recorded_is_found_before_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (recorder, task) = open(dir.path().join("timeline"), 1 << 20).unwrap();
    recorder.record(entry("a", 1));
    recorder.record(entry("b", 2));
    assert_eq!(
        messages(&recorder, &Filter::default()).await,
        ["number 1", "number 2"]
    );
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(SOON, task.run(stop)).await.unwrap();
    drop(recorder);

    let (recorder, _task) = open(dir.path().join("timeline"), 1 << 20).unwrap();
    recorder.record(entry("a", 3));
    assert_eq!(
        messages(&recorder, &Filter::default()).await,
        ["number 1", "number 2", "number 3"]
    );
    let only_a = Filter {
        pod: Some(PodKey::new("default", "a")),
        since: None,
    };
    assert_eq!(messages(&recorder, &only_a).await, ["number 1", "number 3"]);
    let late = Filter {
        pod: None,
        since: Some(entry("a", 2).agent_at),
    };
    assert_eq!(messages(&recorder, &late).await, ["number 2", "number 3"]);
}

#[tokio::test]
async fn a_half_written_last_line_is_skipped_and_the_next_entry_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1 << 20, vec![entry("a", 1), entry("a", 2)]).await;
    let segment = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    let content = fs::read(segment.path()).unwrap();
    fs::write(segment.path(), &content[..content.len() - 10]).unwrap();

    write(dir.path(), 1 << 20, vec![entry("a", 3)]).await;
    let (recorder, _task) = open(dir.path().to_owned(), 1 << 20).unwrap();
    assert_eq!(
        messages(&recorder, &Filter::default()).await,
        ["number 1", "number 3"]
    );
}

#[tokio::test]
async fn the_files_stay_within_the_bound_and_the_newest_entries_stay() {
    let dir = tempfile::tempdir().unwrap();
    let max = 16 << 10;
    for round in 0..10 {
        let entries = (0..100).map(|i| entry("a", round * 100 + i)).collect();
        write(dir.path(), max, entries).await;
        assert!(bytes_in(dir.path()) <= max, "{}", bytes_in(dir.path()));
    }
    let (recorder, _task) = open(dir.path().to_owned(), max).unwrap();
    let kept = messages(&recorder, &Filter::default()).await;
    assert_eq!(kept.last().unwrap(), "number 999");
    assert!(kept.len() > 40, "{} entries kept", kept.len());
    let first: usize = kept[0]["number ".len()..].parse().unwrap();
    let expected: Vec<_> = (first..1000).map(|n| format!("number {n}")).collect();
    assert_eq!(kept, expected, "without holes");
}

#[tokio::test]
async fn a_full_disk_drops_entries_and_later_ones_are_kept_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut segments = Segments::open(dir.path().to_owned(), 1 << 20).unwrap();
    let line = |number| Line {
        number,
        entry: Arc::new(entry("a", i64::try_from(number).unwrap())),
    };
    // Every write to this device fails with "no space left".
    std::os::unix::fs::symlink(
        "/dev/full",
        dir.path().join(format!("timeline-{:020}.jsonl", 1)),
    )
    .unwrap();
    let failure = segments.append(&[line(1), line(2)]).unwrap_err();
    assert_eq!(failure.dropped, 2);
    assert!(failure.error.cause().contains("No space left"));
    segments.append(&[line(3)]).unwrap();
    let kept = segments::read_all(dir.path(), |_| true).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].number, 3);
}

#[tokio::test]
async fn an_entry_larger_than_a_segment_is_dropped_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut big = entry("a", 2);
    big.message = "x".repeat(4096);
    write(dir.path(), 8192, vec![entry("a", 1), big, entry("a", 3)]).await;
    let (recorder, _task) = open(dir.path().to_owned(), 8192).unwrap();
    assert_eq!(
        messages(&recorder, &Filter::default()).await,
        ["number 1", "number 3"]
    );
}

#[tokio::test]
async fn recording_never_waits_and_what_the_disk_cannot_take_is_still_live() {
    let dir = tempfile::tempdir().unwrap();
    let (recorder, _idle) = open(dir.path().to_owned(), 1 << 20).unwrap();
    let mut live = recorder.subscribe();
    let many = i64::try_from(QUEUE).unwrap() + 5;
    for i in 0..many {
        recorder.record(entry("a", i));
    }
    for i in 0..many {
        let next = timeout(SOON, live.next()).await.unwrap();
        assert_eq!(next, Some(Followed::Entry(Arc::new(entry("a", i)))));
    }
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_how_many_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (recorder, _idle) = open(dir.path().to_owned(), 1 << 20).unwrap();
    let mut live = recorder.subscribe();
    for i in 0..i64::try_from(IN_MEMORY).unwrap() + 7 {
        recorder.record(entry("a", i));
    }
    assert_eq!(live.next().await, Some(Followed::Missed(7)));
    assert_eq!(
        live.next().await,
        Some(Followed::Entry(Arc::new(entry("a", 7))))
    );
    drop(recorder);
}

#[tokio::test]
async fn following_goes_on_where_the_past_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (recorder, _idle) = open(dir.path().to_owned(), 1 << 20).unwrap();
    recorder.record(entry("a", 1));
    let (past, mut live) = recorder.query_and_follow(&Filter::default()).await.unwrap();
    recorder.record(entry("a", 2));
    assert_eq!(past, [entry("a", 1)]);
    assert_eq!(
        timeout(SOON, live.next()).await.unwrap(),
        Some(Followed::Entry(Arc::new(entry("a", 2))))
    );
    drop(recorder);
    assert_eq!(timeout(SOON, live.next()).await.unwrap(), None);
}
