//! `skep check`: is this machine fit, what degrades and why.
//!
//! Each finding is looked for by doing the thing itself where that leaves nothing behind: the
//! kernel's programs are loaded and taken out again, the runtime is asked for its version. The
//! grading is pure.

use std::{fmt::Write as _, io, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::{
    config::RuntimeSettings,
    cri::{Client, RuntimeStatus, Version},
    host::{
        bpf,
        hierarchy::{self, CgroupVersion, Hierarchy},
        proc,
    },
    supervise,
    telemetry::chain,
};

/// A runtime that is there answers these calls in milliseconds.
const RUNTIME_LIMIT: Duration = Duration::from_secs(5);
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Ring buffers of BPF came with 5.8.
const OLDEST_KERNEL: (u32, u32) = (5, 8);

/// How much of what Skep can do this machine allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Grade {
    Ok,
    /// Skep runs, with less: the text says what.
    Degraded,
    /// Skep does not run without it.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub grade: Grade,
    /// One line: what is so, and what follows.
    pub text: String,
}

impl Finding {
    fn new(name: &'static str, grade: Grade, text: impl Into<String>) -> Self {
        Self {
            name,
            grade,
            text: text.into(),
        }
    }
}

/// Which machine is meant.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A running runtime; none: the containerd that `skep up` would start.
    pub endpoint: Option<String>,
    /// The root of `skep up`, for its containerd.
    pub root: PathBuf,
}

/// Looks at everything. A finding that cannot be made is a finding, too.
pub async fn machine(settings: &Settings) -> Vec<Finding> {
    let hierarchy = Hierarchy::detect();
    let mut findings = vec![
        grade_user(rustix::process::geteuid().is_root()),
        grade_kernel(&proc::kernel_release()),
        grade_types(std::fs::metadata(KERNEL_TYPES).map(|metadata| metadata.len())),
        grade_events(hierarchy.as_ref().map(load_programs)),
        grade_cgroups(&hierarchy, controllers(&hierarchy)),
        grade_swap(proc::is_swap_on()),
        grade_size(proc::cpus(), proc::memory_total()),
    ];
    match &settings.endpoint {
        Some(endpoint) => findings.extend(runtime(endpoint).await),
        None => {
            let own = supervise::Settings::for_root(&settings.root, "");
            findings.push(grade_programs(supervise::installed(&own).await));
        }
    }
    findings
}

/// No finding keeps Skep from running.
pub fn is_fit(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.grade != Grade::Missing)
}

/// As a person reads it.
pub fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for Finding {
        name,
        grade,
        text: what,
    } in findings
    {
        writeln!(text, "{name:width$}  {:8}  {what}", grade.to_string())
            .expect("a String takes everything");
    }
    text.push_str(match findings.iter().map(|finding| finding.grade).max() {
        Some(Grade::Missing) => "This machine lacks something that Skep needs.\n",
        Some(Grade::Degraded) => "This machine is fit, with less than Skep can do.\n",
        Some(Grade::Ok) | None => "This machine is fit.\n",
    });
    text
}

fn grade_user(is_root: bool) -> Finding {
    if is_root {
        Finding::new("user", Grade::Ok, "root")
    } else {
        Finding::new(
            "user",
            Grade::Missing,
            "not root: mounts, cgroups and the runtime's socket need root; try sudo",
        )
    }
}

fn grade_kernel(release: &str) -> Finding {
    let version = {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse::<u32>().ok();
        next().zip(next())
    };
    match version {
        Some(version) if version >= OLDEST_KERNEL => Finding::new("kernel", Grade::Ok, release),
        Some(_) => Finding::new(
            "kernel",
            Grade::Degraded,
            format!(
                "{release} is older than {}.{}, so it has no ring buffer for events: Skep follows \
                 the runtime's events, or lists each second",
                OLDEST_KERNEL.0, OLDEST_KERNEL.1
            ),
        ),
        None => Finding::new(
            "kernel",
            Grade::Degraded,
            format!("{release:?} tells no version"),
        ),
    }
}

fn grade_types(length: io::Result<u64>) -> Finding {
    match length {
        Ok(0) => Finding::new(
            "kernel types",
            Grade::Degraded,
            format!("{KERNEL_TYPES} is empty: no kernel events"),
        ),
        Ok(_) => Finding::new("kernel types", Grade::Ok, KERNEL_TYPES),
        Err(error) => Finding::new(
            "kernel types",
            Grade::Degraded,
            format!(
                "{KERNEL_TYPES}: {error}: a kernel with CONFIG_DEBUG_INFO_BTF is needed for kernel \
                 events"
            ),
        ),
    }
}

/// Loads and attaches the programs, and takes them out again.
fn load_programs(hierarchy: &Hierarchy) -> Result<(), bpf::Error> {
    let settings = bpf::Settings {
        ring_bytes: u32::try_from(rustix::param::page_size()).unwrap_or(1 << 16),
        max_tracked: 16,
    };
    bpf::open(&settings, hierarchy).map(drop)
}

fn grade_events(loaded: Result<Result<(), bpf::Error>, &hierarchy::Error>) -> Finding {
    let why = match loaded {
        Ok(Ok(())) => {
            return Finding::new(
                "kernel events",
                Grade::Ok,
                "the programs load and attach; exits are known at once",
            );
        }
        Ok(Err(error)) => chain(&error).to_string(),
        Err(error) => chain(error).to_string(),
    };
    Finding::new(
        "kernel events",
        Grade::Degraded,
        format!("{why}; Skep follows the runtime's events, or lists each second"),
    )
}

/// The controllers that pods need, by their names on this hierarchy.
fn wanted_controllers(version: CgroupVersion) -> &'static [&'static str] {
    match version {
        CgroupVersion::V1 => &["cpu", "cpuacct", "cpuset", "memory", "pids"],
        CgroupVersion::V2 => &["cpu", "cpuset", "memory", "pids"],
    }
}

/// The controllers that are there, in the kernel's words.
fn controllers(hierarchy: &Result<Hierarchy, hierarchy::Error>) -> io::Result<Vec<String>> {
    match hierarchy {
        Ok(hierarchy) if hierarchy.version == CgroupVersion::V2 => {
            let text = std::fs::read_to_string(hierarchy.mount.join("cgroup.controllers"))?;
            Ok(text.split_whitespace().map(str::to_owned).collect())
        }
        Ok(_) | Err(_) => Ok(v1_controllers(&std::fs::read_to_string(
            "/proc/self/cgroup",
        )?)),
    }
}

/// Lines like `4:cpu,cpuacct:/`.
fn v1_controllers(groups: &str) -> Vec<String> {
    groups
        .lines()
        .filter_map(|line| line.split(':').nth(1))
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn grade_cgroups(
    hierarchy: &Result<Hierarchy, hierarchy::Error>,
    found: io::Result<Vec<String>>,
) -> Finding {
    const NAME: &str = "cgroups";
    let hierarchy = match hierarchy {
        Ok(hierarchy) => hierarchy,
        Err(error) => return Finding::new(NAME, Grade::Missing, chain(error).to_string()),
    };
    let place = format!(
        "{} at {}",
        match hierarchy.version {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        },
        hierarchy.mount.display()
    );
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            return Finding::new(
                NAME,
                Grade::Missing,
                format!("{place}: the controllers cannot be read: {error}"),
            );
        }
    };
    let missing: Vec<&str> = wanted_controllers(hierarchy.version)
        .iter()
        .copied()
        .filter(|name| !found.iter().any(|found| found == name))
        .collect();
    if !missing.is_empty() {
        // Without cpuset nothing is lost until CPUs are pinned.
        let grade = if missing == ["cpuset"] {
            Grade::Degraded
        } else {
            Grade::Missing
        };
        return Finding::new(
            NAME,
            grade,
            format!("{place}, without the controllers {}", missing.join(", ")),
        );
    }
    match hierarchy.version {
        CgroupVersion::V2 => Finding::new(NAME, Grade::Ok, place),
        CgroupVersion::V1 => Finding::new(
            NAME,
            Grade::Degraded,
            format!(
                "{place}: skep up accepts it, skep run needs --fail-cgroupv1=false; Kubernetes is \
                 to drop v1"
            ),
        ),
    }
}

fn grade_swap(is_on: Result<bool, proc::Error>) -> Finding {
    match is_on {
        Ok(false) => Finding::new("swap", Grade::Ok, "off"),
        Ok(true) => Finding::new(
            "swap",
            Grade::Degraded,
            "on: skep up accepts it, skep run needs --fail-swap-on=false; secrets in memory may \
             reach the disk",
        ),
        Err(error) => Finding::new("swap", Grade::Degraded, chain(&error).to_string()),
    }
}

fn grade_size(cpus: Result<usize, proc::Error>, memory: Result<u64, proc::Error>) -> Finding {
    match (cpus, memory) {
        (Ok(cpus), Ok(bytes)) => Finding::new(
            "size",
            Grade::Ok,
            format!("{cpus} CPUs, {} MiB of memory", bytes >> 20),
        ),
        (Err(error), _) | (_, Err(error)) => {
            Finding::new("size", Grade::Degraded, chain(&error).to_string())
        }
    }
}

fn grade_programs(installed: Result<supervise::Version, supervise::Error>) -> Finding {
    match installed {
        Ok(version) => Finding::new(
            "runtime",
            Grade::Ok,
            format!(
                "containerd {}.{}, runc and the CNI plugins are installed for skep up",
                version.major, version.minor
            ),
        ),
        Err(error) => Finding::new("runtime", Grade::Missing, chain(&error).to_string()),
    }
}

/// Asks a running runtime who it is and how it fares.
async fn runtime(endpoint: &str) -> Vec<Finding> {
    let settings = RuntimeSettings {
        endpoint: endpoint.to_owned(),
        image_endpoint: None,
        request_timeout: RUNTIME_LIMIT,
    };
    let unreachable = |error: &crate::cri::Error| {
        vec![Finding::new(
            "runtime",
            Grade::Missing,
            format!("{endpoint}: {}", chain(error)),
        )]
    };
    let client = match Client::new(&settings) {
        Ok(client) => client,
        Err(error) => return unreachable(&error),
    };
    let version = match client.version().await {
        Ok(version) => version,
        Err(error) => return unreachable(&error),
    };
    match client.status().await {
        Ok(status) => grade_runtime(endpoint, &version, &status),
        Err(error) => unreachable(&error),
    }
}

fn grade_runtime(endpoint: &str, version: &Version, status: &RuntimeStatus) -> Vec<Finding> {
    let who = format!(
        "{} {} at {endpoint}",
        version.runtime_name, version.runtime_version
    );
    let not = |what: &str, condition: &crate::cri::Condition| {
        format!("{who}: {what}: {} {}", condition.reason, condition.message)
    };
    let runtime = if status.ready.is_true {
        Finding::new("runtime", Grade::Ok, who.as_str())
    } else {
        Finding::new("runtime", Grade::Missing, not("not ready", &status.ready))
    };
    let network = if status.network.is_true {
        Finding::new("network", Grade::Ok, "the runtime's network is ready")
    } else {
        Finding::new(
            "network",
            Grade::Degraded,
            format!(
                "{}; only pods in the host's network can start",
                not("the network is not ready", &status.network)
            ),
        )
    };
    vec![runtime, network]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cri::Condition;

    #[rstest]
    #[case("6.1.0-18-amd64", Grade::Ok)]
    #[case("5.8", Grade::Ok)]
    #[case("5.10.0", Grade::Ok)]
    #[case("4.19.0-27-amd64", Grade::Degraded)]
    #[case("5.7.19", Grade::Degraded)]
    #[case("unknown", Grade::Degraded)]
    fn a_kernel_is_graded_by_its_version(#[case] release: &str, #[case] grade: Grade) {
        assert_eq!(grade_kernel(release).grade, grade);
    }

    fn hierarchy(version: CgroupVersion) -> Result<Hierarchy, hierarchy::Error> {
        Ok(Hierarchy {
            version,
            id: 0,
            mount: "/sys/fs/cgroup".into(),
            mount_depth: 0,
        })
    }

    fn names(names: &[&str]) -> io::Result<Vec<String>> {
        Ok(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[rstest]
    #[case(
        CgroupVersion::V2,
        &["cpu", "cpuset", "memory", "pids"],
        Grade::Ok,
        "v2 at /sys/fs/cgroup"
    )]
    #[case(
        CgroupVersion::V2,
        &["cpuset", "memory"],
        Grade::Missing,
        "v2 at /sys/fs/cgroup, without the controllers cpu, pids"
    )]
    #[case(
        CgroupVersion::V2,
        &["cpu", "memory", "pids"],
        Grade::Degraded,
        "v2 at /sys/fs/cgroup, without the controllers cpuset"
    )]
    #[case(
        CgroupVersion::V1,
        &["cpu", "cpuacct", "cpuset", "memory", "pids"],
        Grade::Degraded,
        "v1 at /sys/fs/cgroup: skep up accepts it, skep run needs --fail-cgroupv1=false; Kubernetes is to drop v1"
    )]
    fn cgroups_are_graded_by_version_and_controllers(
        #[case] version: CgroupVersion,
        #[case] found: &[&str],
        #[case] grade: Grade,
        #[case] text: &str,
    ) {
        let finding = grade_cgroups(&hierarchy(version), names(found));
        assert_eq!((finding.grade, finding.text.as_str()), (grade, text));
    }

    #[test]
    fn controllers_of_v1_are_read_from_the_lines_of_our_process() {
        assert_eq!(
            v1_controllers("4:cpu,cpuacct:/\n3:memory:/a\n1:name=systemd:/\n0::/\n"),
            ["cpu", "cpuacct", "memory", "name=systemd"]
        );
    }

    #[test]
    fn a_refused_bpf_call_degrades_and_says_what_is_done_instead() {
        let refused = bpf::Error::NotPermitted(io::Error::from_raw_os_error(1));
        let finding = grade_events(Ok(Err(refused)));
        assert_eq!(finding.grade, Grade::Degraded);
        assert!(
            finding
                .text
                .starts_with("the bpf system call is not permitted")
        );
        assert!(
            finding
                .text
                .ends_with("Skep follows the runtime's events, or lists each second")
        );
    }

    #[test]
    fn a_runtime_without_a_network_degrades() {
        let condition = |is_true| Condition {
            is_true,
            reason: "NetworkPluginNotReady".into(),
            message: "cni plugin not initialized".into(),
        };
        let status = RuntimeStatus {
            ready: condition(true),
            network: condition(false),
            handlers: Vec::new(),
            features: Default::default(),
        };
        let version = Version {
            runtime_name: "containerd".into(),
            runtime_version: "2.4.0".into(),
            runtime_api_version: "v1".into(),
        };
        let findings = grade_runtime("unix:///run/c.sock", &version, &status);
        assert_eq!(
            table(&findings),
            "runtime  ok        containerd 2.4.0 at unix:///run/c.sock\n\
             network  degraded  containerd 2.4.0 at unix:///run/c.sock: the network is not ready: \
             NetworkPluginNotReady cni plugin not initialized; only pods in the host's network can \
             start\n\
             This machine is fit, with less than Skep can do.\n"
        );
        assert!(is_fit(&findings));
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_missing() {
        let settings = Settings {
            endpoint: Some("unix:///no/such/runtime.sock".into()),
            root: "/nonexistent".into(),
        };
        let findings = machine(&settings).await;
        let runtime = findings
            .iter()
            .find(|finding| finding.name == "runtime")
            .expect("a finding");
        assert_eq!(runtime.grade, Grade::Missing);
        assert!(
            runtime.text.starts_with("unix:///no/such/runtime.sock: "),
            "{}",
            runtime.text
        );
        assert!(!is_fit(&findings));
        assert!(table(&findings).ends_with("This machine lacks something that Skep needs.\n"));
    }

    #[test]
    fn findings_are_told_to_programs_in_the_same_words() {
        let finding = Finding::new("swap", Grade::Degraded, "on");
        assert_eq!(
            serde_json::to_string(&finding).expect("JSON"),
            r#"{"name":"swap","grade":"degraded","text":"on"}"#
        );
    }
}
