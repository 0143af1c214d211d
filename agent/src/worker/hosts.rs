//! The `/etc/hosts` of a pod (NET-11): its text, and the file on the node.

use std::{
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use k8s_openapi::api::core::v1::HostAlias;

use super::hostname::PodName;

const MODE: u32 = 0o644;

/// The text for a pod with a network of its own.
pub(crate) fn pod_text(ips: &[IpAddr], name: &PodName, aliases: &[HostAlias]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let PodName { host, domain } = name;
    for ip in ips {
        text += &if domain.is_empty() {
            format!("{ip}\t{host}\n")
        } else {
            format!("{ip}\t{host}.{domain}\t{host}\n")
        };
    }
    text + &alias_lines(aliases)
}

/// The text for a pod on the node's network: the node's own file, and the aliases.
pub(crate) fn node_text(nodes_own: &str, aliases: &[HostAlias]) -> String {
    format!(
        "# Kubernetes-managed hosts file (host network).\n{nodes_own}{}",
        alias_lines(aliases)
    )
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text += &format!("{}\t{names}\n", alias.ip);
    }
    text
}

/// Writes the file in place: containers that run have it mounted, and a new file would not reach
/// them.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    // The umask must not take away what pods need.
    file.set_permissions(fs::Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";

    fn name(domain: &str) -> PodName {
        PodName {
            host: "web".into(),
            domain: domain.into(),
        }
    }

    fn ips() -> Vec<IpAddr> {
        vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()]
    }

    fn aliases() -> Vec<HostAlias> {
        vec![HostAlias {
            ip: "1.2.3.4".into(),
            hostnames: Some(vec!["a".into(), "b".into()]),
        }]
    }

    #[test]
    fn has_a_line_for_each_address_of_the_pod() {
        assert_eq!(
            pod_text(&ips(), &name(""), &[]),
            format!("{HEAD}10.0.0.2\tweb\nfd00::2\tweb\n")
        );
    }

    #[test]
    fn has_the_full_name_first_and_the_aliases_last() {
        assert_eq!(
            pod_text(&ips()[..1], &name("sub.ns.svc.x"), &aliases()),
            format!(
                "{HEAD}10.0.0.2\tweb.sub.ns.svc.x\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
            )
        );
    }

    #[test]
    fn has_the_nodes_own_file_on_the_nodes_network() {
        assert_eq!(
            node_text("127.0.0.1 me\n", &aliases()),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 me\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
        );
    }

    #[test]
    fn rewrites_the_same_file() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        write(&path, "a long first text\n").unwrap();
        let first = fs::metadata(&path).unwrap();
        write(&path, "short\n").unwrap();
        let second = fs::metadata(&path).unwrap();
        assert_eq!(first.ino(), second.ino());
        assert_eq!(second.mode() & 0o7777, 0o644);
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
    }
}
