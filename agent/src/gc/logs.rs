//! Log files, links and folders of what is gone.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::fs;

use super::{Error, HasCome, Pods, Removal};
use crate::{
    cri,
    types::{
        id::{ContainerId, PodKey, PodUid, SandboxId},
        runtime::ContainerState,
    },
};

/// Longest file name of ext4, less the suffix `.log`.
const MAX_NAME: usize = 255 - ".log".len();

/// Name of the link to a container's log in the folder of all containers' logs:
/// `<pod>_<namespace>_<container>-<id>.log`, cut to what a file system takes.
pub fn log_link_name(key: &PodKey, container: &str, id: &ContainerId) -> String {
    let mut name = format!("{}_{}_{container}-{id}", key.name, key.namespace);
    // All parts are ASCII by the API's rules; whatever is not is cut before its character.
    while name.len() > MAX_NAME {
        name.pop();
    }
    name + ".log"
}

/// The container's id in such a name; none where it was cut off.
fn id_in_link(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    (id.len() >= 6).then_some(id)
}

async fn remove_file(path: PathBuf) -> Result<(), Error> {
    match fs::remove_file(&path).await {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Log { path, source }),
        Err(_) | Ok(()) => Ok(()),
    }
}

/// The names in a folder; none where there is no folder.
async fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut entries = match fs::read_dir(folder).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        // Names that are no text are nobody's of ours.
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Removes a container's log, all that rotation made of it (`N.log*`), and the link to it (GC-12).
pub async fn remove_container_logs(links: &Path, removal: &Removal) -> Result<(), Error> {
    if let Some(log) = &removal.log_path
        && let (Some(folder), Some(file)) = (log.parent(), log.file_name().and_then(|f| f.to_str()))
    {
        let all = names(folder).await.map_err(|source| Error::Log {
            path: folder.to_owned(),
            source,
        })?;
        for name in all.iter().filter(|name| name.starts_with(file)) {
            remove_file(folder.join(name)).await?;
        }
    }
    let link = log_link_name(&removal.key, &removal.name, &removal.id);
    remove_file(links.join(link)).await
}

/// The pod in a folder's name `<namespace>_<name>_<uid>`; none where it is no such name, and so no
/// pod's folder.
fn uid_of_folder(name: &str) -> Option<PodUid> {
    let mut parts = name.split('_');
    let (Some(namespace), Some(pod), Some(uid), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let is_whole = [namespace, pod, uid].iter().all(|part| !part.is_empty());
    is_whole.then(|| PodUid::from(uid))
}

/// Removes the log folders of pods that may go (GC-03).
pub(super) async fn remove_folders(
    pod_logs: &Path,
    pods: &Pods<'_>,
    has_come: HasCome<'_>,
) -> Vec<Error> {
    let names = match names(pod_logs).await {
        Ok(names) => names,
        Err(source) => {
            let path = pod_logs.to_owned();
            return vec![Error::Folder { path, source }];
        }
    };
    let mut errors = Vec::new();
    for name in names {
        let may_go =
            |uid: &PodUid| pods.is_removable(uid) && (pods.known.contains(uid) || !has_come(uid));
        if !uid_of_folder(&name).is_some_and(|uid| may_go(&uid)) {
            continue;
        }
        let path = pod_logs.join(name);
        match fs::remove_dir_all(&path).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                errors.push(Error::Folder { path, source });
            }
            Err(_) | Ok(()) => {}
        }
    }
    errors
}

/// Removes links whose log is gone, unless the container lives: while its log is rotated, a link
/// points to nothing for a moment.
pub(super) async fn remove_dead_links(links: &Path, client: &cri::Client) -> Vec<Error> {
    let names = match names(links).await {
        Ok(names) => names,
        Err(source) => {
            let path = links.to_owned();
            return vec![Error::Folder { path, source }];
        }
    };
    let mut errors = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".log")) {
        let path = links.join(name);
        // Only links that point to nothing; not what somebody else put there.
        let is_link = fs::symlink_metadata(&path)
            .await
            .is_ok_and(|metadata| metadata.is_symlink());
        let is_dead =
            matches!(fs::metadata(&path).await, Err(e) if e.kind() == io::ErrorKind::NotFound);
        if !is_link || !is_dead {
            continue;
        }
        if let Some(id) = id_in_link(name) {
            let sandbox = SandboxId::from(""); // not looked at
            let lives = match client.container_status(&id.into(), &sandbox).await {
                Ok(container) => !matches!(container.state, ContainerState::Exited(_)),
                // Not knowing is no reason to remove it.
                Err(error) => !error.is_not_found(),
            };
            if lives {
                continue;
            }
        }
        if let Err(error) = remove_file(path).await {
            errors.push(error);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_after_pod_container_and_id() {
        let id = ContainerId::from("a".repeat(64));
        let name = log_link_name(&PodKey::new("default", "web"), "main", &id);
        assert_eq!(name, format!("web_default_main-{id}.log"));
        assert_eq!(id_in_link(&name), Some(id.as_str()));
    }

    #[test]
    fn a_link_of_long_names_is_cut_to_255() {
        let key = PodKey::new("default", &"p".repeat(253));
        let name = log_link_name(&key, "main", &"abcdef123".into());
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(".log"));
        assert_eq!(id_in_link(&name), None);
    }

    #[test]
    fn only_folders_of_pods_are_pods_folders() {
        assert_eq!(uid_of_folder("default_web_u-1"), Some("u-1".into()));
        for other in ["lost+found", "web_u", "a_b_c_d", "_web_u", "default_web_"] {
            assert_eq!(uid_of_folder(other), None, "{other}");
        }
    }
}
