//! All that a container has mounted: its volumes, the pod's hosts file, and the file for its
//! termination message.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::BuildHasher as _,
    io::{self, Read as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Container;

use super::{config_error::ConfigError, facts::NodeFacts, hostname, hosts};
use crate::{
    cri::api::Mount,
    types::pod::Pod,
    volume::{self, PodDirs, Volumes},
};

const ETC_HOSTS: &str = "/etc/hosts";

/// A node's hosts file that is larger than this is none.
const MAX_HOSTS_BYTES: u64 = 10 << 20;

/// Writes the files, binds the subpaths, and tells the mounts in upstream's order. `pod_ips` is
/// empty only while the pod has no network; `envs` is the container's environment.
pub(crate) async fn prepare(
    volumes: &Volumes,
    pod: &Pod,
    container: &Container,
    envs: &[(String, String)],
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<Vec<Mount>, ConfigError> {
    let mut mounts = volumes
        .mounts(pod, container, envs)
        .await
        .map_err(|error| ConfigError::new(error.to_string()))?;
    let dirs = volumes.dirs(pod.uid());

    let has_own_hosts = mounts.iter().any(|mount| mount.container_path == ETC_HOSTS);
    if !has_own_hosts && (!pod_ips.is_empty() || pod.is_host_network()) {
        let text = hosts_text(pod, pod_ips, facts)?;
        let path = dirs.etc_hosts();
        hosts::write(&path, &text).map_err(|error| failed(&path, &error))?;
        mounts.push(Mount {
            host_path: path.to_string_lossy().into_owned(),
            container_path: ETC_HOSTS.to_owned(),
            selinux_relabel: facts.is_selinux_enabled,
            ..Mount::default()
        });
    }

    let message_path = container.termination_message_path.as_deref();
    if let Some(message_path) = message_path.filter(|path| !path.is_empty()) {
        let path = make_message_file(&dirs, &container.name)
            .map_err(|error| failed(&dirs.container(&container.name), &error))?;
        mounts.push(Mount {
            host_path: path.to_string_lossy().into_owned(),
            container_path: volume::absolute(message_path),
            selinux_relabel: facts.is_selinux_enabled,
            ..Mount::default()
        });
    }
    Ok(mounts)
}

fn failed(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot write {}: {error}", path.display()))
}

fn hosts_text(pod: &Pod, pod_ips: &[IpAddr], facts: &NodeFacts) -> Result<String, ConfigError> {
    let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
    if pod.is_host_network() {
        let own = read_nodes_hosts(Path::new(ETC_HOSTS))
            .map_err(|error| ConfigError::new(format!("cannot read {ETC_HOSTS}: {error}")))?;
        Ok(hosts::node_text(&own, aliases))
    } else {
        let name = hostname::pod_name(pod, &facts.dns.cluster_domain)?;
        Ok(hosts::pod_text(pod_ips, &name, aliases))
    }
}

fn read_nodes_hosts(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_HOSTS_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A new empty file of its own for each run of a container, so that an old message is never taken
/// for a new one. Any user of the container may write to it.
fn make_message_file(dirs: &PodDirs, container: &str) -> io::Result<PathBuf> {
    let folder = dirs.container(container);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(&folder)?;
    loop {
        // Only needs to differ from the names that are there.
        let name = RandomState::new().hash_one(container) & 0xffff_ffff;
        let path = folder.join(format!("{name:08x}"));
        let mut options = fs::OpenOptions::new();
        match options.write(true).create_new(true).mode(0o666).open(&path) {
            Ok(file) => {
                // The umask must not take away what the container needs.
                file.set_permissions(fs::Permissions::from_mode(0o666))?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        types::quantity::Quantity,
        volume::Settings,
        worker::{
            facts,
            testing::{pod, pod_with_container},
        },
    };
    use serde_json::json;
    use std::os::unix::fs::MetadataExt as _;

    async fn prepared(root: &Path, pod: &Pod, ips: &[&str]) -> Vec<Mount> {
        let volumes = Volumes::new(Settings {
            root: root.to_owned(),
            allocatable_memory: Quantity::of(1 << 30),
            is_selinux_enabled: false,
        });
        volumes.set_up(pod).await.unwrap();
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let container = &pod.spec().containers[0];
        prepare(&volumes, pod, container, &[], &ips, &facts::for_tests())
            .await
            .unwrap()
    }

    fn paths(mounts: &[Mount]) -> Vec<&str> {
        mounts
            .iter()
            .map(|mount| mount.container_path.as_str())
            .collect()
    }

    #[tokio::test]
    async fn writes_the_hosts_and_message_files() {
        let root = tempfile::tempdir().unwrap();
        let pod = pod(json!({}));
        let mounts = prepared(root.path(), &pod, &["10.0.0.2"]).await;
        assert_eq!(paths(&mounts), ["/etc/hosts", "/dev/termination-log"]);
        assert_eq!(
            Path::new(&mounts[0].host_path),
            root.path().join("pods/uid-1/etc-hosts")
        );
        let hosts = fs::read_to_string(&mounts[0].host_path).unwrap();
        assert!(hosts.ends_with("\n10.0.0.2\tweb\n"), "{hosts}");

        let message = Path::new(&mounts[1].host_path);
        assert_eq!(
            message.parent().unwrap(),
            root.path().join("pods/uid-1/containers/app")
        );
        let name = message.file_name().unwrap().to_str().unwrap();
        assert!(name.len() == 8 && u32::from_str_radix(name, 16).is_ok());
        assert_eq!(fs::metadata(message).unwrap().mode() & 0o777, 0o666);

        let again = prepared(root.path(), &pod, &["10.0.0.2"]).await;
        assert_ne!(again[1].host_path, mounts[1].host_path);
    }

    #[tokio::test]
    async fn has_no_hosts_file_without_a_network() {
        let root = tempfile::tempdir().unwrap();
        let pod = pod_with_container(json!({"terminationMessagePath": "log"}));
        let mounts = prepared(root.path(), &pod, &[]).await;
        assert_eq!(paths(&mounts), ["/log"]);
    }

    #[tokio::test]
    async fn a_mount_of_the_pods_own_takes_the_place_of_the_hosts_file() {
        let root = tempfile::tempdir().unwrap();
        let pod = pod(json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "app", "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]}],
        }));
        let mounts = prepared(root.path(), &pod, &["10.0.0.2"]).await;
        assert_eq!(paths(&mounts), ["/etc/hosts"]);
        assert!(mounts[0].host_path.ends_with("empty-dir/v"));
        assert!(!root.path().join("pods/uid-1/etc-hosts").exists());
    }

    #[tokio::test]
    async fn on_the_nodes_network_the_file_begins_with_the_nodes() {
        let root = tempfile::tempdir().unwrap();
        let pod = pod(
            json!({"hostNetwork": true, "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]}),
        );
        let mounts = prepared(root.path(), &pod, &[]).await;
        let text = fs::read_to_string(&mounts[0].host_path).unwrap();
        assert!(text.starts_with("# Kubernetes-managed hosts file (host network).\n"));
        assert!(text.ends_with("\n# Entries added by HostAliases.\n1.2.3.4\ta\n"));
    }
}
