//! Volumes with real mounts. Needs root: the tests run again, each by itself, in a mount namespace
//! of its own, so that nothing that they mount can reach or stay on the machine.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use agent::{
    host::mount::{self, Mounts},
    types::{
        id::PodUid,
        pod::{Pod, SourceKind},
        quantity::Quantity,
    },
    volume::{Error, Settings, Volumes},
};
use serde_json::{Value, json};

const INSIDE: &str = "SKEP_TEST_IN_MOUNT_NAMESPACE";

/// True in the namespace. Outside, runs the test of this name there and checks that the machine's
/// mounts are as before.
fn is_inside(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let before = mount_points();
    // Its output is kept apart: it has a result of its own, which would be counted as well.
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(env::current_exe().expect("a running test has a file"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare (util-linux) runs");
    assert!(
        output.status.success(),
        "{name} failed in its mount namespace: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let ours = |point: &&PathBuf| point.to_string_lossy().contains("skep-mounts-");
    assert_eq!(mount_points().iter().find(ours), None, "of {before:?}");
    false
}

fn mount_points() -> Vec<PathBuf> {
    let table = Mounts::read().unwrap();
    table
        .below(Path::new("/"))
        .map(|mount| mount.point.clone())
        .collect()
}

fn temp() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("skep-mounts-")
        .tempdir()
        .unwrap()
}

fn volumes(root: &Path) -> Volumes {
    Volumes::new(Settings {
        root: root.to_owned(),
        allocatable_memory: Quantity::of(1 << 30),
        is_selinux_enabled: false,
    })
}

fn pod(spec: Value) -> Pod {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-1"},
        "spec": spec,
    });
    Pod::new(serde_json::from_value(object).unwrap(), SourceKind::File)
}

fn uid() -> PodUid {
    "uid-1".into()
}

fn is_mounted(path: &Path) -> bool {
    mount::is_mount_point(path).unwrap()
}

#[tokio::test]
async fn memory_volumes_have_their_size_and_outlive_a_second_set_up() {
    if !is_inside("memory_volumes_have_their_size_and_outlive_a_second_set_up") {
        return;
    }
    let root = temp();
    let volumes = volumes(root.path());
    let pod = pod(json!({
        "securityContext": {"fsGroup": 4321},
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}],
        "containers": [{"name": "app", "volumeMounts": [{"name": "shm", "mountPath": "/shm"}]}],
    }));
    volumes.set_up(&pod).await.unwrap();
    let shm = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/shm");
    assert!(is_mounted(&shm));
    let size = rustix::fs::statvfs(&shm).unwrap();
    assert_eq!(size.f_blocks * size.f_frsize, 8 << 20);
    let metadata = fs::metadata(&shm).unwrap();
    // The sticky bit is the kernel's own choice for the root of a tmpfs, and upstream leaves it.
    assert_eq!(metadata.mode() & 0o7777, 0o3777);
    assert_eq!(metadata.gid(), 4321);

    fs::write(shm.join("file"), "text").unwrap();
    volumes.set_up(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(shm.join("file")).unwrap(), "text");

    // After a reboot the marker is there and the memory is not.
    mount::unmount_all(&shm).unwrap();
    volumes.set_up(&pod).await.unwrap();
    assert!(is_mounted(&shm));
    assert!(!shm.join("file").exists());

    volumes.tear_down(&uid()).await.unwrap();
    assert!(!root.path().join("pods/uid-1").exists());
}

fn with_subpath(volume: Value, path: &str) -> Pod {
    pod(json!({
        "volumes": [{"name": "data", "emptyDir": volume}],
        "containers": [{"name": "app", "volumeMounts": [
            {"name": "data", "mountPath": "/all"},
            {"name": "data", "mountPath": "/part", "subPath": path},
        ]}],
    }))
}

async fn bound(volumes: &Volumes, pod: &Pod) -> Result<PathBuf, Error> {
    let mounts = volumes.mounts(pod, &pod.spec().containers[0], &[]).await?;
    Ok(PathBuf::from(&mounts[1].host_path))
}

#[tokio::test]
async fn subpaths_are_bound_to_a_place_of_the_agents() {
    if !is_inside("subpaths_are_bound_to_a_place_of_the_agents") {
        return;
    }
    let root = temp();
    let volumes = volumes(root.path());
    let pod = with_subpath(json!({}), "a/b");
    volumes.set_up(&pod).await.unwrap();
    let data = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/data");

    let target = bound(&volumes, &pod).await.unwrap();
    assert_eq!(
        target,
        root.path().join("pods/uid-1/volume-subpaths/data/app/1")
    );
    assert!(is_mounted(&target));
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o777);
    fs::write(target.join("file"), "text").unwrap();
    assert_eq!(fs::read_to_string(data.join("a/b/file")).unwrap(), "text");

    // The same folder: the same mount. Another one in its place: bound anew.
    bound(&volumes, &pod).await.unwrap();
    let here = Mounts::read().unwrap();
    assert_eq!(here.below(&target).count(), 1);
    fs::rename(data.join("a/b"), data.join("a/old")).unwrap();
    fs::write(data.join("a/b"), "a file now").unwrap();
    assert_eq!(bound(&volumes, &pod).await.unwrap(), target);
    assert_eq!(fs::read_to_string(&target).unwrap(), "a file now");

    volumes.tear_down(&uid()).await.unwrap();
    assert!(!root.path().join("pods/uid-1").exists());
}

#[tokio::test]
async fn no_link_in_a_volume_leads_out_of_it() {
    if !is_inside("no_link_in_a_volume_leads_out_of_it") {
        return;
    }
    let root = temp();
    let outside = temp();
    let volumes = volumes(root.path());
    let pod = with_subpath(json!({}), "link/new");
    volumes.set_up(&pod).await.unwrap();
    let data = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/data");
    std::os::unix::fs::symlink(outside.path(), data.join("link")).unwrap();

    let error = bound(&volumes, &pod).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to create subPath directory for volumeMount \"data\" of container \"app\""
    );
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    volumes.tear_down(&uid()).await.unwrap();
    assert!(outside.path().is_dir());
}

#[tokio::test]
async fn what_somebody_else_mounted_is_neither_unmounted_nor_emptied() {
    if !is_inside("what_somebody_else_mounted_is_neither_unmounted_nor_emptied") {
        return;
    }
    let root = temp();
    let volumes = volumes(root.path());
    let pod = with_subpath(json!({}), "a");
    volumes.set_up(&pod).await.unwrap();
    bound(&volumes, &pod).await.unwrap();
    let foreign = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/data/foreign");
    fs::create_dir(&foreign).unwrap();
    mount::tmpfs(&foreign, Some(1 << 20)).unwrap();
    fs::write(foreign.join("file"), "precious").unwrap();

    let error = volumes.tear_down(&uid()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("something is mounted at foreign"),
        "{error}"
    );
    assert_eq!(
        fs::read_to_string(foreign.join("file")).unwrap(),
        "precious"
    );

    mount::unmount_all(&foreign).unwrap();
    volumes.tear_down(&uid()).await.unwrap();
    assert!(!root.path().join("pods/uid-1").exists());
}

#[tokio::test]
async fn an_orphan_with_a_mount_in_it_stays_until_it_is_unmounted() {
    if !is_inside("an_orphan_with_a_mount_in_it_stays_until_it_is_unmounted") {
        return;
    }
    let root = temp();
    let volumes = volumes(root.path());
    let mounted = root.path().join("pods/uid-1/volumes/some~plugin/v");
    fs::create_dir_all(&mounted).unwrap();
    mount::tmpfs(&mounted, None).unwrap();

    let error = volumes.tear_down(&uid()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("something is still mounted at {}", mounted.display())
    );
    mount::unmount_all(&mounted).unwrap();
    volumes.tear_down(&uid()).await.unwrap();
    assert!(!root.path().join("pods/uid-1").exists());
}

#[tokio::test]
async fn the_root_folder_becomes_shared_once() {
    if !is_inside("the_root_folder_becomes_shared_once") {
        return;
    }
    let root = temp();
    mount::make_shared(root.path()).unwrap();
    mount::make_shared(root.path()).unwrap();
    let real = root.path().canonicalize().unwrap();
    let table = Mounts::read().unwrap();
    let ours: Vec<_> = table.below(&real).collect();
    assert_eq!(ours.len(), 1);
    assert!(ours[0].is_shared && ours[0].point == real);
    mount::unmount_all(&real).unwrap();
}
