use std::{
    io::{Read as _, Write as _},
    sync::Mutex,
};

use rstest::rstest;
use tokio::time::timeout;

use super::*;

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[rstest]
#[case::nothing_rotated_yet(&["0.log"], 5, &[], &[])]
#[case::the_plain_one_is_compressed(&["0.log", "0.log.2"], 5, &[], &["0.log.2"])]
#[case::leftovers_go(
    &["0.log", "0.log.1.tmp", "0.log.2", "0.log.2.gz"], 5,
    &["0.log.1.tmp", "0.log.2"], &[]
)]
#[case::the_oldest_go(
    &["0.log", "0.log.1.gz", "0.log.2.gz", "0.log.3.gz", "0.log.4"], 5,
    &["0.log.1.gz"], &["0.log.4"]
)]
#[case::two_files_leave_no_room(&["0.log", "0.log.1.gz", "0.log.2"], 2, &["0.log.1.gz", "0.log.2"], &[])]
#[case::others_are_left_alone(&["0.log", "1.log", "1.log.1", "10.log.1", "0.log."], 2, &[], &[])]
fn plans_what_goes_and_what_is_compressed(
    #[case] names: &[&str],
    #[case] max_files: usize,
    #[case] remove: &[&str],
    #[case] compress: &[&str],
) {
    assert_eq!(
        plan("0.log", &strings(names), max_files),
        Tidy {
            remove: strings(remove),
            compress: strings(compress),
        }
    );
}

/// A runtime's side of a log: keeps its file open until it is told to open a new one.
#[derive(Clone)]
pub(crate) struct Writer {
    path: PathBuf,
    file: Arc<Mutex<Option<fs::File>>>,
    number: Arc<Mutex<usize>>,
}

impl Writer {
    pub(crate) fn new(path: &Path) -> Self {
        let writer = Self {
            path: path.to_owned(),
            file: Arc::default(),
            number: Arc::default(),
        };
        writer.open();
        writer
    }

    pub(crate) fn open(&self) {
        let new = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .unwrap();
        *self.file.lock().unwrap() = Some(new);
    }

    pub(crate) fn close(&self) {
        *self.file.lock().unwrap() = None;
    }

    pub(crate) fn write(&self, lines: usize) {
        let mut number = self.number.lock().unwrap();
        for _ in 0..lines {
            let line = format!("2024-01-01T00:00:00Z stdout F {number}\n");
            let mut file = self.file.lock().unwrap();
            file.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
            *number += 1;
        }
    }

    pub(crate) fn written(&self) -> usize {
        *self.number.lock().unwrap()
    }

    pub(crate) fn reopen(&self) -> Reopen {
        let writer = self.clone();
        Arc::new(move |_| {
            let writer = writer.clone();
            Box::pin(async move {
                writer.open();
                Ok(())
            })
        })
    }
}

/// Seconds of the clock that gives rotations their names.
pub(crate) fn second(number: usize) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + i64::try_from(number).unwrap()).unwrap()
}

pub(crate) fn log_at(path: &Path) -> RunningLog {
    RunningLog {
        container_id: "c1".into(),
        path: path.to_owned(),
    }
}

/// The numbers in all files of the log, oldest first.
fn numbers(live: &Path) -> Vec<usize> {
    let mut text = String::new();
    for rotation in rotations_of(live).unwrap() {
        let plain = rotated_path(live, &rotation);
        match fs::read_to_string(&plain) {
            Ok(content) => text.push_str(&content),
            Err(_) => {
                let file = fs::File::open(compressed_path(&plain)).unwrap();
                flate2::read::GzDecoder::new(file)
                    .read_to_string(&mut text)
                    .unwrap();
            }
        }
    }
    text.push_str(&fs::read_to_string(live).unwrap());
    text.lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

#[tokio::test]
async fn keeps_every_line_and_no_more_files_than_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    for round in 0..9 {
        writer.write(5);
        let is_rotated = look_after(&log_at(&live), 100, 5, &writer.reopen(), second(round))
            .await
            .unwrap();
        assert!(is_rotated);
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert!(files <= 5, "{files} files");
    }
    writer.write(1);
    assert_eq!(numbers(&live), (25..46).collect::<Vec<_>>());
    let compressed = rotations_of(&live)
        .unwrap()
        .iter()
        .filter(|rotation| compressed_path(&rotated_path(&live, rotation)).exists())
        .count();
    assert_eq!(compressed, 3, "all but the newest rotation");
}

#[tokio::test]
async fn a_small_log_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    writer.write(1);
    let size = fs::metadata(&live).unwrap().len();
    let log = log_at(&live);
    let reopen = writer.reopen();
    assert!(
        !look_after(&log, size + 1, 5, &reopen, second(0))
            .await
            .unwrap()
    );
    assert!(
        look_after(&log, size, 5, &reopen, second(0)).await.unwrap(),
        "the limit counts"
    );
}

#[tokio::test]
async fn a_runtime_that_does_not_open_a_new_file_keeps_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    writer.write(10);
    let refuse: Reopen = Arc::new(|_| Box::pin(async { Err("not now".into()) }));
    let error = look_after(&log_at(&live), 1, 5, &refuse, second(0))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Reopen { .. }), "{error}");
    writer.write(1);
    assert_eq!(numbers(&live), (0..11).collect::<Vec<_>>());
    assert_eq!(rotations_of(&live).unwrap().len(), 0);
}

#[tokio::test]
async fn a_new_file_is_not_replaced_when_the_runtime_fails_after_making_it() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    writer.write(10);
    let late = writer.clone();
    let fails_late: Reopen = Arc::new(move |_| {
        late.open();
        late.write(1);
        Box::pin(async { Err("deadline".into()) })
    });
    look_after(&log_at(&live), 1, 5, &fails_late, second(0))
        .await
        .unwrap_err();
    assert_eq!(numbers(&live), (0..11).collect::<Vec<_>>());
}

#[tokio::test]
async fn lines_of_a_writer_that_has_not_let_go_of_a_rotated_file_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let rotated = rotated_path(&live, "20200101-000000");
    let writer = Writer::new(&live);
    writer.write(10);
    // The runtime made a new file, and failed before it used it.
    fs::rename(&live, &rotated).unwrap();
    fs::write(&live, "").unwrap();
    let late = writer.clone();
    let keeps_old: Reopen = Arc::new(move |_| {
        late.write(1);
        Box::pin(async { Err("deadline".into()) })
    });
    for round in 0..2 {
        look_after(&log_at(&live), 0, 9, &keeps_old, second(round))
            .await
            .unwrap_err();
        assert!(rotated.exists());
    }
    look_after(&log_at(&live), 0, 9, &writer.reopen(), second(2))
        .await
        .unwrap();
    writer.write(1);
    look_after(&log_at(&live), 0, 9, &writer.reopen(), second(3))
        .await
        .unwrap();
    assert!(!rotated.exists(), "compressed once the writer has let go");
    assert_eq!(numbers(&live), (0..13).collect::<Vec<_>>());
}

#[tokio::test]
async fn two_rotations_in_one_second_do_not_replace_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    let log = log_at(&live);
    writer.write(10);
    look_after(&log, 1, 5, &writer.reopen(), second(0))
        .await
        .unwrap();
    writer.write(10);
    let error = look_after(&log, 1, 5, &writer.reopen(), second(0))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Rename { .. }), "{error}");
    assert_eq!(numbers(&live), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_missing_live_file_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    fs::remove_file(&live).unwrap();
    let is_rotated = look_after(&log_at(&live), 100, 5, &writer.reopen(), second(0))
        .await
        .unwrap();
    assert!(!is_rotated);
    writer.write(1);
    assert_eq!(numbers(&live), [0]);
}

#[tokio::test]
async fn the_task_rotates_at_its_interval_and_ends_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("0.log");
    let writer = Writer::new(&live);
    writer.write(10);
    let settings = LogSettings {
        max_size: Some(1),
        max_files: 5,
        interval: Duration::from_millis(5),
        workers: 1,
    };
    let log = log_at(&live);
    let running: Running = Arc::new(move || vec![log.clone()]);
    let (rotated_tx, mut rotated_rx) = tokio::sync::mpsc::channel(100);
    let reopen = writer.reopen();
    let told: Reopen = Arc::new(move |id| {
        let _ = rotated_tx.try_send(());
        reopen(id)
    });
    let stop = CancellationToken::new();
    let run = new(settings, running, told).run(stop.clone());
    let test = async {
        timeout(Duration::from_secs(10), rotated_rx.recv())
            .await
            .unwrap();
        stop.cancel();
    };
    timeout(Duration::from_secs(10), futures::future::join(run, test))
        .await
        .unwrap();
    assert_eq!(numbers(&live), (0..10).collect::<Vec<_>>());
}
