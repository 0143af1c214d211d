use std::{path::Path, time::Duration};

use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cri::{Call, Client, api, fake::Fake, labels};

/// No answer here takes so long on any machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A PLEG in the stream mode over a fake runtime.
struct Running {
    fake: Fake,
    handle: Handle,
    stop: CancellationToken,
    _events: mpsc::Receiver<PodEvent>,
    _memory: mpsc::Receiver<MemoryNews>,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// Returns once it is in its mode and has listed everything.
async fn start(dir: &Path) -> Running {
    let fake = Fake::start(&dir.join("cri.sock")).expect("a socket");
    let client = Client::new(&fake.settings(LIMIT)).expect("an endpoint");
    let (recorder, _timeline) = timeline::open(dir.join("timeline"), 1 << 20).expect("a timeline");
    let (memory_news, _memory) = mpsc::channel(1);
    let deps = Deps {
        client,
        recorder,
        board: Board::default(),
        open_kernel: Box::new(|| Err("none in this test".to_owned())),
        memory_news,
    };
    let settings = PlegSettings {
        best_mode: PlegMode::Stream,
        safety_period: Duration::from_secs(3600),
        ring_bytes: 4096,
    };
    let (handle, task, _events) = Task::new(settings, deps);
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "ends with the test")]
    let task = tokio::spawn(task.run(stop.clone()));
    let is_up = async {
        while handle.mode() != Some(PlegMode::Stream) {
            tokio::task::yield_now().await;
        }
        handle.relist().await.expect("the runtime answers");
    };
    timeout(LIMIT, is_up).await.expect("the stream comes up");
    Running {
        fake,
        handle,
        stop,
        _events,
        _memory,
        task,
    }
}

/// One more sandbox of the pod, of which no event tells.
fn add_sandbox(fake: &Fake, uid: &str, id: &str) {
    let sandbox = api::PodSandboxStatus {
        id: id.to_owned(),
        metadata: Some(api::PodSandboxMetadata {
            name: uid.to_owned(),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        created_at: 1_800_000_000_000_000_000,
        labels: [
            (labels::POD_NAME, uid),
            (labels::POD_NAMESPACE, "default"),
            (labels::POD_UID, uid),
        ]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into(),
        ..Default::default()
    };
    fake.with(|world| world.sandboxes.insert(id.to_owned(), sandbox));
}

#[tokio::test]
async fn a_forced_listing_is_answered_when_readings_explain_what_it_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let running = start(dir.path()).await;
    let handle = &running.handle;
    // The reading comes at another moment of the listing in each turn.
    for turn in 0..10_u64 {
        let uid = PodUid::from(format!("pod-{turn}"));
        add_sandbox(&running.fake, uid.as_str(), &format!("sandbox-{turn}"));
        let listed = running.fake.count(Call::ListContainers);
        let read = async {
            while running.fake.count(Call::ListContainers) == listed {
                tokio::task::yield_now().await;
            }
            sleep(Duration::from_millis(turn * turn)).await;
            handle.fresh(&uid, Instant::now()).await
        };
        let (found, _) = timeout(LIMIT, async { tokio::join!(handle.relist(), read) })
            .await
            .expect("both are answered");
        let found = found.expect("the runtime answers");
        assert_eq!(found.missed, Vec::<String>::new());
        assert_eq!(found.sandboxes, usize::try_from(turn).expect("small") + 1);
    }
    running.stop.cancel();
    running.task.await.expect("no panic").expect("no error");
}

#[tokio::test]
async fn what_no_event_told_is_counted_by_a_forced_listing() {
    let dir = tempfile::tempdir().expect("a folder");
    let running = start(dir.path()).await;
    add_sandbox(&running.fake, "lost", "sandbox-1");
    let found = timeout(LIMIT, running.handle.relist())
        .await
        .expect("it is answered")
        .expect("the runtime answers");
    assert_eq!(found.missed.len(), 1, "{found:?}");
    assert!(found.missed[0].contains("(lost)"), "{found:?}");
    running.stop.cancel();
    running.task.await.expect("no panic").expect("no error");
}
