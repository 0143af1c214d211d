//! What a containerd of our own is told: its configuration by version, its network, its names.
//! Pure; the effects are in the modules beside this one.

use std::{net::Ipv4Addr, path::Path};

use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The runtime's own version, as far as its configuration depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The oldest whose configuration is known here.
    pub const OLDEST: Self = Self { major: 1, minor: 6 };

    /// From `containerd --version`: name, source, version (with or without a "v"), revision.
    pub fn parse(printed: &str) -> Option<Self> {
        let mut words = printed.split_whitespace();
        words.next().filter(|name| *name == "containerd")?;
        let word = words.nth(1)?;
        let mut numbers = word.trim_start_matches('v').split(['.', '-', '+', '~']);
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

/// Everything that the configuration file says, as strings that have been checked to be text.
#[derive(Clone, Debug)]
pub(super) struct ConfigInput<'a> {
    pub version: Version,
    pub root: &'a str,
    pub state: &'a str,
    pub socket: &'a str,
    pub runc: &'a str,
    pub runc_root: &'a str,
    pub cni_bin_dir: &'a str,
    pub cni_conf_dir: &'a str,
    pub certs_dir: &'a str,
    pub pause_image: &'a str,
    pub snapshotter: &'a str,
    pub systemd_cgroup: bool,
    /// The agent may not lower an oom_score_adj (no CAP_SYS_RESOURCE), and so neither may runc:
    /// without this every sandbox fails.
    pub restrict_oom_score_adj: bool,
}

/// containerd's configuration file: version 2 of its form for 1.x, version 3 for 2.x.
pub(super) fn compute_config(input: &ConfigInput<'_>) -> String {
    // JSON's strings are TOML's basic strings.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let ConfigInput {
        version,
        systemd_cgroup,
        restrict_oom_score_adj,
        ..
    } = input;
    let root = quote(input.root);
    let state = quote(input.state);
    let socket = quote(input.socket);
    let runc = quote(input.runc);
    let runc_root = quote(input.runc_root);
    let bin_dir = quote(input.cni_bin_dir);
    let conf_dir = quote(input.cni_conf_dir);
    let certs = quote(input.certs_dir);
    let pause = quote(input.pause_image);
    let snapshotter = quote(input.snapshotter);
    // The `opt` plugin makes /opt/containerd; NRI has one socket for the machine. Both belong to
    // whoever runs the machine's containerd.
    let head = format!(
        r#"root = {root}
state = {state}
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = {socket}
"#
    );
    let streaming = r#"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"#;
    if version.major == 1 {
        return format!(
            r#"version = 2
{head}{streaming}  sandbox_image = {pause}
  restrict_oom_score_adj = {restrict_oom_score_adj}
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {bin_dir}
    conf_dir = {conf_dir}
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = {certs}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = {snapshotter}
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = {runc}
        Root = {runc_root}
        SystemdCgroup = {systemd_cgroup}
"#
        );
    }
    let bin_dirs = if *version >= (Version { major: 2, minor: 1 }) {
        format!("bin_dirs = [{bin_dir}]")
    } else {
        format!("bin_dir = {bin_dir}")
    };
    // From 2.4 on, containerd reads every container's cgroup each second, for figures that only
    // ListContainerStats has and Skep does not ask for: two thousandths of a core a pod. Older ones
    // say that they ignore the key.
    format!(
        r#"version = 3
{head}{streaming}
[plugins."io.containerd.cri.v1.images"]
  snapshotter = {snapshotter}
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {pause}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {certs}

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {restrict_oom_score_adj}
  netns_mounts_under_state_dir = true
  stats_collect_period = "10m"
  [plugins."io.containerd.cri.v1.runtime".cni]
    {bin_dirs}
    conf_dir = {conf_dir}
    max_conf_num = 1
  [plugins."io.containerd.cri.v1.runtime".containerd]
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = {runc}
        Root = {runc_root}
        SystemdCgroup = {systemd_cgroup}
"#
    )
}

/// One IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

impl Subnet {
    fn mask(self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix.min(32)))
            .unwrap_or(0)
    }

    fn overlaps(self, other: Self) -> bool {
        let mask = self.mask() & other.mask();
        self.address.to_bits() & mask == other.address.to_bits() & mask
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl std::str::FromStr for Subnet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let prefix = prefix.parse().ok().filter(|bits| *bits <= 32).ok_or(())?;
        let address: Ipv4Addr = address.parse().ok().ok_or(())?;
        let subnet = Self { address, prefix };
        (address.to_bits() & !subnet.mask() == 0)
            .then_some(subnet)
            .ok_or(())
    }
}

/// The networks that the machine has routes to, from `/proc/net/route`; the default route is not
/// one. None where a line cannot be read.
pub(super) fn parse_routes(table: &str) -> Option<Vec<Subnet>> {
    let mut routes = Vec::new();
    for line in table.lines().skip(1).filter(|line| !line.trim().is_empty()) {
        let columns: Vec<_> = line.split_whitespace().collect();
        // Both are in network byte order, printed as the machine's own number.
        let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
        let address = number(columns.get(1)?)?;
        let mask = number(columns.get(7)?)?;
        if mask != 0 {
            routes.push(Subnet {
                address: address.into(),
                prefix: u8::try_from(mask.leading_ones()).ok()?,
            });
        }
    }
    Some(routes)
}

/// A /24 of 10.88.0.0/16 that no route of the machine overlaps. Where to begin comes from the
/// folder, so that two of them on one machine rarely meet. None when all 256 are taken.
pub(super) fn plan_subnet(dir: &Path, taken: &[Subnet]) -> Option<Subnet> {
    let first = fingerprint(dir)[4];
    (0..=u8::MAX)
        .map(|step| Subnet {
            address: Ipv4Addr::new(10, 88, first.wrapping_add(step), 0),
            prefix: 24,
        })
        .find(|subnet| !taken.iter().any(|other| other.overlaps(*subnet)))
}

/// The name of the bridge, and of the CNI network: "skep" and 8 digits that come from the folder
/// (an interface name has at most 15 characters).
pub(super) fn network_name(dir: &Path) -> String {
    let hash = fingerprint(dir);
    format!(
        "skep{:02x}{:02x}{:02x}{:02x}",
        hash[0], hash[1], hash[2], hash[3]
    )
}

fn fingerprint(dir: &Path) -> [u8; 32] {
    Sha256::digest(std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str())).into()
}

/// The CNI network: a bridge with masquerading, host ports, addresses from `ipam_dir`.
pub(super) fn compute_conflist(name: &str, subnet: Subnet, ipam_dir: &str) -> String {
    // 0.4.0 is the newest version that every plugin of containerd 1.6's day understands.
    let list = json!({
        "cniVersion": "0.4.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge",
                "bridge": name,
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": ipam_dir,
                    "ranges": [[{"subnet": subnet.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{list:#}\n")
}

/// The network that a conflist of ours names; none where it is not one of ours.
pub(super) fn subnet_in(conflist: &str) -> Option<Subnet> {
    let list: serde_json::Value = serde_json::from_str(conflist).ok()?;
    list.pointer("/plugins/0/ipam/ranges/0/0/subnet")?
        .as_str()?
        .parse()
        .ok()
}

/// The arguments of the `iptables` calls that remove what the plugins left for the network's
/// containers, given `iptables -t nat -S`: rules whose comment names the network, then the chains
/// that only those rules led to.
pub(super) fn plan_rule_removal(rules: &str, network: &str) -> Vec<Vec<String>> {
    let marks = [
        format!("name: \"{network}\""),
        format!("name: \\\"{network}\\\""),
    ];
    let mut deletions = Vec::new();
    let mut chains: Vec<String> = Vec::new();
    for line in rules.lines() {
        let is_ours = marks.iter().any(|mark| line.contains(mark.as_str()));
        let Some(rule) = line.strip_prefix("-A ").filter(|_| is_ours) else {
            continue;
        };
        let words = split_rule(rule);
        let target = words
            .iter()
            .position(|word| word == "-j")
            .and_then(|at| words.get(at + 1));
        if let Some(chain) = target.filter(|name| name.starts_with("CNI-"))
            && !chain.starts_with("CNI-HOSTPORT-")
            && !chains.contains(chain)
        {
            chains.push(chain.clone());
        }
        // The rules of a chain that is emptied go with it.
        if !words.first().is_some_and(|chain| chains.contains(chain)) {
            deletions.push(
                ["-t", "nat", "-D"]
                    .map(str::to_owned)
                    .into_iter()
                    .chain(words)
                    .collect(),
            );
        }
    }
    for action in ["-F", "-X"] {
        for chain in &chains {
            deletions.push(["-t", "nat", action, chain].map(str::to_owned).to_vec());
        }
    }
    deletions
}

/// Words of a rule as iptables prints them: quotes group, a backslash keeps the next character.
fn split_rule(rule: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut in_quotes = false;
    let mut chars = rule.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => {
                in_quotes = !in_quotes;
                word.get_or_insert_default();
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            ' ' if !in_quotes => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// Whether a command line is that of a shim which serves the containerd at `socket`.
pub(super) fn is_shim_of(cmdline: &[String], socket: &str) -> bool {
    let is_shim = cmdline
        .first()
        .and_then(|program| program.rsplit('/').next())
        .is_some_and(|name| name.starts_with("containerd-shim"));
    is_shim
        && cmdline
            .windows(2)
            .any(|pair| pair[0].trim_start_matches('-') == "address" && pair[1] == socket)
}

/// Whether a command line is that of a containerd which was started with this configuration file.
pub(super) fn is_containerd_of(cmdline: &[String], config: &str) -> bool {
    let is_containerd = cmdline
        .first()
        .and_then(|program| program.rsplit('/').next())
        .is_some_and(|name| name == "containerd");
    is_containerd
        && cmdline
            .windows(2)
            .any(|pair| pair[0] == "--config" && pair[1] == config)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::debian_12("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1", Some((1, 6)))]
    #[case::docker(
        "containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da",
        Some((1, 7))
    )]
    #[case::built("containerd github.com/containerd/containerd/v2 v2.4.2 ", Some((2, 4)))]
    #[case::unstamped("containerd github.com/containerd/containerd/v2 2.4.2+unknown", Some((2, 4)))]
    #[case::nothing("", None)]
    #[case::other("runc version 1.1.5", None)]
    fn the_version_is_read_from_what_containerd_prints(
        #[case] printed: &str,
        #[case] expected: Option<(u32, u32)>,
    ) {
        let version = Version::parse(printed).map(|it| (it.major, it.minor));
        assert_eq!(version, expected);
    }

    fn config(major: u32, minor: u32) -> String {
        compute_config(&ConfigInput {
            version: Version { major, minor },
            root: "/r/root",
            state: "/r/state",
            socket: "/r/c.sock",
            runc: "/usr/sbin/runc",
            runc_root: "/r/state/runc",
            cni_bin_dir: "/usr/lib/cni",
            cni_conf_dir: "/r/cni",
            certs_dir: "/r/certs.d",
            pause_image: "skep.local/pause:1",
            snapshotter: "overlayfs",
            systemd_cgroup: false,
            restrict_oom_score_adj: true,
        })
    }

    #[rstest]
    #[case::v1_6(
        1,
        6,
        "version = 2\n",
        "bin_dir = \"/usr/lib/cni\"",
        "sandbox_image = "
    )]
    #[case::v1_7(
        1,
        7,
        "version = 2\n",
        "bin_dir = \"/usr/lib/cni\"",
        "sandbox_image = "
    )]
    #[case::v2_0(2, 0, "version = 3\n", "bin_dir = \"/usr/lib/cni\"", "sandbox = ")]
    #[case::v2_4(2, 4, "version = 3\n", "bin_dirs = [\"/usr/lib/cni\"]", "sandbox = ")]
    fn the_configuration_has_the_form_of_its_version(
        #[case] major: u32,
        #[case] minor: u32,
        #[case] form: &str,
        #[case] plugins: &str,
        #[case] sandbox: &str,
    ) {
        let text = config(major, minor);
        assert!(text.starts_with(form), "{text}");
        for part in [
            plugins,
            &format!("{sandbox}\"skep.local/pause:1\""),
            "restrict_oom_score_adj = true",
            "SystemdCgroup = false",
            "Root = \"/r/state/runc\"",
            "address = \"/r/c.sock\"",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_quote_in_a_path_stays_inside_its_string() {
        let text = compute_config(&ConfigInput {
            root: "/a\"b\\c",
            version: Version { major: 2, minor: 4 },
            state: "",
            socket: "",
            runc: "",
            runc_root: "",
            cni_bin_dir: "",
            cni_conf_dir: "",
            certs_dir: "",
            pause_image: "",
            snapshotter: "",
            systemd_cgroup: false,
            restrict_oom_score_adj: false,
        });
        assert!(text.contains(r#"root = "/a\"b\\c""#), "{text}");
    }

    #[test]
    fn two_folders_have_two_networks_with_names_an_interface_can_have() {
        let (one, two) = (
            network_name(Path::new("/var/lib/skep/containerd")),
            network_name(Path::new("/srv/skep/containerd")),
        );
        assert_ne!(one, two);
        assert!(one.len() <= 15 && one.starts_with("skep"));
    }

    #[test]
    fn the_subnet_avoids_every_route_of_the_machine() {
        let dir = Path::new("/var/lib/skep/containerd");
        let first = plan_subnet(dir, &[]).unwrap();
        let second = plan_subnet(dir, &[first]).unwrap();
        assert_ne!(first, second);
        let all: Subnet = "10.0.0.0/8".parse().unwrap();
        assert_eq!(plan_subnet(dir, &[all]), None);
    }

    #[test]
    fn routes_are_read_and_the_default_route_is_none() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
                     eth0\t00000000\t0114A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t0014A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let expected: Subnet = "192.168.20.0/24".parse().unwrap();
        assert_eq!(parse_routes(table), Some(vec![expected]));
        assert_eq!(parse_routes("head\nbroken line\n"), None);
    }

    #[test]
    fn the_subnet_of_a_conflist_is_found_again() {
        let subnet: Subnet = "10.88.7.0/24".parse().unwrap();
        let list = compute_conflist("skep01", subnet, "/r/ipam");
        assert_eq!(subnet_in(&list), Some(subnet));
        assert_eq!(subnet_in("{}"), None);
    }

    #[rstest]
    #[case::network_address_only("10.88.7.1/24")]
    #[case::too_many_bits("10.88.7.0/33")]
    #[case::no_prefix("10.88.7.0")]
    fn what_is_no_network_is_refused(#[case] text: &str) {
        assert_eq!(text.parse::<Subnet>(), Err(()));
    }

    #[test]
    fn only_the_rules_and_chains_of_the_network_are_removed() {
        let rules = r#"-P PREROUTING ACCEPT
-N CNI-HOSTPORT-DNAT
-N CNI-DN-aaaa
-N CNI-bbbb
-N CNI-DN-other
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.88.7.2/32 -m comment --comment "name: \"skep01\" id: \"c1\"" -j CNI-bbbb
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"skep01\" id: \"c1\"" -m multiport --dports 8080 -j CNI-DN-aaaa
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"other\" id: \"c2\"" -m multiport --dports 80 -j CNI-DN-other
-A CNI-bbbb -d 10.88.7.0/24 -m comment --comment "name: \"skep01\" id: \"c1\"" -j ACCEPT
"#;
        let plan: Vec<_> = plan_rule_removal(rules, "skep01")
            .into_iter()
            .map(|args| args.join(" "))
            .collect();
        assert_eq!(
            plan,
            [
                r#"-t nat -D POSTROUTING -s 10.88.7.2/32 -m comment --comment name: "skep01" id: "c1" -j CNI-bbbb"#,
                r#"-t nat -D CNI-HOSTPORT-DNAT -p tcp -m comment --comment dnat name: "skep01" id: "c1" -m multiport --dports 8080 -j CNI-DN-aaaa"#,
                "-t nat -F CNI-bbbb",
                "-t nat -F CNI-DN-aaaa",
                "-t nat -X CNI-bbbb",
                "-t nat -X CNI-DN-aaaa",
            ]
        );
    }

    #[test]
    fn only_shims_of_our_own_socket_are_ours() {
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let ours = "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x -address /r/c.sock";
        assert!(is_shim_of(&line(ours), "/r/c.sock"));
        assert!(!is_shim_of(&line(ours), "/run/containerd/containerd.sock"));
        assert!(!is_shim_of(&line("vi -address /r/c.sock"), "/r/c.sock"));
    }

    #[test]
    fn only_a_containerd_with_our_own_configuration_is_ours() {
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let ours = "/usr/bin/containerd --config /r/config.toml --log-level info";
        assert!(is_containerd_of(&line(ours), "/r/config.toml"));
        assert!(!is_containerd_of(
            &line(ours),
            "/etc/containerd/config.toml"
        ));
        assert!(!is_containerd_of(
            &line("vi --config /r/config.toml"),
            "/r/config.toml"
        ));
    }
}
