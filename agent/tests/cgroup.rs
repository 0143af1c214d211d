//! Cgroups on the kernel itself, in a cgroup of the test's own that is gone afterwards. Needs root
//! and, for all but one test, the v1 controllers; says so and passes where it can't run.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use agent::{
    config::{CgroupDriver, CgroupSettings, Reserved},
    host::{
        cgroup::{Cgroups, Machine, Tree, read},
        hierarchy::CgroupVersion,
    },
    oom::{Level, Watch},
    types::{
        clock::Mono,
        id::PodUid,
        pod::{Pod, SourceKind},
        quantity::Quantity,
    },
};
use serde_json::{Value, json};

/// A cgroup of one test's in every v1 controller, with everything below it.
struct Root {
    name: String,
    mounts: Vec<PathBuf>,
}

impl Root {
    fn new(test: &str) -> Option<Self> {
        let mounts = v1_mounts();
        if !rustix::process::geteuid().is_root() || mounts.len() < 6 {
            eprintln!("not run: needs root and cgroup v1 controllers");
            return None;
        }
        let name = format!("/skep-test-{}-{test}", std::process::id());
        let root = Self { name, mounts };
        for directory in root.directories("") {
            fs::create_dir(&directory).expect("the test's own cgroup");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let path = directory.join(file);
                if path.exists() {
                    let parents = directory.parent().expect("a mount").join(file);
                    fs::write(path, fs::read(parents).expect("read")).expect("written");
                }
            }
        }
        Some(root)
    }

    fn directories(&self, below: &str) -> Vec<PathBuf> {
        let name = format!("{}/{below}", self.name);
        let join = |mount: &PathBuf| mount.join(name.trim_matches('/'));
        self.mounts.iter().map(join).collect()
    }

    fn file(&self, controller: &str, below: &str, file: &str) -> String {
        let mount = self.mounts.iter().find(|mount| mount.ends_with(controller));
        let path = mount
            .expect("mounted")
            .join(self.name.trim_start_matches('/'));
        let text = fs::read_to_string(path.join(below).join(file));
        text.expect("the file is there").trim().to_owned()
    }

    fn settings(&self) -> CgroupSettings {
        CgroupSettings {
            root: self.name.clone(),
            ..settings()
        }
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::new(&self.settings(), CgroupVersion::V1, machine()).expect("v1 is usable")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for directory in self.directories("") {
            let mut all: Vec<_> = walkdir::WalkDir::new(&directory)
                .into_iter()
                .flatten()
                .filter(|entry| entry.file_type().is_dir())
                .collect();
            all.reverse();
            for entry in all {
                let _ = fs::remove_dir(entry.path());
            }
            if !std::thread::panicking() {
                assert!(!directory.exists(), "{} is left", directory.display());
            }
        }
    }
}

fn v1_mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let mut all: Vec<PathBuf> = text
        .lines()
        .filter(|line| line.contains(" - cgroup "))
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .collect();
    all.sort();
    all.dedup();
    all
}

fn settings() -> CgroupSettings {
    CgroupSettings {
        root: "/".to_owned(),
        driver: CgroupDriver::Cgroupfs,
        per_qos: true,
        fail_v1: false,
        pids_limit: Some(64),
        cpu_cfs_quota: true,
        cpu_cfs_quota_period: Duration::from_millis(50),
        single_process_oom_kill: None,
        enforce_pods: true,
        system_reserved: Reserved {
            memory: Quantity::of(1 << 30),
            ..Reserved::default()
        },
        kube_reserved: Reserved::default(),
    }
}

fn machine() -> Machine {
    Machine {
        cpu: Quantity::of(2),
        memory: Quantity::of(4 << 30),
        pids: Quantity::of(1000),
    }
}

fn pod(uid: &str, resources: Value) -> Pod {
    let object = serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "app", "resources": resources}]},
    }))
    .expect("a pod");
    Pod::new(object, SourceKind::File)
}

fn burstable(uid: &str, memory: &str) -> Pod {
    pod(
        uid,
        json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": memory}}),
    )
}

/// A process that does not outlive the test, however that ends.
struct Process(Child);

impl Process {
    fn id(&self) -> u32 {
        self.0.id()
    }

    /// The signal that ended it.
    fn wait(&mut self) -> Option<i32> {
        self.0.wait().expect("waited").signal()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command as the only process of a cgroup.
fn run_in(directories: &[PathBuf], command: &[&str]) -> Process {
    let joined: Vec<String> = directories
        .iter()
        .map(|directory| format!("echo $$ > {}/cgroup.procs", directory.display()))
        .collect();
    let script = format!("{} && exec \"$@\"", joined.join(" && "));
    let child = Command::new("sh")
        .args(["-c", &script, "sh"])
        .args(command)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.expect("sh runs"))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = tokio::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn pods_get_a_tree_of_classes_with_their_limits() {
    let Some(root) = Root::new("limits") else {
        return;
    };
    let cgroups = root.cgroups();
    let pod = burstable("u1", "64Mi");
    cgroups.ensure_root(&[]).await.expect("made");
    cgroups.enforce_allocatable().await.expect("enforced");
    assert_eq!(
        root.file("memory", "kubepods", "memory.limit_in_bytes"),
        (3_u64 << 30).to_string()
    );
    assert_eq!(root.file("cpu", "kubepods", "cpu.shares"), "2048");
    assert_eq!(root.file("pids", "kubepods", "pids.max"), "1000");
    assert_eq!(root.file("cpu", "kubepods/besteffort", "cpu.shares"), "2");
    assert_eq!(root.file("cpu", "kubepods/burstable", "cpu.shares"), "2");

    cgroups
        .update_qos(std::slice::from_ref(&pod))
        .await
        .expect("weighed");
    assert_eq!(root.file("cpu", "kubepods/burstable", "cpu.shares"), "256");

    assert!(cgroups.ensure_pod(&pod).await.expect("made"));
    let at = "kubepods/burstable/podu1";
    assert_eq!(root.file("cpu", at, "cpu.shares"), "256");
    assert_eq!(root.file("cpu", at, "cpu.cfs_period_us"), "50000");
    assert_eq!(root.file("cpu", at, "cpu.cfs_quota_us"), "25000");
    assert_eq!(
        root.file("memory", at, "memory.limit_in_bytes"),
        (64 << 20).to_string()
    );
    assert_eq!(root.file("pids", at, "pids.max"), "64");
    assert_eq!(
        root.file("cpuset", at, "cpuset.cpus"),
        root.file("cpuset", "", "cpuset.cpus")
    );
    assert_eq!(
        cgroups.parent_for_runtime(&pod),
        format!("{}/{at}", root.name)
    );
    assert!(cgroups.pod_directory(&pod).starts_with(cgroups.pods_root()));

    // A cgroup that exists is adopted as it is.
    let shares = root
        .directories(at)
        .into_iter()
        .find(|d| d.join("cpu.shares").exists());
    fs::write(shares.expect("cpu").join("cpu.shares"), "77").expect("written");
    assert!(!root.cgroups().ensure_pod(&pod).await.expect("found"));
    assert_eq!(root.file("cpu", at, "cpu.shares"), "77");

    cgroups.reduce_cpu(pod.uid()).await.expect("reduced");
    assert_eq!(root.file("cpu", at, "cpu.shares"), "2");
    cgroups.remove_pod(pod.uid()).await.expect("removed");
}

#[tokio::test]
async fn a_removed_pod_leaves_no_process_and_no_cgroup() {
    let Some(root) = Root::new("remove") else {
        return;
    };
    let cgroups = root.cgroups();
    cgroups.ensure_root(&[]).await.expect("made");
    let pods = [pod("u1", json!({})), burstable("u2", "64Mi")];
    for pod in &pods {
        cgroups.ensure_pod(pod).await.expect("made");
    }
    let all: BTreeSet<PodUid> = ["u1", "u2"].into_iter().map(PodUid::from).collect();
    assert_eq!(cgroups.pod_uids().await.expect("listed"), all);

    let container = root.directories("kubepods/besteffort/podu1/container");
    for directory in &container {
        fs::create_dir_all(directory.join("nested")).expect("made");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if directory.join(file).exists() {
                let value = root.file("cpuset", "", file);
                fs::write(directory.join(file), value).expect("written");
            }
        }
    }
    let mut child = run_in(&container, &["sleep", "60"]);
    wait_until("the process is in all cgroups", || {
        container
            .iter()
            .all(|directory| read::processes(directory).is_ok_and(|all| all == [child.id()]))
    });
    let waiting = tokio::task::spawn_blocking(move || child.wait());
    cgroups
        .remove_pod(&PodUid::from("u1"))
        .await
        .expect("removed");
    assert_eq!(waiting.await.expect("joined"), Some(9));
    for directory in root.directories("kubepods/besteffort/podu1") {
        assert!(!directory.exists(), "{} is left", directory.display());
    }
    assert_eq!(
        cgroups.pod_uids().await.expect("listed"),
        BTreeSet::from([PodUid::from("u2")])
    );
    cgroups
        .remove_pod(&PodUid::from("u2"))
        .await
        .expect("removed");
    cgroups
        .remove_pod(&PodUid::from("u2"))
        .await
        .expect("nothing there is fine");
}

#[tokio::test]
async fn a_pod_whose_limits_are_refused_has_no_cgroup() {
    let Some(root) = Root::new("refused") else {
        return;
    };
    let mut settings = root.settings();
    root.cgroups().ensure_root(&[]).await.expect("made");
    settings.pids_limit = Some(i64::MAX);
    let cgroups = Cgroups::new(&settings, CgroupVersion::V1, machine()).expect("usable");
    let error = cgroups
        .ensure_pod(&pod("u1", json!({})))
        .await
        .expect_err("refused");
    let text = error.to_string();
    assert!(
        text.contains("pids.max") && text.contains("Invalid argument"),
        "{text}"
    );
    assert!(cgroups.pod_uids().await.expect("listed").is_empty());
}

#[tokio::test]
async fn a_root_that_is_not_there_is_named() {
    let Some(root) = Root::new("missing") else {
        return;
    };
    let mut settings = root.settings();
    settings.root = format!("{}/nope", root.name);
    let cgroups = Cgroups::new(&settings, CgroupVersion::V1, machine()).expect("usable");
    let error = cgroups.ensure_root(&[]).await.expect_err("not there");
    let start = format!(
        "invalid configuration: cgroup [\"{}\" \"nope\"] has some missing paths: ",
        root.name.trim_start_matches('/')
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn what_is_not_built_or_cannot_be_is_refused() {
    let tree = || Tree::detect(CgroupVersion::V1);
    if v1_mounts().len() < 6 {
        eprintln!("not run: needs cgroup v1 controllers");
        return;
    }
    let mut systemd = settings();
    systemd.driver = CgroupDriver::Systemd;
    let error = Cgroups::on_tree(&systemd, machine(), tree().expect("v1")).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "cgroupDriver systemd is not built yet: use cgroupfs"
    );
    let mut greedy = settings();
    greedy.kube_reserved.memory = Quantity::of(4 << 30);
    let error = Cgroups::on_tree(&greedy, machine(), tree().expect("v1")).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of \
         5368709120 but capacity of 4294967296. Expected capacity >= reservation."
    );
}

/// A v2 tree of its own below the machine's, with the controllers that were handed down to it: on a
/// hybrid machine none, which leaves the folders and the processes to test.
#[tokio::test]
async fn the_same_tree_is_made_on_v2() {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let mount = text.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(4)) else {
        eprintln!("not run: no cgroup v2 mount");
        return;
    };
    let own = Path::new(mount).join(format!("skep-test-{}-v2", std::process::id()));
    if fs::create_dir(&own).is_err() {
        eprintln!("not run: needs root");
        return;
    }
    let tree = Tree::v2_at(&own).expect("a v2 tree");
    let cgroups = Cgroups::on_tree(&settings(), machine(), tree).expect("usable");
    cgroups.ensure_root(&[]).await.expect("made");
    let pod = burstable("u1", "64Mi");
    assert!(cgroups.ensure_pod(&pod).await.expect("made"));
    assert!(!cgroups.ensure_pod(&pod).await.expect("found"));
    let directory = own.join("kubepods/burstable/podu1");
    assert_eq!(cgroups.pod_directory(&pod), directory);
    let mut child = run_in(std::slice::from_ref(&directory), &["sleep", "60"]);
    wait_until("the process is in the cgroup", || {
        read::processes(&directory).is_ok_and(|all| all == [child.id()])
    });
    let waiting = tokio::task::spawn_blocking(move || child.wait());
    cgroups.remove_pod(pod.uid()).await.expect("removed");
    assert_eq!(waiting.await.expect("joined"), Some(9));
    assert!(!directory.exists());
    for name in ["kubepods/burstable", "kubepods/besteffort", "kubepods", ""] {
        fs::remove_dir(own.join(name)).expect("removed");
    }
}

/// Allocates and touches `mib` in the container's cgroup; how it ended.
fn hog(container: &Path, mib: u32) -> Option<i32> {
    let block = format!("bs={mib}M");
    let command = ["dd", "if=/dev/zero", "of=/dev/null", &block, "count=1"];
    let mut child = run_in(&[container.to_owned()], &command);
    child.wait()
}

fn limit(directory: &Path, mib: u64) {
    let file = directory.join("memory.limit_in_bytes");
    fs::write(file, (mib << 20).to_string()).expect("written");
}

#[tokio::test]
async fn the_kernels_counters_tell_whose_memory_limit_was_hit() {
    let Some(root) = Root::new("oom") else { return };
    let cgroups = root.cgroups();
    cgroups.ensure_root(&[]).await.expect("made");
    let pod = burstable("u1", "256Mi");
    cgroups.ensure_pod(&pod).await.expect("made");
    let directory = cgroups.pod_directory(&pod);
    let class = directory.parent().expect("a class").to_owned();
    let container = directory.join("container");
    fs::create_dir(&container).expect("made");
    let mut watch = Watch::new(CgroupVersion::V1, cgroups.pods_root());
    let unlimited = 8 << 30 >> 20;

    // The limits of container, pod, class and all pods, in MiB, and whose was hit.
    let cases = [
        ([48, 256, unlimited, unlimited], Level::Container, Some(48)),
        ([200, 64, unlimited, unlimited], Level::Pod, Some(64)),
        ([200, 200, 80, unlimited], Level::Qos, Some(80)),
        ([200, 200, 200, 96], Level::Pods, Some(96)),
        ([64, 64, unlimited, unlimited], Level::Container, Some(64)),
    ];
    for (limits, want, mib) in cases {
        let levels = [&container, &directory, &class, &cgroups.pods_root()];
        for (directory, mib) in levels.into_iter().zip(limits) {
            limit(directory, mib);
        }
        watch.note_start(&container);
        let kills = read::memory_kills(&container, CgroupVersion::V1).expect("read");
        assert_eq!(
            hog(&container, 128),
            Some(9),
            "{limits:?}: killed for memory"
        );
        assert_eq!(
            read::memory_kills(&container, CgroupVersion::V1).expect("read"),
            kills + 1,
            "the kill shows in the victim's cgroup whatever limit was hit"
        );
        let hit = watch.attribute_kill(&container, Mono::now());
        assert_eq!(hit.level, want, "{limits:?}");
        assert_eq!(hit.bytes, mib.map(|mib| mib << 20));
    }

    // A pod of one limited container has the same limit, and with its pause container reaches it
    // first. Either counter may rise; the container's limit is what the user wrote.
    let pause = directory.join("pause");
    fs::create_dir(&pause).expect("made");
    let sleeper = run_in(std::slice::from_ref(&pause), &["sleep", "60"]);
    wait_until("it runs there", || {
        read::processes(&pause).is_ok_and(|all| all == [sleeper.id()])
    });
    assert_eq!(hog(&container, 128), Some(9));
    let after_the_burst = Mono(Mono::now().0 + 2_000_000_000);
    let hit = watch.attribute_kill(&container, after_the_burst);
    assert_eq!((hit.level, hit.bytes), (Level::Container, Some(64 << 20)));
    drop(sleeper);

    // A process killed by hand raises nothing.
    let child = run_in(std::slice::from_ref(&container), &["sleep", "60"]);
    wait_until("it runs there", || {
        read::processes(&container).is_ok_and(|all| all == [child.id()])
    });
    let after_the_burst = Mono(Mono::now().0 + 4_000_000_000);
    drop(child);
    let hit = watch.attribute_kill(&container, after_the_burst);
    assert_eq!(hit.level, Level::Machine);

    watch.forget(&container);
    assert!(watch.is_empty());
    cgroups.remove_pod(pod.uid()).await.expect("removed");
}
