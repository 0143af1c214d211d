//! The interface files say what upstream's say: the two are compiled and compared.
//!
//! Upstream's come from the Go module cache, or from the Go module proxy where they are not there
//! yet. `SKEP_NO_GO=1` leaves these tests out on a machine without Go.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use prost_types::FileDescriptorProto;

/// The folder of a module version in the module cache, downloaded if need be.
fn module(version: &str) -> PathBuf {
    // Outside any module of the caller's, so that nothing of it is changed.
    let output = Command::new("go")
        .args(["mod", "download", "-json", version])
        .current_dir(std::env::temp_dir())
        .output()
        .expect("go is installed (SKEP_NO_GO=1 leaves this test out)");
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "go mod download {version}: {answer}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let dir = answer
        .lines()
        .find_map(|line| line.trim().strip_prefix(r#""Dir": ""#)?.strip_suffix("\","))
        .expect("go names the module's folder");
    PathBuf::from(dir)
}

fn descriptor(file: &Path) -> FileDescriptorProto {
    let folder = file.parent().expect("a file is in a folder");
    let name = file.file_name().expect("a file has a name");
    let set = protox::compile([name], [folder])
        .unwrap_or_else(|error| panic!("{} compiles: {error}", file.display()));
    let mut file = set.file.into_iter().next_back().expect("one file");
    // What the file is called and says in comments is not part of the interface.
    file.name = None;
    file.source_code_info = None;
    file
}

fn assert_same(ours: &str, upstream: &Path) {
    let ours = descriptor(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("proto")
            .join(ours),
    );
    let upstream = descriptor(upstream);
    for theirs in &upstream.message_type {
        let name = theirs.name();
        let ours = ours.message_type.iter().find(|ours| ours.name() == name);
        assert_eq!(ours, Some(theirs), "message {name}");
    }
    for theirs in &upstream.service {
        let name = theirs.name();
        let ours = ours.service.iter().find(|ours| ours.name() == name);
        assert_eq!(ours, Some(theirs), "service {name}");
    }
    assert_eq!(ours, upstream);
}

#[test]
fn the_cri_is_upstreams() {
    if std::env::var("SKEP_NO_GO").is_ok_and(|value| value == "1") {
        return;
    }
    let module = module("k8s.io/cri-api@v0.37.2");
    assert_same(
        "cri/v1.proto",
        &module.join("pkg/apis/runtime/v1/api.proto"),
    );
}
