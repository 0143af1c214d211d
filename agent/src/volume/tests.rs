use super::*;
use crate::types::pod::SourceKind;
use rstest::rstest;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;

fn pod(volumes: Value, mounts: Value) -> Pod {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-1"},
        "spec": {"volumes": volumes, "containers": [{"name": "app", "volumeMounts": mounts}]},
    });
    Pod::new(serde_json::from_value(object).unwrap(), SourceKind::File)
}

fn volumes(root: &Path) -> Volumes {
    Volumes::new(Settings {
        root: root.to_owned(),
        allocatable_memory: Quantity::of(1 << 30),
        is_selinux_enabled: false,
    })
}

async fn mounts_of(pod: &Pod, root: &Path) -> Result<Vec<Mount>, String> {
    let container = &pod.spec().containers[0];
    let envs = [
        ("A".to_owned(), "a".to_owned()),
        ("E".to_owned(), String::new()),
    ];
    volumes(root)
        .mounts(pod, container, &envs)
        .await
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn makes_the_folders_and_only_the_volumes_that_are_used() {
    let root = tempfile::tempdir().unwrap();
    let pod = pod(
        json!([
            {"name": "data", "emptyDir": {}},
            {"name": "unused", "configMap": {"name": "missing"}},
            {"name": "host", "hostPath": {"path": root.path(), "type": "Directory"}},
        ]),
        json!([
            {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"},
            {"name": "host", "mountPath": "host", "readOnly": true},
        ]),
    );
    volumes(root.path()).set_up(&pod).await.unwrap();
    let dirs = PodDirs::new(root.path(), pod.uid());
    for path in [dirs.root().to_owned(), dirs.volumes(), dirs.plugins()] {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o750);
    }
    let data = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/data");
    assert!(data.is_dir());
    assert!(
        root.path()
            .join("pods/uid-1/plugins/kubernetes.io~empty-dir/data/ready")
            .exists()
    );

    let mounts = mounts_of(&pod, root.path()).await.unwrap();
    assert_eq!(Path::new(&mounts[0].host_path), data);
    assert_eq!(mounts[0].container_path, "/data");
    assert_eq!(
        mounts[0].propagation(),
        MountPropagation::PropagationHostToContainer
    );
    assert!(!mounts[0].readonly);
    assert_eq!(Path::new(&mounts[1].host_path), root.path());
    assert_eq!(mounts[1].container_path, "/host");
    assert!(mounts[1].readonly);

    volumes(root.path()).tear_down(pod.uid()).await.unwrap();
    assert!(!dirs.root().exists());
    volumes(root.path()).tear_down(pod.uid()).await.unwrap();
}

#[tokio::test]
async fn tells_of_each_volume_that_failed_and_sets_up_the_others() {
    let root = tempfile::tempdir().unwrap();
    let pod = pod(
        json!([
            {"name": "a", "hostPath": {"path": "/proc/none", "type": "File"}},
            {"name": "b", "emptyDir": {}},
            {"name": "c", "nfs": {"server": "x", "path": "/"}},
        ]),
        json!([
            {"name": "a", "mountPath": "/a"},
            {"name": "b", "mountPath": "/b"},
            {"name": "c", "mountPath": "/c"},
        ]),
    );
    let error = volumes(root.path()).set_up(&pod).await.unwrap_err();
    let Error::SetUp(failed) = error else {
        panic!("{error}");
    };
    let messages: Vec<_> = failed.iter().map(FailedVolume::to_string).collect();
    assert_eq!(
        messages,
        [
            "MountVolume.SetUp failed for volume \"a\" : hostPath type check failed, /proc/none is not a file, unable to determine its type: path \"/proc/none\" does not exist",
            "MountVolume.SetUp failed for volume \"c\" : volumes of this kind are not supported yet",
        ]
    );
    assert!(
        root.path()
            .join("pods/uid-1/volumes/kubernetes.io~empty-dir/b")
            .is_dir()
    );
}

#[rstest]
#[case(json!({"subPath": "/x"}), "error SubPath `/x` must not be an absolute path")]
#[case(json!({"subPath": "a/../b"}), "unable to provision SubPath `a/../b`: must not contain '..'")]
#[case(json!({"subPathExpr": "$(E)/$(Z)"}), "missing value for E, Z")]
#[case(json!({"subPathExpr": "/$(A)"}), "error SubPath `/a` must not be an absolute path")]
#[case(json!({"mountPropagation": "Up"}), "invalid MountPropagation mode: \"Up\"")]
#[case(json!({"name": "none"}), "cannot find volume \"none\" to mount into container \"app\"")]
#[case(json!({"recursiveReadOnly": "Enabled"}),
    "failed to resolve recursive read-only mode: volume \"data\" requested recursive read-only mode, but it is not read-only")]
#[case(json!({"recursiveReadOnly": "Enabled", "readOnly": true}),
    "failed to resolve recursive read-only mode: volume \"data\" requested recursive read-only mode, but it is not supported by the runtime")]
#[case(json!({"subPath": "file/x"}),
    "failed to create subPath directory for volumeMount \"data\" of container \"app\"")]
#[tokio::test]
async fn refuses_mounts_that_cannot_be(#[case] fields: Value, #[case] message: &str) {
    let root = tempfile::tempdir().unwrap();
    let mut wanted = json!({"name": "data", "mountPath": "/data"});
    for (name, value) in fields.as_object().unwrap() {
        wanted[name] = value.clone();
    }
    let pod = pod(json!([{"name": "data", "emptyDir": {}}]), json!([wanted]));
    volumes(root.path()).set_up(&pod).await.unwrap();
    let data = root
        .path()
        .join("pods/uid-1/volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("file"), "").unwrap();
    assert_eq!(mounts_of(&pod, root.path()).await, Err(message.to_owned()));
}

#[tokio::test]
async fn leaves_files_that_are_no_volumes_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let theirs = root.path().join("pods/uid-1/volumes/kubernetes.io~csi/pv");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("data"), "precious").unwrap();
    let volumes = volumes(root.path());
    let error = volumes.tear_down(&"uid-1".into()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot remove {}: Directory not empty (os error 39)",
            theirs.display()
        )
    );
    assert!(theirs.join("data").exists());

    fs::remove_file(theirs.join("data")).unwrap();
    volumes.tear_down(&"uid-1".into()).await.unwrap();
    assert!(!root.path().join("pods/uid-1").exists());
}

#[tokio::test]
async fn finds_the_folders_of_pods_that_nobody_knows() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path());
    assert_eq!(volumes.orphans(HashSet::new()).await.unwrap(), []);
    for uid in ["c", "a", "b"] {
        fs::create_dir_all(root.path().join("pods").join(uid)).unwrap();
    }
    let orphans = volumes.orphans(HashSet::from(["b".into()])).await.unwrap();
    assert_eq!(orphans, [PodUid::from("a"), PodUid::from("c")]);
}
