use std::{path::Path, time::Duration};

use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    cri::{
        Call, Client, api,
        fake::{Fake, FakeContainer, Fault},
        labels,
    },
    pleg::Change,
    types::{
        clock::{self, Mono},
        id::{CgroupId, PodKey},
        kernel::{Gap, GapPlace, KernelEvent, KernelExit, KernelFact, KernelNews},
        runtime::container_for_tests,
    },
};

/// No answer here takes so long on any machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A PLEG in the stream mode over a fake runtime.
struct Running {
    fake: Fake,
    handle: Handle,
    stop: CancellationToken,
    events: mpsc::Receiver<PodEvent>,
    _memory: mpsc::Receiver<MemoryNews>,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// The task, not running: for what it makes of one piece of news.
fn task(
    dir: &Path,
) -> (
    Fake,
    Handle,
    Task,
    mpsc::Receiver<PodEvent>,
    mpsc::Receiver<MemoryNews>,
) {
    let fake = Fake::start(&dir.join("cri.sock")).expect("a socket");
    let client = Client::new(&fake.settings(LIMIT)).expect("an endpoint");
    let (recorder, _timeline) = timeline::open(dir.join("timeline"), 1 << 20).expect("a timeline");
    let (memory_news, memory) = mpsc::channel(1);
    let deps = Deps {
        client,
        recorder,
        board: Board::default(),
        open_kernel: Arc::new(|| Err("none in this test".to_owned())),
        memory_news,
    };
    let settings = PlegSettings {
        best_mode: PlegMode::Stream,
        safety_period: Duration::from_secs(3600),
        ring_bytes: 4096,
    };
    let (handle, task, events) = Task::new(settings, deps);
    (fake, handle, task, events, memory)
}

/// Returns once it is in its mode and has listed everything.
async fn start(dir: &Path) -> Running {
    let (fake, handle, task, events, memory) = task(dir);
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
        events,
        _memory: memory,
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

/// A container of the pod `pod` in its sandbox, of which no event tells.
fn add_container(fake: &Fake, pod: &str, sandbox: &str, id: &str) {
    let status = api::ContainerStatus {
        id: id.to_owned(),
        metadata: Some(api::ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        state: api::ContainerState::ContainerRunning.into(),
        created_at: 1_800_000_000_000_000_000,
        started_at: 1_800_000_000_000_000_000,
        image: Some(api::ImageSpec {
            image: "busybox:1".to_owned(),
            ..Default::default()
        }),
        image_ref: "sha256:1".to_owned(),
        labels: [
            (labels::POD_NAME, pod),
            (labels::POD_NAMESPACE, "default"),
            (labels::POD_UID, pod),
            (labels::CONTAINER_NAME, "app"),
        ]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into(),
        ..Default::default()
    };
    let container = FakeContainer {
        sandbox: sandbox.to_owned(),
        status,
        pid: 7,
    };
    fake.with(|world| world.containers.insert(id.to_owned(), container));
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, wait).await.expect(what);
}

#[tokio::test]
async fn an_event_of_the_runtime_is_one_reading_and_one_event() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut running = start(dir.path()).await;
    let uid = PodUid::from("web");
    add_sandbox(&running.fake, "web", "sandbox");
    add_container(&running.fake, "web", "sandbox", "app-1");
    running
        .handle
        .fresh(&uid, Instant::now())
        .await
        .expect("the runtime answers");
    let first = timeout(LIMIT, running.events.recv()).await.expect("told");
    assert_eq!(
        first.expect("an event").changes,
        ["app-1", "sandbox"].map(|id| Change::ContainerStarted(ContainerId::from(id)))
    );

    let count = |call| running.fake.count(call);
    let (listed, asked) = (count(Call::ListContainers), count(Call::ContainerStatus));
    running.fake.with(|world| world.exit("app-1", 3, "Error"));
    let event = timeout(LIMIT, running.events.recv()).await.expect("told");
    assert_eq!(
        event.expect("an event").changes,
        [Change::ContainerDied(ContainerId::from("app-1"))]
    );
    assert_eq!(count(Call::ListContainers), listed);
    assert_eq!(count(Call::ContainerStatus), asked + 1);
    let pod = running.handle.cache().get(&uid).expect("it is known");
    assert_eq!(
        pod.containers[0].state.exit().map(|exit| exit.code),
        Some(3)
    );
    running.stop.cancel();
    running.task.await.expect("no panic").expect("no error");
}

#[tokio::test]
async fn a_failed_reading_is_told_and_tried_again_without_being_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let running = start(dir.path()).await;
    let uid = PodUid::from("web");
    add_sandbox(&running.fake, "web", "sandbox");
    let fault = Fault::Fail(tonic::Code::Internal, "not now".to_owned());
    running.fake.fault(Call::ListPodSandbox, fault);
    let since = Instant::now();
    let error = running.handle.fresh(&uid, since).await;
    assert!(error.expect_err("it failed").contains("not now"));
    let cache = running.handle.cache();
    until("it is read again", || {
        cache
            .newer_than(&uid, since)
            .is_some_and(|view| view.error.is_none() && view.pod.sandboxes.len() == 1)
    })
    .await;
    running.stop.cancel();
    running.task.await.expect("no panic").expect("no error");
}

#[tokio::test]
async fn a_broken_stream_means_listing_until_it_is_back_and_nothing_is_missed() {
    let dir = tempfile::tempdir().expect("a folder");
    let running = start(dir.path()).await;
    let (handle, uid) = (&running.handle, PodUid::from("late"));
    running.fake.break_streams();
    until("listing", || handle.mode() == Some(PlegMode::Listing)).await;
    add_sandbox(&running.fake, "late", "sandbox");
    until("the listing finds it", || {
        handle.cache().get(&uid).is_some()
    })
    .await;
    until("the stream", || handle.mode() == Some(PlegMode::Stream)).await;
    let found = handle.relist().await.expect("the runtime answers");
    assert_eq!(found.missed, Vec::<String>::new());
    running.stop.cancel();
    running.task.await.expect("no panic").expect("no error");
}

fn kernel(cgroup: u64, at: u64, what: KernelFact) -> KernelNews {
    KernelNews::Event(KernelEvent {
        at: Mono(at),
        cgroup: CgroupId(cgroup),
        what,
    })
}

fn exited(code: u8) -> KernelFact {
    KernelFact::Exited {
        pid: 100,
        is_main: true,
        is_init: true,
        exit: KernelExit::Code(code),
        comm: "app".to_owned(),
    }
}

/// The pod `u` with these containers in the cache and in the index: cgroups 11, 12, ...
fn know(task: &mut Task, containers: &[&str], state: &ContainerState) -> PodUid {
    let uid = PodUid::from("u");
    let mut pod = RuntimePod::empty(uid.clone(), PodKey::new("default", "p"));
    task.index.made(CgroupId(10), CgroupId(1), "podu");
    for (at, name) in containers.iter().enumerate() {
        let cgroup = CgroupId(11 + at as u64);
        assert!(task.index.made(cgroup, CgroupId(10), name).is_some());
        pod.containers
            .push(container_for_tests(name, state.clone()));
    }
    task.cache.store(pod, Some(Instant::now()));
    uid
}

const RUNS: ContainerState = ContainerState::Running {
    started_at: jiff::Timestamp::UNIX_EPOCH,
};

#[tokio::test]
async fn a_burst_of_exits_of_one_pod_is_one_event_with_the_first_ones_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, mut events, _memory) = task(dir.path());
    know(&mut task, &["c0ffee01", "c0ffee02", "c0ffee03"], &RUNS);
    let mut news = vec![
        kernel(11, 5, exited(1)),
        kernel(12, 6, exited(2)),
        kernel(11, 7, KernelFact::Emptied),
        kernel(13, 8, exited(3)),
        kernel(13, 9, KernelFact::Emptied),
        kernel(12, 9, KernelFact::Emptied),
    ];
    task.on_kernel(news.len(), &mut news);
    let event = events.try_recv().expect("told");
    assert_eq!(event.kernel_at, Some(Mono(7)));
    let died =
        ["c0ffee01", "c0ffee02", "c0ffee03"].map(|id| Change::ContainerDied(ContainerId::from(id)));
    assert_eq!(event.changes, died);
    assert!(events.try_recv().is_err());
    // The runtime's record of each is awaited.
    assert_eq!(task.awaiting.len(), 3);
}

#[tokio::test]
async fn an_exit_with_a_process_left_is_no_event_yet() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, mut events, _memory) = task(dir.path());
    know(&mut task, &["c0ffee01"], &RUNS);
    let mut news = vec![kernel(11, 5, exited(1))];
    task.on_kernel(1, &mut news);
    assert!(events.try_recv().is_err());
    assert_eq!(task.awaiting.len(), 1);
}

#[tokio::test]
async fn a_gap_is_one_listing_and_three_later_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    let gap = Gap {
        at: Mono(1),
        lost: 3,
        place: GapPlace::Queue,
    };
    task.on_gap(gap);
    assert!(task.full.is_some());
    assert_eq!(task.reads.len(), 1);
    assert_eq!(task.follow_ups.len(), 3);
    // More of them while it is under way are one more listing, since it began before.
    task.on_gap(gap);
    task.on_gap(gap);
    assert_eq!(task.reads.len(), 1);
    assert_eq!(task.next_full, [ListCause::Gap]);
}

#[tokio::test]
async fn a_forced_listing_does_not_stand_for_the_one_after_a_gap() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    task.list(ListCause::Period);
    task.list(ListCause::Gap);
    task.list(ListCause::Forced);
    task.list(ListCause::Gap);
    assert_eq!(task.next_full, [ListCause::Gap, ListCause::Forced]);
}

#[tokio::test]
async fn an_end_is_not_awaited_of_what_is_gone_from_the_runtime() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    let uid = know(&mut task, &["c0ffee01"], &RUNS);
    let mut news = vec![kernel(11, 5, exited(1))];
    task.on_kernel(1, &mut news);
    assert_eq!(task.awaiting.len(), 1);
    let nothing = RuntimePod::empty(uid, PodKey::new("default", "p"));
    task.on_pod(nothing, Instant::now());
    assert_eq!(task.awaiting.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_helpers_exit_is_not_told_as_the_containers_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    let uid = know(&mut task, &["c0ffee01"], &RUNS);
    let id = ContainerId::from("c0ffee01");
    task.awaiting
        .add(&id, &uid, false, false, clock::wall_now(), Instant::now());
    tokio::time::advance(TELL_AFTER).await;
    task.on_time();
    assert_eq!(task.awaiting.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_read_before_its_start_is_looked_at_again_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    let uid = know(&mut task, &["c0ffee01"], &ContainerState::Created);
    let started = KernelFact::Started {
        pid: 100,
        is_init: true,
        comm: "app".to_owned(),
    };
    let mut news = vec![kernel(11, 5, started)];
    task.on_kernel(1, &mut news);
    // A reading from before the start lands after it.
    let reading = (*task.cache.get(&uid).expect("known")).clone();
    task.on_pod(reading, Instant::now());
    tokio::time::advance(CHECK_START_AFTER).await;
    task.on_time();
    assert!(task.wanted.contains_key(&uid));
}

/// A listing that waits for the readings of these pods, which have begun and hang.
fn hang(task: &mut Task, uids: &[PodUid]) {
    task.list(ListCause::Start);
    for uid in uids {
        task.in_flight.insert(uid.clone(), Instant::now());
    }
    let full = task.full.as_mut().expect("under way");
    full.is_listed = true;
    full.waiting = uids.iter().cloned().collect();
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_hangs_does_not_hold_up_a_listing() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, handle, mut task, _events, _memory) = task(dir.path());
    let uid = PodUid::from("hangs");
    let began = Instant::now();
    hang(&mut task, std::slice::from_ref(&uid));
    assert_eq!(task.give_up_at(), Some(began + LISTING_PATIENCE));
    tokio::time::advance(LISTING_PATIENCE).await;
    task.on_time();
    assert!(task.full.is_none());
    assert_eq!(handle.cache().complete_at(), Some(began));
    // It is not taken for a pod that the runtime has nothing of.
    let view = handle.cache().newer_than(&uid, began).expect("told");
    assert_eq!(
        view.pod().expect_err("not known"),
        "the runtime has not told of the pod yet"
    );
}

#[tokio::test]
async fn pods_whose_readings_failed_leave_half_the_places_to_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    let failing: Vec<PodUid> = (0..MAX_READS)
        .map(|n| PodUid::from(format!("failing-{n}")))
        .collect();
    for uid in &failing {
        task.failed.insert(uid.clone(), (Instant::now(), RETRY.1));
        task.want(uid, Cause::Asked);
    }
    let good = PodUid::from("good");
    task.want(&good, Cause::Asked);
    task.start_reads();
    assert!(task.in_flight.contains_key(&good));
    assert_eq!(task.in_flight.len(), MAX_READS / 2 + 1);
    assert_eq!(task.queue.len(), MAX_READS / 2);
}

fn deleted(container: &str) -> StreamNews {
    StreamNews::Event(cri::RuntimeEvent {
        container: ContainerId::from(container),
        kind: cri::EventKind::Deleted,
        uid: None,
        at: None,
    })
}

#[tokio::test]
async fn an_end_that_the_stream_tells_is_asked_for_by_one_question() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    task.mode = Some(PlegMode::Stream);
    let uid = know(&mut task, &["c0ffee01"], &RUNS);
    let stopped = |uid: &PodUid, id: &str| {
        StreamNews::Event(cri::RuntimeEvent {
            container: ContainerId::from(id),
            kind: cri::EventKind::Stopped,
            uid: Some(uid.clone()),
            at: None,
        })
    };
    task.on_stream(stopped(&uid, "c0ffee01"));
    assert!(task.wanted.is_empty());
    assert_eq!(task.awaiting.take_due(1, Instant::now()).len(), 1);
    // Of this one nothing is known: the pod is read.
    task.on_stream(stopped(&uid, "c0ffee02"));
    assert!(task.wanted.contains_key(&uid));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_others_remove_is_looked_at_soon() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    task.mode = Some(PlegMode::Kernel);
    let uid = know(&mut task, &["c0ffee01"], &RUNS);
    task.on_stream(deleted("c0ffee01"));
    assert!(task.wanted.is_empty());
    assert_eq!(
        task.next_deadline(),
        Some(Instant::now() + CHECK_REMOVAL_AFTER)
    );
    tokio::time::advance(CHECK_REMOVAL_AFTER).await;
    task.on_time();
    assert!(task.wanted.contains_key(&uid));
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_its_own_worker_has_read_is_no_news() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    task.mode = Some(PlegMode::Kernel);
    let uid = know(&mut task, &["c0ffee01"], &RUNS);
    task.on_stream(deleted("c0ffee01"));
    let nothing = RuntimePod::empty(uid, PodKey::new("default", "p"));
    task.on_pod(nothing, Instant::now());
    tokio::time::advance(CHECK_REMOVAL_AFTER).await;
    task.on_time();
    assert!(task.wanted.is_empty());
}

#[tokio::test]
async fn a_cgroup_whose_removal_was_lost_is_forgotten_by_a_later_listing() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, mut memory) = task(dir.path());
    know(&mut task, &["c0ffee01", "c0ffee02"], &RUNS);
    task.index.walked(&[CgroupId(10), CgroupId(11)].into());
    let gap = Gap {
        at: Mono(1),
        lost: 3,
        place: GapPlace::Queue,
    };
    task.on_gap(gap);
    // The listing at once: news from before the gap may still come.
    task.full.as_mut().expect("under way").is_listed = true;
    task.finish_full();
    assert!(task.index.place(CgroupId(12)).is_some());
    task.follow_ups.pop_front();
    task.list(ListCause::Gap);
    task.full.as_mut().expect("under way").is_listed = true;
    task.finish_full();
    assert!(task.index.place(CgroupId(12)).is_none());
    assert!(task.index.place(CgroupId(11)).is_some());
    let told = memory.try_recv().expect("told");
    assert_eq!(
        told,
        MemoryNews::Removed {
            cgroup: CgroupId(12)
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_main_process_that_is_not_told_is_asked_for_again_ever_more_rarely() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_fake, _handle, mut task, _events, _memory) = task(dir.path());
    know(&mut task, &["c0ffee01"], &RUNS);
    let id = ContainerId::from("c0ffee01");
    for seconds in [1, 2, 4] {
        let error = cri::Error::Answer {
            call: Call::ContainerStatus,
            what: "nothing",
        };
        task.on_pid(&id, Err(error));
        let wait = Duration::from_secs(seconds);
        assert_eq!(task.next_deadline(), Some(Instant::now() + wait));
        tokio::time::advance(wait).await;
        task.on_time();
        assert_eq!(task.unlearned.pop_front(), Some(id.clone()));
    }
    task.on_pid(&id, Ok(Some(7)));
    assert!(task.relearn.is_empty());
}

#[tokio::test]
async fn a_start_lists_once_and_asks_for_each_sandbox_and_container_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let (fake, handle, task, _events, _memory) = task(dir.path());
    for n in 0..30 {
        let (pod, sandbox) = (format!("pod-{n}"), format!("sandbox-{n}"));
        add_sandbox(&fake, &pod, &sandbox);
        add_container(&fake, &pod, &sandbox, &format!("app-{n}"));
    }
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "ends with the test")]
    let task = tokio::spawn(task.run(stop.clone()));
    timeout(LIMIT, handle.cache().wait_complete())
        .await
        .expect("all is known");
    let asked = |call| fake.count(call);
    // The change of modes may have come in between, with a listing of its own.
    assert!(asked(Call::ListContainers) <= 2);
    assert_eq!(asked(Call::PodSandboxStatus), 30);
    assert_eq!(asked(Call::ContainerStatus), 30);
    assert_eq!(handle.cache().all().len(), 30);
    stop.cancel();
    task.await.expect("no panic").expect("no error");
}

#[tokio::test]
async fn a_start_knows_its_pods_while_the_kernels_programs_are_attached() {
    let dir = tempfile::tempdir().expect("a folder");
    let (fake, handle, mut task, _events, _memory) = task(dir.path());
    add_sandbox(&fake, "web", "sandbox");
    let (attach, attached) = std::sync::mpsc::channel::<()>();
    let attached = std::sync::Mutex::new(attached);
    task.settings.best_mode = PlegMode::Kernel;
    task.deps.open_kernel = Arc::new(move || {
        // An error is as good: the test is over.
        attached.lock().expect("no panic").recv().ok();
        Err("refused in this test".to_owned())
    });
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "ends with the test")]
    let task = tokio::spawn(task.run(stop.clone()));
    timeout(LIMIT, handle.cache().wait_complete())
        .await
        .expect("all is known");
    assert_eq!(handle.cache().all().len(), 1);
    assert_eq!(handle.mode(), None);
    attach.send(()).expect("it waits");
    until("a mode", || handle.mode().is_some()).await;
    assert_ne!(handle.mode(), Some(PlegMode::Kernel));
    stop.cancel();
    task.await.expect("no panic").expect("no error");
}
