//! The two images that examples and tests use, made without a registry: `pause`, from its C source,
//! and `busybox`, from the distribution's static one with a link for each of its applets and our
//! `memhog`. Each is an OCI archive that `ctr images import` reads.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::{
    cache::{self, Key, hex},
    command,
};

pub(crate) const PAUSE: &str = "skep.local/pause:1";
pub(crate) const BUSYBOX: &str = "skep.local/busybox:1";

const PAUSE_SOURCE: &str = include_str!("../images/pause.c");
const MEMHOG_SOURCE: &str = include_str!("../images/memhog.c");
/// Part of the key: raise it when the layout below changes.
const LAYOUT: &str = "1";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder that holds `pause.tar` and `busybox.tar`, and nothing else.
pub(crate) fn ensure() -> Result<PathBuf> {
    let busybox_file = command::find("busybox").context("busybox-static is not installed")?;
    let busybox =
        fs::read(&busybox_file).with_context(|| format!("reading {}", busybox_file.display()))?;
    let gcc = command::find("gcc").context("gcc is not installed")?;
    let compiler = command::read(Command::new(&gcc).arg("-dumpfullversion"))?;

    let mut key = Key::default();
    key.add(LAYOUT.as_bytes())
        .add(PAUSE_SOURCE.as_bytes())
        .add(MEMHOG_SOURCE.as_bytes())
        .add(compiler.as_bytes())
        .add(&busybox);
    cache::ensure("images", &key.name(), |dir| {
        println!("images: making {PAUSE} and {BUSYBOX}");
        let pause = Layer::default().file("pause", 0o755, compile(&gcc, PAUSE_SOURCE)?);
        write(
            &dir.join("pause.tar"),
            PAUSE,
            pause,
            json!({"Env": [PATH], "Entrypoint": ["/pause"], "User": "65535:65535"}),
        )?;
        let applets = command::read(Command::new(&busybox_file).arg("--list"))?;
        let layer = busybox_layer(busybox, &applets, compile(&gcc, MEMHOG_SOURCE)?);
        write(
            &dir.join("busybox.tar"),
            BUSYBOX,
            layer,
            json!({"Env": [PATH], "Cmd": ["sh"]}),
        )
    })
}

/// A static program: it runs in an image that has nothing else.
fn compile(gcc: &Path, source: &str) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir().context("making a folder to compile in")?;
    let (input, output) = (dir.path().join("program.c"), dir.path().join("program"));
    fs::write(&input, source).context("writing the source")?;
    command::run(
        Command::new(gcc)
            .args(["-static", "-Os", "-s", "-Wall", "-o"])
            .arg(&output)
            .arg(&input),
    )?;
    fs::read(&output).context("reading the program")
}

fn busybox_layer(busybox: Vec<u8>, applets: &str, memhog: Vec<u8>) -> Layer {
    let mut layer = Layer::default()
        .dir("tmp", 0o1777)
        .dir("root", 0o700)
        .dir("home", 0o755)
        .dir("var", 0o755)
        .dir("dev", 0o755)
        .dir("proc", 0o555)
        .dir("sys", 0o555)
        .file("bin/busybox", 0o755, busybox)
        .file("bin/memhog", 0o755, memhog)
        .file(
            "etc/passwd",
            0o644,
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n".to_vec(),
        )
        .file(
            "etc/group",
            0o644,
            b"root:x:0:\nnogroup:x:65534:\n".to_vec(),
        );
    for applet in applets
        .lines()
        .map(str::trim)
        .filter(|name| *name != "busybox")
    {
        layer = layer.link(&format!("bin/{applet}"), "busybox");
    }
    layer
}

enum Node {
    Dir(u32),
    File(u32, Vec<u8>),
    Link(String),
}

/// Paths in order, so that the same contents give the same bytes.
#[derive(Default)]
struct Layer(BTreeMap<String, Node>);

impl Layer {
    fn dir(mut self, path: &str, mode: u32) -> Self {
        self.0.insert(path.to_owned(), Node::Dir(mode));
        self
    }

    fn file(mut self, path: &str, mode: u32, contents: Vec<u8>) -> Self {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.0.entry(parent.to_owned()).or_insert(Node::Dir(0o755));
        }
        self.0.insert(path.to_owned(), Node::File(mode, contents));
        self
    }

    fn link(mut self, path: &str, target: &str) -> Self {
        self.0
            .entry(path.to_owned())
            .or_insert_with(|| Node::Link(target.to_owned()));
        self
    }

    fn to_tar(&self) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, node) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            match node {
                Node::Dir(mode) => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{path}/"), &[][..])?;
                }
                Node::File(mode, contents) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(contents.len() as u64);
                    tar.append_data(&mut header, path, contents.as_slice())?;
                }
                Node::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        tar.into_inner().context("ending the layer")
    }
}

/// The archive: layer, config, manifest and index, as the OCI image layout has them.
fn write(file: &Path, reference: &str, layer: Layer, config: serde_json::Value) -> Result<()> {
    let Some((_, tag)) = reference.rsplit_once(':') else {
        bail!("the image {reference} has no tag");
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let layer = layer.to_tar()?;
    let config = serde_json::to_vec(&json!({
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "skep xtask"}],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config),
            "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest(&layer),
            "size": layer.len(),
        }],
    }))?;
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(&manifest),
            "size": manifest.len(),
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": tag,
            },
        }],
    }))?;

    let mut archive = Layer::default()
        .file("index.json", 0o644, index)
        .file(
            "oci-layout",
            0o644,
            br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        )
        .dir("blobs", 0o755);
    for blob in [manifest, config, layer] {
        let path = format!(
            "blobs/sha256/{}",
            digest(&blob).trim_start_matches("sha256:")
        );
        archive = archive.file(&path, 0o644, blob);
    }
    fs::write(file, archive.to_tar()?).with_context(|| format!("writing {}", file.display()))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_its_image_and_holds_every_blob_it_refers_to() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("it.tar");
        let layer = busybox_layer(b"program".to_vec(), "ls\nbusybox\nsh\n", b"hog".to_vec());
        write(&file, BUSYBOX, layer, json!({"Cmd": ["sh"]})).unwrap();

        let mut blobs = BTreeMap::new();
        let mut archive = tar::Archive::new(fs::File::open(&file).unwrap());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            blobs.insert(path, bytes);
        }
        let parse = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        let blob = |digest: &serde_json::Value| {
            let hash = digest.as_str().unwrap().trim_start_matches("sha256:");
            blobs[&format!("blobs/sha256/{hash}")].clone()
        };
        let index = parse(&blobs["index.json"]);
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["io.containerd.image.name"], BUSYBOX);
        let manifest = parse(&blob(&entry["digest"]));
        let config = parse(&blob(&manifest["config"]["digest"]));
        assert_eq!(config["config"]["Cmd"][0], "sh");
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            manifest["layers"][0]["digest"]
        );
        let layer = blob(&manifest["layers"][0]["digest"]);
        let mut layer = tar::Archive::new(layer.as_slice());
        let paths: Vec<_> = layer
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        for path in [
            "bin/",
            "bin/busybox",
            "bin/ls",
            "bin/memhog",
            "bin/sh",
            "tmp/",
        ] {
            assert!(paths.iter().any(|it| it == path), "{path} in {paths:?}");
        }
        assert_eq!(paths.iter().filter(|it| *it == "bin/busybox").count(), 1);
    }

    #[test]
    fn the_same_contents_give_the_same_bytes() {
        let make = || {
            Layer::default()
                .file("b", 0o644, b"1".to_vec())
                .link("a", "b")
                .to_tar()
                .unwrap()
        };
        assert_eq!(make(), make());
    }
}
