//! Loads the programs into the running kernel and follows cgroups of its own making. Needs root.
//!
//! Processes come into a cgroup as a runtime puts them there: by a write to its `cgroup.procs`.
//! Where a shell can't play the part, this very binary does, as `helper`.
#![expect(
    clippy::unwrap_used,
    reason = "a test's panic says what went wrong, also in its helpers"
)]

use std::{
    env, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use agent::{
    host::{
        bpf::{self, Losses, Programs, Reader, Settings},
        hierarchy::{CgroupVersion, Hierarchy, Place, cgroup_id},
    },
    types::{
        clock::Mono,
        id::CgroupId,
        kernel::{Gap, GapPlace, KernelEvent, KernelExit, KernelFact, KernelNews},
    },
};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);
const HELPER: &str = "SKEP_TEST_HELPER";

/// A tree of cgroups of the test's own.
struct Tree {
    hierarchy: Hierarchy,
    home: PathBuf,
}

impl Tree {
    fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests load kernel programs and make cgroups: run them as root"
        );
        Self::in_hierarchy(Hierarchy::detect().unwrap())
    }

    fn in_hierarchy(hierarchy: Hierarchy) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = env::var("SKEP_TEST_CGROUP").unwrap_or_else(|_| "skep-test".to_owned());
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let home = hierarchy.mount.join(name);
        let tree = Self { hierarchy, home };
        tree.make("kubepods");
        tree
    }

    fn root(&self) -> PathBuf {
        self.home.join("kubepods")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.home.join(below)
    }

    fn make(&self, below: &str) -> CgroupId {
        let path = self.path(below);
        fs::create_dir_all(&path).unwrap();
        cgroup_id(&path).unwrap()
    }

    fn remove(&self, below: &str) {
        fs::remove_dir(self.path(below)).unwrap();
    }

    fn limit_memory(&self, below: &str, bytes: &str) {
        if self.hierarchy.version == CgroupVersion::V2 {
            // A controller is there where all above hand it down.
            let path = self.path(below);
            let above = path.ancestors().skip(1);
            let above = above.take_while(|above| above.starts_with(&self.hierarchy.mount));
            let mut above: Vec<_> = above.collect();
            above.reverse();
            for folder in above {
                fs::write(folder.join("cgroup.subtree_control"), "+memory").unwrap();
            }
        }
        let file = match self.hierarchy.version {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        };
        fs::write(self.path(below).join(file), bytes).unwrap();
    }

    /// A shell that goes into the cgroup and becomes `command` there.
    fn shell(&self, below: &str, command: &str) -> Command {
        let procs = self.path(below).join("cgroup.procs");
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("echo $$ > {}; {command}", procs.display()))
            .env("HELPER", env::current_exe().unwrap())
            .stderr(Stdio::null());
        shell
    }
}

impl Tree {
    /// A command of this binary's, which will go into the cgroup by itself.
    fn helper(&self, below: &str, part: &str) -> Command {
        let mut helper = Command::new(env::current_exe().unwrap());
        helper
            .args(["helper", "--exact", "--nocapture"])
            .env(HELPER, part)
            .env("PROCS", self.path(below).join("cgroup.procs"));
        helper
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let until = Mono::now();
        while let Err(error) = remove_tree(&self.home) {
            // A process that was just killed may still be there.
            let is_late = Mono::now().since(until) > PATIENCE;
            assert!(
                !is_late || std::thread::panicking(),
                "cgroups stay behind: {error}"
            );
            if is_late {
                return;
            }
            std::thread::yield_now();
        }
        assert!(!self.home.exists());
    }
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => {
            for entry in entries?.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove_tree(&entry.path())?;
                }
            }
        }
    }
    fs::remove_dir(path)
}

/// A tree that is followed.
struct Followed {
    programs: Programs,
    news: mpsc::Receiver<KernelNews>,
    stop: CancellationToken,
    reader: JoinSet<Result<(), bpf::Error>>,
    tree: Tree,
}

fn open(tree: &Tree, settings: Settings) -> (Programs, Reader) {
    match bpf::open(&settings, &tree.hierarchy) {
        Ok(opened) => opened,
        Err(error) => panic!("{:#}", anyhow::Error::from(error)),
    }
}

impl Followed {
    fn new() -> Self {
        Self::over(Tree::new())
    }

    fn over(tree: Tree) -> Self {
        let (programs, reader) = open(&tree, Settings::default());
        let followed = Self::reading(tree, programs, reader, 1024);
        followed.programs.follow(&followed.tree.root()).unwrap();
        followed
    }

    fn reading(tree: Tree, programs: Programs, reader: Reader, queue: usize) -> Self {
        let (out, news) = mpsc::channel(queue);
        let stop = CancellationToken::new();
        let mut readers = JoinSet::new();
        readers.spawn(reader.run(out, stop.clone()));
        Self {
            programs,
            news,
            stop,
            reader: readers,
            tree,
        }
    }

    async fn next(&mut self) -> KernelNews {
        timeout(PATIENCE, self.news.recv())
            .await
            .expect("no news in time")
            .expect("the reader ended")
    }

    /// Everything up to the first event for which `is_last` holds.
    async fn until(&mut self, is_last: impl Fn(&KernelEvent) -> bool) -> Vec<KernelEvent> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                KernelNews::Event(event) => {
                    let ends = is_last(&event);
                    events.push(event);
                    if ends {
                        return events;
                    }
                }
                KernelNews::Gap(gap) => panic!("a gap: {gap:?}"),
            }
        }
    }

    /// What was told of one cgroup, up to its being empty.
    async fn until_empty(&mut self, cgroup: CgroupId) -> Vec<KernelFact> {
        let mut events = self
            .until(|event| event.cgroup == cgroup && event.what == KernelFact::Emptied)
            .await;
        events.retain(|event| event.cgroup == cgroup);
        events.into_iter().map(|event| event.what).collect()
    }

    async fn until_gap(&mut self, place: GapPlace) -> (Vec<KernelEvent>, Gap) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                KernelNews::Event(event) => events.push(event),
                KernelNews::Gap(gap) if gap.place == place => return (events, gap),
                KernelNews::Gap(gap) => panic!("another gap: {gap:?}"),
            }
        }
    }

    async fn finish(mut self) {
        self.stop.cancel();
        let ended = timeout(PATIENCE, self.reader.join_next()).await;
        ended
            .expect("the reader does not stop")
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(self.programs.losses().unwrap(), Losses::default());
    }
}

fn made(parent: CgroupId, name: &str) -> KernelFact {
    KernelFact::Made {
        parent,
        name: name.to_owned(),
    }
}

fn started(pid: u32, comm: &str) -> KernelFact {
    KernelFact::Started {
        pid,
        is_init: false,
        comm: comm.to_owned(),
    }
}

fn exited(pid: u32, is_main: bool, exit: KernelExit, comm: &str) -> KernelFact {
    KernelFact::Exited {
        pid,
        is_main,
        is_init: false,
        exit,
        comm: comm.to_owned(),
    }
}

/// The same of a process that is the first of its pid namespace.
fn of_init(fact: KernelFact) -> KernelFact {
    match fact {
        KernelFact::Started { pid, comm, .. } => KernelFact::Started {
            pid,
            is_init: true,
            comm,
        },
        KernelFact::Exited {
            pid,
            is_main,
            exit,
            comm,
            ..
        } => KernelFact::Exited {
            pid,
            is_main,
            is_init: true,
            exit,
            comm,
        },
        other => panic!("of no process: {other:?}"),
    }
}

/// The command that plays a part of `helper`, for a shell.
fn helper_command(part: &str) -> String {
    format!("{HELPER}={part} exec $HELPER helper --exact --nocapture --test-threads 2")
}

#[tokio::test]
async fn a_containers_life_is_told_from_its_making_to_its_removal() {
    let mut node = Followed::new();
    let root = cgroup_id(&node.tree.root()).unwrap();
    let pod = node.tree.make("kubepods/pod1b2c-3d");
    let container_name = "ab".repeat(32);
    let place = format!("kubepods/pod1b2c-3d/{container_name}");
    let container = node.tree.make(&place);
    let before = Mono::now();
    let mut shell = node
        .tree
        .shell(&place, "exec sh -c 'exit 3'")
        .spawn()
        .unwrap();
    let pid = shell.id();
    assert_eq!(shell.wait().unwrap().code(), Some(3));
    node.tree.remove(&place);
    node.tree.remove("kubepods/pod1b2c-3d");

    let events = node
        .until(|event| event.cgroup == pod && event.what == KernelFact::Removed)
        .await;
    let of = |cgroup| {
        let mut facts = Vec::new();
        for event in events.iter().filter(|event| event.cgroup == cgroup) {
            facts.push(event.what.clone());
        }
        facts
    };
    let expected = [
        made(pod, &container_name),
        KernelFact::Attached { pid },
        started(pid, "sh"),
        exited(pid, true, KernelExit::Code(3), "sh"),
        KernelFact::Emptied,
        KernelFact::Removed,
    ];
    assert_eq!(of(container), expected);
    let expected = [
        made(root, "pod1b2c-3d"),
        KernelFact::Emptied,
        KernelFact::Removed,
    ];
    assert_eq!(of(pod), expected);
    let exit = events
        .iter()
        .find(|event| matches!(event.what, KernelFact::Exited { .. }));
    let exit = exit.expect("asserted above");
    assert!(exit.at > before && exit.at < Mono::now());
    node.finish().await;
}

#[tokio::test]
async fn death_by_a_signal_is_told_with_the_signal() {
    let mut node = Followed::new();
    for (name, signal) in [("kill", 9), ("term", 15)] {
        let place = format!("kubepods/podsig/{name}");
        let container = node.tree.make(&place);
        let mut shell = node.tree.shell(&place, "exec sleep 60").spawn().unwrap();
        let pid = shell.id();
        node.until(|event| event.what == started(pid, "sleep"))
            .await;
        let target = rustix::process::Pid::from_child(&shell);
        let number = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(target, number).unwrap();
        shell.wait().unwrap();
        let facts = node.until_empty(container).await;
        let exit = KernelExit::Signal(u8::try_from(signal).unwrap());
        assert_eq!(facts[0], exited(pid, true, exit, "sleep"));
    }
    node.finish().await;
}

#[tokio::test]
async fn a_runtimes_helper_is_not_taken_for_the_process_that_it_forks() {
    let mut node = Followed::new();
    let container = node.tree.make("kubepods/podns/c");
    // As runc does: the helper comes in first, makes the pid namespace, forks its init, and ends.
    let mut helper = node.tree.helper("kubepods/podns/c", "init");
    let helper = helper.stdout(Stdio::piped()).spawn().unwrap();
    let helper_pid = helper.id();
    let output = helper.wait_with_output().unwrap();
    let init = said(&output.stdout, "pid ");

    let facts = node.until_empty(container).await;
    let expected = [
        KernelFact::Attached { pid: helper_pid },
        of_init(started(init, "sh")),
        of_init(exited(init, true, KernelExit::Code(7), "sh")),
        KernelFact::Emptied,
    ];
    assert_eq!(facts[1..], expected, "{facts:?}");
    node.finish().await;
}

#[tokio::test]
async fn a_helper_that_calls_exec_itself_is_not_taken_for_the_containers_main_process() {
    let mut node = Followed::new();
    let container = node.tree.make("kubepods/podexec/c");
    // As older runc does: its helper runs a copy of itself inside the cgroup before it forks init.
    let command = helper_command("init-outside").replace("exec ", "exec env ");
    let mut shell = node.tree.shell("kubepods/podexec/c", &command);
    let shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let output = shell.wait_with_output().unwrap();
    let init = said(&output.stdout, "pid ");
    let facts = node.until_empty(container).await;
    let certain: Vec<_> = facts
        .iter()
        .filter(|fact| {
            matches!(
                fact,
                KernelFact::Started { is_init: true, .. }
                    | KernelFact::Exited {
                        is_main: true,
                        is_init: true,
                        ..
                    }
            )
        })
        .collect();
    let expected = [
        of_init(started(init, "sh")),
        of_init(exited(init, true, KernelExit::Code(7), "sh")),
    ];
    assert_eq!(certain, expected.iter().collect::<Vec<_>>(), "{facts:?}");
    node.finish().await;
}

#[tokio::test]
async fn the_exit_of_a_process_whose_first_thread_ended_first_is_what_its_parent_is_told() {
    for last in ["0", "6"] {
        let tree = Tree::new();
        // There before the programs: its main process is not known, so every exit is told.
        let container = tree.make("kubepods/podold/c");
        let mut node = Followed::over(tree);
        let mut helper = node.tree.helper("kubepods/podold/c", "leader-ends-first");
        let helper = helper.env("LAST", last).output().unwrap();
        let pid = said(&helper.stdout, "pid ");
        let status = said(&helper.stdout, "status ");
        let facts = node.until_empty(container).await;
        let told: Vec<_> = facts
            .iter()
            .filter_map(|fact| match fact {
                KernelFact::Exited {
                    pid: one,
                    is_main,
                    exit,
                    ..
                } if *one == pid => Some((*is_main, *exit)),
                _ => None,
            })
            .collect();
        let exit = KernelExit::from_wait_status(i32::try_from(status).unwrap());
        assert_eq!(told, [(false, exit)], "{facts:?}");
        node.finish().await;
    }
}

#[tokio::test]
async fn a_containers_main_process_can_be_taught() {
    let tree = Tree::new();
    let container = tree.make("kubepods/burstable/podold/c");
    let pod = cgroup_id(&tree.path("kubepods/burstable/podold")).unwrap();
    let mut shell = tree.shell("kubepods/burstable/podold/c", "read line; exit 9");
    let mut shell = shell.stdin(Stdio::piped()).spawn().unwrap();
    let pid = shell.id();
    let (programs, reader) = open(&tree, Settings::default());
    let mut node = Followed::reading(tree, programs, reader, 64);
    let found = node.programs.follow(&node.tree.root()).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|one| (one.id, one.parent, &one.place))
        .collect();
    assert_eq!(found.len(), 3);
    let place = Place::Container(Some("c".into()));
    assert_eq!(found[2], (container, pod, &place));

    assert!(node.programs.set_main(container, pid).unwrap());
    assert!(!node.programs.set_main(CgroupId(u64::MAX), pid).unwrap());
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let facts = node.until_empty(container).await;
    assert_eq!(facts[0], exited(pid, true, KernelExit::Code(9), "sh"));

    // A pod that comes later in a class that was there is followed by the kernel.
    let pod = node.tree.make("kubepods/burstable/podnew");
    let container = node.tree.make("kubepods/burstable/podnew/c");
    let events = node.until(|event| event.cgroup == container).await;
    assert_eq!(
        events.last().map(|event| event.what.clone()),
        Some(made(pod, "c"))
    );
    node.finish().await;
}

#[tokio::test]
async fn a_process_in_a_nested_cgroup_belongs_to_the_container() {
    let mut node = Followed::new();
    for class in ["", "besteffort/"] {
        if !class.is_empty() {
            node.tree.make("kubepods/besteffort");
            let class = node.tree.path("kubepods/besteffort");
            node.programs.track_root(&class).unwrap();
        }
        let place = format!("kubepods/{class}podnest/c");
        let container = node.tree.make(&place);
        let inner = node.tree.make(&format!("{place}/inner/most"));
        let deep = node.tree.path(&place).join("inner/most/cgroup.procs");
        // Into the container, become its program, go deeper, end.
        let command = format!("exec sh -c 'echo $$ > {}; exit 4'", deep.display());
        let mut shell = node.tree.shell(&place, &command).spawn().unwrap();
        let pid = shell.id();
        shell.wait().unwrap();
        let events = node
            .until(|event| matches!(event.what, KernelFact::Exited { .. }))
            .await;
        let last = events.last().expect("the exit");
        assert_eq!(
            (last.cgroup, &last.what),
            (container, &exited(pid, true, KernelExit::Code(4), "sh"))
        );
        assert!(events.iter().all(|event| event.cgroup != inner));
    }
    node.finish().await;
}

#[tokio::test]
async fn the_memory_killers_victim_is_told_whether_main_process_or_child() {
    let mut node = Followed::new();
    let container = node.tree.make("kubepods/podoom/main");
    node.tree.limit_memory("kubepods/podoom/main", "30M");
    let mut hog = node
        .tree
        .shell("kubepods/podoom/main", &helper_command("eat"));
    let mut hog = hog.stdout(Stdio::null()).spawn().unwrap();
    let pid = hog.id();
    hog.wait().unwrap();
    let facts = node.until_empty(container).await;
    let victim = facts.iter().find_map(|fact| match fact {
        KernelFact::OomVictim { pid, is_main, .. } => Some((*pid, *is_main)),
        _ => None,
    });
    assert_eq!(victim, Some((pid, true)), "{facts:?}");
    let exit = facts.iter().find_map(|fact| match fact {
        KernelFact::Exited {
            pid, is_main, exit, ..
        } => Some((*pid, *is_main, *exit)),
        _ => None,
    });
    assert_eq!(exit, Some((pid, true, KernelExit::Signal(9))));

    // The main process is a shell, which outlives its child.
    let container = node.tree.make("kubepods/podoom/child");
    node.tree.limit_memory("kubepods/podoom/child", "30M");
    let inner = helper_command("eat").replace("exec ", "");
    let command = format!("exec sh -c '{inner}; test $? = 137 && exit 6'");
    let mut shell = node.tree.shell("kubepods/podoom/child", &command);
    let mut shell = shell.stdout(Stdio::null()).spawn().unwrap();
    let pid = shell.id();
    shell.wait().unwrap();
    let facts = node.until_empty(container).await;
    let told: Vec<_> = facts
        .iter()
        .filter_map(|fact| match fact {
            KernelFact::OomVictim {
                pid: one, is_main, ..
            } => Some((*one == pid, *is_main, None)),
            KernelFact::Exited {
                pid: one,
                is_main,
                exit,
                ..
            } => Some((*one == pid, *is_main, Some(*exit))),
            _ => None,
        })
        .collect();
    let expected = [
        (false, false, None),
        (false, false, Some(KernelExit::Signal(9))),
        (true, true, Some(KernelExit::Code(6))),
    ];
    assert_eq!(told, expected, "{facts:?}");
    node.finish().await;
}

#[tokio::test]
async fn processes_and_cgroups_outside_the_pods_root_give_nothing() {
    let mut node = Followed::new();
    node.tree.make("other/deep/deeper/still");
    let mut shell = node
        .tree
        .shell("other/deep/deeper/still", "exec sh -c 'exit 1'");
    shell.status().unwrap();
    Command::new("true").status().unwrap();
    let pod = node.tree.make("kubepods/podmark");
    let events = node.until(|event| event.cgroup == pod).await;
    assert_eq!(events.len(), 1, "{events:?}");
    node.finish().await;
}

#[tokio::test]
async fn a_v2_hierarchy_is_followed_through_its_own_identity() {
    let detected = Tree::new();
    // On a hybrid machine the v2 tree is there, without controllers.
    let mount = match detected.hierarchy.version {
        CgroupVersion::V1 => PathBuf::from("/sys/fs/cgroup/unified"),
        CgroupVersion::V2 => detected.hierarchy.mount.clone(),
    };
    let tree = Tree::in_hierarchy(Hierarchy {
        version: CgroupVersion::V2,
        id: 0,
        mount,
        mount_depth: 0,
    });
    let mut node = Followed::over(tree);
    let pod = node.tree.make("kubepods/podv2");
    let container = node.tree.make("kubepods/podv2/c");
    let nested = node.tree.make("kubepods/podv2/c/nested");
    let deep = node.tree.path("kubepods/podv2/c/nested/cgroup.procs");
    let command = format!("exec sh -c 'echo $$ > {}; exit 2'", deep.display());
    let mut shell = node
        .tree
        .shell("kubepods/podv2/c", &command)
        .spawn()
        .unwrap();
    let pid = shell.id();
    shell.wait().unwrap();
    node.tree.remove("kubepods/podv2/c/nested");
    node.tree.remove("kubepods/podv2/c");
    let events = node
        .until(|event| event.cgroup == container && event.what == KernelFact::Removed)
        .await;
    assert!(events.iter().all(|event| event.cgroup != nested));
    let of_container = events.into_iter().filter(|event| event.cgroup == container);
    let facts: Vec<_> = of_container.map(|event| event.what).collect();
    let expected = [
        made(pod, "c"),
        KernelFact::Attached { pid },
        started(pid, "sh"),
        exited(pid, true, KernelExit::Code(2), "sh"),
        KernelFact::Emptied,
        KernelFact::Removed,
    ];
    assert_eq!(facts, expected);
    node.finish().await;
}

#[tokio::test]
async fn what_does_not_fit_into_the_ring_is_counted_and_becomes_a_gap() {
    let tree = Tree::new();
    let page = u32::try_from(rustix::param::page_size()).unwrap();
    let settings = Settings {
        ring_bytes: page,
        ..Settings::default()
    };
    // Nobody reads yet.
    let (programs, reader) = open(&tree, settings);
    programs.follow(&tree.root()).unwrap();
    let pods = u64::from(page) / 128 + 20;
    for number in 0..pods {
        tree.make(&format!("kubepods/pod{number}"));
    }
    let losses = programs.losses().unwrap();
    assert!(losses.kernel_ring >= 20, "{losses:?}");
    assert_eq!(losses.kernel_map, 0);

    let mut node = Followed::reading(tree, programs, reader, 1024);
    let (events, gap) = node.until_gap(GapPlace::KernelRing).await;
    assert_eq!(gap.lost, losses.kernel_ring);
    assert_eq!(events.len() as u64 + gap.lost, pods);
    // What was not told is followed all the same.
    let last = node.tree.make(&format!("kubepods/pod{}/c", pods - 1));
    let events = node.until(|event| event.cgroup == last).await;
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn a_cgroup_that_does_not_fit_into_the_map_is_counted_and_becomes_a_gap() {
    let tree = Tree::new();
    let settings = Settings {
        max_tracked: 4,
        ..Settings::default()
    };
    let (programs, reader) = open(&tree, settings);
    let mut node = Followed::reading(tree, programs, reader, 1024);
    node.programs.follow(&node.tree.root()).unwrap();
    for number in 0..6 {
        node.tree.make(&format!("kubepods/pod{number}"));
    }
    // The root takes one place of four.
    let mut lost = 0;
    while lost < 3 {
        let (_, gap) = node.until_gap(GapPlace::KernelMap).await;
        lost += gap.lost;
    }
    let losses = Losses {
        kernel_ring: 0,
        kernel_map: 3,
    };
    assert_eq!(node.programs.losses().unwrap(), losses);
}

#[tokio::test]
async fn a_full_queue_never_stops_the_reader_and_becomes_a_gap() {
    let tree = Tree::new();
    let (programs, reader) = open(&tree, Settings::default());
    let mut node = Followed::reading(tree, programs, reader, 2);
    node.programs.follow(&node.tree.root()).unwrap();
    for number in 0..10 {
        node.tree.make(&format!("kubepods/pod{number}"));
    }
    let mut told = 0;
    let mut lost = 0;
    while told + lost < 10 {
        let (events, gap) = node.until_gap(GapPlace::Queue).await;
        told += events.len() as u64;
        lost += gap.lost;
    }
    assert_eq!(told + lost, 10);
    assert!(lost > 0);
    let pod = node.tree.make("kubepods/podlast");
    let events = node.until(|event| event.cgroup == pod).await;
    assert_eq!(events.len(), 1);
    node.finish().await;
}

#[tokio::test]
async fn dropped_programs_say_nothing_more() {
    let tree = Tree::new();
    let (first, reader) = open(&tree, Settings::default());
    first.follow(&tree.root()).unwrap();
    tree.make("kubepods/poda");
    drop(first);
    // A second set shows when the first would have spoken.
    let mut node = Followed::over(tree);
    let pod = node.tree.make("kubepods/podb");
    node.until(|event| event.cgroup == pod).await;

    let (out, mut news) = mpsc::channel(16);
    let mut readers = JoinSet::new();
    readers.spawn(reader.run(out, node.stop.clone()));
    let told = timeout(PATIENCE, news.recv()).await.unwrap();
    assert!(matches!(told, Some(KernelNews::Event(_))));
    node.finish().await;
    assert_eq!(news.recv().await, None);
}

#[test]
fn without_the_right_to_load_programs_the_error_says_what_is_needed() {
    let _root = Tree::new();
    let mut bare = Command::new("setpriv");
    bare.args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(env::current_exe().unwrap())
        .args(["helper", "--exact", "--nocapture"])
        .env(HELPER, "open");
    let output = bare.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("the bpf system call is not permitted (it needs CAP_BPF"),
        "{said}"
    );
}

/// The number that a helper says in a line of its own.
fn said(output: &[u8], before: &str) -> u32 {
    let text = String::from_utf8_lossy(output);
    let number = text.lines().find_map(|line| line.strip_prefix(before));
    let number = number.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no {before:?} in {text}"))
}

/// A part that other tests have this binary play in a process of its own; nothing without one.
#[test]
fn helper() {
    match env::var(HELPER).as_deref() {
        Ok("eat") => {
            let eaten = vec![1u8; 200 << 20];
            println!("{}", eaten.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        Ok("open") => {
            let hierarchy = Hierarchy::detect().unwrap();
            match bpf::open(&Settings::default(), &hierarchy) {
                Ok(_) => println!("opened"),
                Err(error) => println!("{error}"),
            }
        }
        Ok("init") => {
            go_into_cgroup();
            init();
        }
        // In the cgroup already, and has called exec there.
        Ok("init-outside") => init(),
        Ok("leader-ends-first") => leader_ends_first(),
        Ok(other) => panic!("an unknown part: {other}"),
        Err(_) => println!("no part to play"),
    }
}

fn go_into_cgroup() {
    fs::write(env::var("PROCS").unwrap(), "0").unwrap();
}

#[expect(unsafe_code, reason = "the runtime's part needs namespaces and fork")]
fn init() {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    let mut init = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
    println!("\npid {}", init.id());
    init.wait().unwrap();
}

#[expect(
    unsafe_code,
    reason = "threads must end one by one, which only the system call does"
)]
fn leader_ends_first() {
    go_into_cgroup();
    // SAFETY: the child goes on with this thread alone, and starts threads anew.
    let child = unsafe { libc::fork() };
    if child > 0 {
        println!("\npid {child}");
        let mut status = 0;
        // SAFETY: room for the status.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        println!("status {status}");
        return;
    }
    let last = std::thread::spawn(|| {
        let leader = format!("/proc/self/task/{}/stat", std::process::id());
        while !fs::read_to_string(&leader).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let status: i32 = env::var("LAST").unwrap().parse().unwrap();
        // SAFETY: ends this thread; nothing of it is used after.
        unsafe { libc::syscall(libc::SYS_exit, status) };
    });
    std::mem::forget(last);
    // SAFETY: ends this thread, the first of its process; nothing of it is used after.
    unsafe { libc::syscall(libc::SYS_exit, 5) };
}
