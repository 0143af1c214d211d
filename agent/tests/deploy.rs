//! What lies in `deploy/` is what the agent accepts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use agent::{
    config::{
        Strictness,
        run::{Host, Parsed, parse},
    },
    source::check_file,
};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

#[test]
fn every_example_is_a_manifest_without_a_complaint() {
    let mut names = Vec::new();
    for entry in fs::read_dir(deploy().join("examples")).unwrap() {
        let file = entry.unwrap().path();
        let pod = check_file(&file, "node", Strictness::Refuse);
        assert!(pod.is_ok(), "{}: {pod:?}", file.display());
        names.push(file.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["crash-looper", "memory-hog", "sidecar", "web"]);
}

#[test]
fn the_sample_configuration_is_accepted_as_it_is() {
    let file = deploy().join("config/kubelet-config.yaml");
    let host = Host {
        name: "node".to_owned(),
        cpus: 2,
    };
    let args = [format!("--config={}", file.display()).into()];
    match parse(&args, &host) {
        Ok(Parsed::Config(config, warnings)) => {
            let of_file = |line: &&String| !line.starts_with("not built yet, so these defaults");
            assert_eq!(warnings.iter().find(of_file), None);
            let source = config.sources.file.unwrap();
            assert_eq!(source.path, Path::new("/etc/kubernetes/manifests"));
        }
        other => panic!("{other:?}"),
    }
}
