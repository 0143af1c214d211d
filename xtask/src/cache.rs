//! Where the tasks keep what they build: a folder of the user's, with one sub-folder a thing, named
//! by what went into it, so that nothing is built twice and nothing stale is used.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// `$XDG_CACHE_HOME/skep`, else `~/.cache/skep`; made where it is not there.
pub(crate) fn dir() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
                .join(".cache")
        }
    };
    let dir = base.join("skep");
    fs::create_dir_all(&dir)
        .with_context(|| format!("making the cache folder {}", dir.display()))?;
    Ok(dir)
}

/// Names a thing by what goes into it.
#[derive(Default)]
pub(crate) struct Key(Sha256);

impl Key {
    /// The length goes in too, so that two inputs never run into one another.
    pub(crate) fn add(&mut self, input: &[u8]) -> &mut Self {
        self.0.update((input.len() as u64).to_le_bytes());
        self.0.update(input);
        self
    }

    pub(crate) fn name(self) -> String {
        hex(&self.0.finalize())[..16].to_owned()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder `group/name` of the cache; `build` fills it where it is not there yet. A folder is
/// either whole or absent: it is filled under another name and then renamed. One process builds at
/// a time, and the others find the result.
pub(crate) fn ensure(
    group: &str,
    name: &str,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let group = dir()?.join(group);
    let ready = group.join(name);
    if ready.is_dir() {
        return Ok(ready);
    }
    fs::create_dir_all(&group).with_context(|| format!("making {}", group.display()))?;
    let lock = File::create(group.join(".lock"))
        .with_context(|| format!("opening the lock of {}", group.display()))?;
    lock.lock()
        .with_context(|| format!("locking {}", group.display()))?;
    if ready.is_dir() {
        return Ok(ready);
    }
    let partial = group.join(format!(".{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    fs::create_dir(&partial).with_context(|| format!("making {}", partial.display()))?;
    build(&partial)?;
    fs::rename(&partial, &ready).with_context(|| format!("naming {}", ready.display()))?;
    Ok(ready)
}
