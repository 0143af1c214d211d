//! The agent's own containerd, for real: run by `cargo xtask test`, as root, in a box of namespaces.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use agent::supervise::{Settings, State, Supervised, start_or_adopt, stop};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(60);

/// Where things are; none (and a line that `cargo xtask test` counts as a failure) outside a box.
fn settings(test: &str, bin_dirs: &str) -> Option<Settings> {
    let (Some(dir), Some(images)) = (
        env::var_os("SKEP_TEST_DIR"),
        env::var_os("SKEP_TEST_IMAGES"),
    ) else {
        println!("SKIPPED {test}: needs the box of cargo xtask test");
        return None;
    };
    let root = Path::new(&dir).join(test);
    fs::create_dir_all(&root).unwrap();
    let mut settings = Settings::for_root(&root, "skep.local/pause:1");
    settings.images_dir = Some(images.into());
    settings.bin_dirs = env::split_paths(bin_dirs).collect();
    Some(settings)
}

fn ctr(settings: &Settings, args: &[&str]) -> String {
    let program = settings
        .bin_dirs
        .iter()
        .map(|dir| dir.join("ctr"))
        .find(|file| file.is_file())
        .unwrap_or_else(|| PathBuf::from("ctr"));
    let output = Command::new(program)
        .arg("--address")
        .arg(settings.dir.join("containerd.sock"))
        .args(["--namespace", "k8s.io"])
        .args(args)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "ctr {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn pid_of(supervised: &Supervised) -> i32 {
    match *supervised.state.borrow() {
        State::Running { pid } => pid,
        State::Restarting { ref why } => panic!("not running: {why}"),
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// `name` is the container's: its cgroup has that name, and so it must be unique on the machine.
async fn lives_and_ends(settings: Settings, name: &str) {
    let stop_token = CancellationToken::new();
    let (supervised, task) = timeout(LIMIT, start_or_adopt(settings.clone()))
        .await
        .unwrap()
        .unwrap();
    assert!(!supervised.is_adopted);
    let images = ctr(&settings, &["images", "list", "-q"]);
    for image in ["skep.local/pause:1", "skep.local/busybox:1"] {
        assert!(images.lines().any(|line| line == image), "{images}");
    }

    // A container outlives the containerd, and a killed containerd comes back by itself.
    ctr(
        &settings,
        &[
            "run",
            "--detach",
            "skep.local/busybox:1",
            name,
            "sleep",
            "1000",
        ],
    );
    let tasks = ctr(&settings, &["tasks", "list"]);
    let sleeper: i32 = tasks
        .lines()
        .find(|line| line.starts_with(name))
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("the container's pid");
    let first = pid_of(&supervised);
    let mut state = supervised.state.clone();
    let running = tokio::task::LocalSet::new();
    running
        .run_until(async {
            let token = stop_token.clone();
            let watcher = tokio::task::spawn_local(task.run(token));
            kill(first);
            let back =
                state.wait_for(|state| matches!(state, State::Running { pid } if *pid != first));
            timeout(LIMIT, back).await.unwrap().unwrap();
            stop_token.cancel();
            watcher.await.unwrap();
        })
        .await;
    let second = pid_of(&supervised);
    assert!(is_alive(sleeper), "the container died with containerd");
    assert!(is_alive(second), "containerd ended with its watcher");

    // The next agent finds it, and reads no archive twice.
    let marks = || {
        let mut marks: Vec<_> = fs::read_dir(settings.dir.join("imported"))
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().modified().unwrap())
            .collect();
        marks.sort();
        marks
    };
    let before = marks();
    // As if the agent had been killed before it could write the file.
    fs::remove_file(settings.dir.join("containerd.pid")).unwrap();
    let (adopted, _task) = timeout(LIMIT, start_or_adopt(settings.clone()))
        .await
        .unwrap()
        .unwrap();
    assert!(adopted.is_adopted);
    assert_eq!(pid_of(&adopted), second);
    assert_eq!(marks(), before);
    assert_eq!(before.len(), 2);

    let stopped = timeout(LIMIT, stop(&settings)).await.unwrap().unwrap();
    assert!(stopped.containerd);
    assert_eq!(stopped.shims, 1);
    assert!(!is_alive(sleeper), "the container is still there");
    assert!(!is_alive(second), "containerd is still there");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = settings.dir.to_str().unwrap();
    assert!(!mounts.contains(dir), "{mounts}");
    for gone in ["state", "containerd.pid", "containerd.sock", "cni/ipam"] {
        assert!(!settings.dir.join(gone).exists(), "{gone} is still there");
    }
    // Its shim was killed, so nobody has removed its cgroups.
    for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap() {
        let parent = hierarchy.unwrap().path().join("k8s.io");
        let _ = fs::remove_dir(parent.join(name));
        let _ = fs::remove_dir(parent);
    }

    // Nothing is there to stop, and that is fine.
    let stopped = timeout(LIMIT, stop(&settings)).await.unwrap().unwrap();
    assert!(!stopped.containerd && stopped.shims == 0 && stopped.mounts == 0);
}

#[tokio::test]
async fn the_tested_containerd_lives_survives_and_ends() {
    let bin_dirs = env::var("SKEP_TEST_BIN_DIRS").unwrap_or_default();
    if let Some(settings) = settings("tested", &bin_dirs) {
        lives_and_ends(settings, "skep-test-tested").await;
    }
}

#[tokio::test]
async fn the_distributions_containerd_lives_survives_and_ends() {
    if let Some(settings) = settings("distribution", "") {
        lives_and_ends(settings, "skep-test-distribution").await;
    }
}
