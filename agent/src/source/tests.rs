use super::*;

#[test]
fn the_container_hash_is_upstream_s() {
    let container = Container {
        name: "test_container".to_owned(),
        image: Some("foo/image:v1".to_owned()),
        command: Some(vec!["does not count".to_owned()]),
        ..Container::default()
    };
    assert_eq!(container_hash(&container), 0x8e45_cbd0);
}

use std::{fs, time::Duration};

use crate::config::FileSource;

const WEB: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: busybox:1}]
";

fn settings(path: &Path) -> SourceSettings {
    SourceSettings {
        file: Some(FileSource {
            path: path.to_owned(),
            period: Duration::from_secs(3600),
        }),
        http: None,
        strictness: Strictness::Warn,
    }
}

async fn next(updates: &mut mpsc::Receiver<PodUpdate>) -> PodUpdate {
    tokio::time::timeout(Duration::from_secs(20), updates.recv())
        .await
        .expect("an update arrives")
        .expect("the task runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_manifests_becomes_a_stream_of_updates() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, WEB).unwrap();
    let board = Board::default();
    let (sources, task, mut updates) = new(&settings(folder.path()), "n", None, board.clone());
    assert_eq!(sources.configured(), [SourceKind::File]);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(task.run(stop.clone()));

    let first = next(&mut updates).await;
    assert_eq!((first.source, first.op), (SourceKind::File, Op::Add));
    assert_eq!(first.pods[0].key().to_string(), "default/web-n");

    // Without a uid of its own, an edit makes another pod of it (SRC-12).
    fs::write(&file, WEB.replace("busybox:1", "busybox:2")).unwrap();
    assert_eq!(next(&mut updates).await.op, Op::Remove);
    assert_eq!(next(&mut updates).await.op, Op::Add);

    let other = folder.path().join("other.yaml");
    fs::write(&other, "kind: Deployment").unwrap();
    let mut view = sources.watch_refusals();
    let refused =
        tokio::time::timeout(Duration::from_secs(20), view.wait_for(|all| all.len() == 1));
    drop(refused.await.unwrap());
    let refusal = sources.refusals().remove(0);
    assert_eq!(refusal.origin, other.display().to_string());

    fs::remove_file(&file).unwrap();
    assert_eq!(next(&mut updates).await.op, Op::Remove);

    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn without_a_source_the_stream_is_open_and_silent() {
    let none = SourceSettings {
        file: None,
        http: None,
        strictness: Strictness::Warn,
    };
    let (sources, task, mut updates) = new(&none, "n", None, Board::default());
    assert!(sources.configured().is_empty());
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(task.run(stop.clone()));
    let nothing = tokio::time::timeout(Duration::from_millis(50), updates.recv()).await;
    assert!(nothing.is_err());
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

#[test]
fn a_refusal_keeps_its_time_while_it_stays_the_same() {
    let (sets, _sets_rx) = mpsc::channel(1);
    let (refusals, view) = watch::channel(Vec::new());
    let outlet = Outlet {
        kind: SourceKind::File,
        sets,
        refusals,
    };
    let refused = |message: &str| {
        vec![Refused {
            origin: "a".to_owned(),
            message: message.to_owned(),
            keeps_last: false,
        }]
    };
    let at = |second| Timestamp::from_second(second).unwrap();
    outlet.refuse(refused("empty"), at(1));
    outlet.refuse(refused("empty"), at(2));
    assert_eq!(view.borrow()[0].since, at(1));
    outlet.refuse(refused("broken"), at(3));
    assert_eq!(view.borrow()[0].since, at(3));
    outlet.refuse(Vec::new(), at(4));
    assert!(view.borrow().is_empty());
}

#[test]
fn a_manifest_is_checked_without_running_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, WEB).unwrap();
    let pod = check_file(&file, "n", Strictness::Refuse).unwrap();
    assert_eq!(pod.key().to_string(), "default/web-n");
    let problems = check_file(folder.path(), "n", Strictness::Refuse).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "is a folder: expected a regular file"
    );
    let problems = check_file(&folder.path().join("x"), "n", Strictness::Refuse).unwrap_err();
    assert_eq!(problems[0].to_string(), "does not exist");
}
