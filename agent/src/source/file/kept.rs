//! Copies of the last good manifests, so that the promise "an invalid file does not stop its pod"
//! outlives the agent: without them, a restart would find an invalid file and a pod that nobody
//! wants.
//!
//! One file a manifest, named by the hash of the manifest's path, in a folder that only the agent
//! writes. What cannot be kept costs a warning, and at most this promise.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use tracing::warn;

/// Where copies are; none: nothing is kept.
#[derive(Debug)]
pub(super) struct Kept(Option<PathBuf>);

impl Kept {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self(folder)
    }

    /// The copy of this manifest, if there is one.
    pub(super) fn load(&self, manifest: &Path) -> Option<Vec<u8>> {
        let copy = self.0.as_ref()?.join(name_of(manifest));
        match fs::read(&copy) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                warn!(file = %copy.display(), %error, "the last good manifest cannot be read");
                None
            }
        }
    }

    pub(super) fn store(&self, manifest: &Path, bytes: &[u8]) {
        let Some(folder) = &self.0 else { return };
        let copy = folder.join(name_of(manifest));
        if fs::read(&copy).is_ok_and(|old| old == bytes) {
            return;
        }
        let new = copy.with_extension("new");
        let stored = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&new, bytes))
            .and_then(|()| fs::rename(&new, &copy));
        if let Err(error) = stored {
            warn!(file = %copy.display(), %error, "the last good manifest cannot be kept");
        }
    }

    /// Removes the copies of all but these manifests: the others are gone.
    pub(super) fn retain<'a>(&self, manifests: impl Iterator<Item = &'a Path>) {
        let Some(folder) = &self.0 else { return };
        let names: Vec<String> = manifests.map(name_of).collect();
        let Ok(copies) = fs::read_dir(folder) else {
            return;
        };
        for copy in copies.flatten() {
            let is_needed = names
                .iter()
                .any(|name| OsStr::new(name) == copy.file_name());
            if !is_needed && let Err(error) = fs::remove_file(copy.path()) {
                warn!(file = %copy.path().display(), %error, "an old manifest's copy stays");
            }
        }
    }
}

fn name_of(manifest: &Path) -> String {
    let hash = Sha256::digest(manifest.as_os_str().as_bytes());
    hash.iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
