//! Ending a containerd of our own with everything that hangs on it, whether or not an agent runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    Error, STOP_GRACE, Settings, check_paths, file_error, find_containerd, plan, process,
    program::{NAMESPACE, command},
    text,
};

/// What [`stop`] found and ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    pub containerd: bool,
    /// Those that had outlived their pods' removal, with their containers.
    pub shims: usize,
    pub mounts: usize,
    pub rules: usize,
    pub bridge: bool,
}

/// Ends the folder's containerd and everything of it: shims and their containers, mounts, bridge,
/// addresses and rules. Images stay. Fine to call when nothing runs, or again.
///
/// Pods are best removed before, through the CRI: only then do their logs and statuses end in
/// order.
pub async fn stop(settings: &Settings) -> Result<Stopped, Error> {
    check_paths(settings)?;
    let mut stopped = Stopped::default();
    if let Some((pid, process)) = find_containerd(settings)? {
        let is_gone = process::end(process, STOP_GRACE)
            .await
            .map_err(|source| Error::Look { source })?;
        if !is_gone {
            return Err(Error::NotEnding { pid });
        }
        stopped.containerd = true;
    }
    let socket = text(&settings.file("containerd.sock"))?;
    let dir = settings.dir.clone();
    let (shims, mounts) = tokio::task::spawn_blocking(move || {
        let sockets = shim_sockets(&dir.join("state"));
        let shims = process::kill_shims(&socket)?;
        for file in sockets {
            remove_if_there(&file)?;
        }
        io::Result::Ok((shims, unmount_below(&dir)?))
    })
    .await
    .map_err(|error| Error::Look {
        source: io::Error::other(error),
    })?
    .map_err(|source| Error::Look { source })?;
    stopped.shims = shims;
    stopped.mounts = mounts;

    let network = settings.bridge();
    stopped.rules = remove_rules(&network).await?;
    if has_interface(&network).map_err(|source| Error::Look { source })? {
        command("ip", &["link", "delete", &network]).await?;
        stopped.bridge = true;
    }
    remove_results(&network)?;
    for name in ["state", "cni/ipam"] {
        let dir = settings.file(name);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("removing the folder", &dir)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    for name in ["containerd.pid", "containerd.sock", "containerd.sock.ttrpc"] {
        let file = settings.file(name);
        remove_if_there(&file).map_err(file_error("removing", &file))?;
    }
    Ok(stopped)
}

/// The sockets of the shims whose bundles are below `state`: they lie in a folder that all
/// containerds of the machine share, and a killed shim leaves its own behind.
fn shim_sockets(state: &Path) -> Vec<PathBuf> {
    let bundles = state.join("io.containerd.runtime.v2.task").join(NAMESPACE);
    let Ok(entries) = fs::read_dir(bundles) else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|bundle| {
            let address = fs::read_to_string(bundle.path().join("address")).ok();
            address.or_else(|| {
                let json = fs::read(bundle.path().join("bootstrap.json")).ok()?;
                let json: serde_json::Value = serde_json::from_slice(&json).ok()?;
                Some(json.get("address")?.as_str()?.to_owned())
            })
        })
        .filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from))
        .collect()
}

/// Innermost first. How many there were.
fn unmount_below(dir: &Path) -> io::Result<usize> {
    let mounts = procfs::process::Process::myself()
        .and_then(|process| process.mountinfo())
        .map_err(io::Error::other)?;
    let mut points: Vec<_> = mounts
        .into_iter()
        .map(|mount| mount.mount_point)
        .filter(|point| point.starts_with(dir) && point != dir)
        .collect();
    points.reverse();
    for point in &points {
        match rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH) {
            // Gone with the one that it lay on.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(points.len())
}

async fn remove_rules(network: &str) -> Result<usize, Error> {
    let rules = match command("iptables", &["-t", "nat", "-S"]).await {
        Ok(rules) => rules,
        // Without iptables there are no rules of its making.
        Err(Error::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(0);
        }
        Err(error) => return Err(error),
    };
    let plan = plan::plan_rule_removal(&rules, network);
    for args in &plan {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        command("iptables", &args).await?;
    }
    Ok(plan.len())
}

/// By asking the kernel: /sys may be that of another network namespace.
fn has_interface(name: &str) -> io::Result<bool> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    match rustix::net::netdevice::name_to_index(&socket, name) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What libcni keeps of each attachment, in a folder that all networks of the machine share.
fn remove_results(network: &str) -> Result<(), Error> {
    let dir = Path::new("/var/lib/cni/results");
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading the folder", dir)(error)),
    };
    let prefix = format!("{network}-");
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let file = entry.path();
            remove_if_there(&file).map_err(file_error("removing", &file))?;
        }
    }
    Ok(())
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_both_kinds_of_bundle_are_found() {
        let state = tempfile::tempdir().unwrap();
        let bundles = state.path().join("io.containerd.runtime.v2.task/k8s.io");
        for (id, file, contents) in [
            ("a", "address", "unix:///run/containerd/s/1"),
            (
                "b",
                "bootstrap.json",
                r#"{"version":3,"address":"unix:///run/containerd/s/2"}"#,
            ),
            ("c", "other", ""),
        ] {
            fs::create_dir_all(bundles.join(id)).unwrap();
            fs::write(bundles.join(id).join(file), contents).unwrap();
        }
        let mut sockets = shim_sockets(state.path());
        sockets.sort();
        let expected = ["/run/containerd/s/1", "/run/containerd/s/2"].map(PathBuf::from);
        assert_eq!(sockets, expected);
    }
}
