//! Image archives on disk, read into containerd's store: how a machine without a registry gets its
//! images.

use std::{fs, io, path::PathBuf, time::Duration};

use sha2::{Digest as _, Sha256};
use tracing::info;

use super::{Error, Settings, file_error, program::Programs, text};

/// Reading in a large archive on a slow disk.
const LIMIT: Duration = Duration::from_secs(300);

/// Reads in each archive of the folder that is not in yet. A mark, named by the archive's hash,
/// holds the images that came with it, so that one whose images were removed is read again.
pub(super) async fn import(settings: &Settings, programs: &Programs) -> Result<(), Error> {
    let Some(dir) = &settings.images_dir else {
        return Ok(());
    };
    let entries = fs::read_dir(dir).map_err(file_error("reading the folder", dir))?;
    let mut archives: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(file_error("reading the folder", dir))?;
    archives.retain(|file| file.extension().is_some_and(|end| end == "tar"));
    archives.sort();
    for archive in archives {
        let hash = hash_of(archive.clone())
            .await
            .map_err(file_error("reading", &archive))?;
        let mark = settings.file("imported").join(hash);
        let before = list_images(settings, programs).await?;
        if let Ok(names) = fs::read_to_string(&mark)
            && names.lines().all(|name| before.iter().any(|it| it == name))
        {
            continue;
        }
        let name = text(&archive)?;
        programs
            .ctr_within(settings, &["images", "import", &name], LIMIT)
            .await
            .map_err(|error| Error::Import {
                archive: name.clone(),
                said: error.to_string(),
            })?;
        let after = list_images(settings, programs).await?;
        let new: Vec<_> = after
            .into_iter()
            .filter(|name| !before.contains(name))
            .collect();
        fs::write(&mark, new.join("\n")).map_err(file_error("writing", &mark))?;
        info!(archive = name, "images read in");
    }
    Ok(())
}

async fn list_images(settings: &Settings, programs: &Programs) -> Result<Vec<String>, Error> {
    let printed = programs.ctr(settings, &["images", "list", "-q"]).await?;
    Ok(printed.lines().map(str::to_owned).collect())
}

async fn hash_of(file: PathBuf) -> io::Result<String> {
    tokio::task::spawn_blocking(move || {
        let mut file = fs::File::open(file)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = io::Read::read(&mut file, &mut buffer)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
        }
        Ok(hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    })
    .await
    .map_err(io::Error::other)?
}
