//! What the floor asks the runtime for: the configurations that agents give it for the same pods,
//! by upstream's defaults. With less, such as no masked paths or no seccomp profile, the runtime
//! would have less to do than for any agent, and the floor would not be one.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use proto::cri::v1::{self as api, security_profile::ProfileType};

use crate::{
    cgroup,
    pods::{Container, Network, Pod},
};

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// Of a pod without requests, whose first victim it is to be.
const OOM_SCORE_ADJ: i64 = 1000;
/// Of a pod without requests: the least there is.
const CPU_SHARES: i64 = 2;
const CPU_PERIOD_US: i64 = 100_000;

/// Where things lie; each pod has folders of its own in them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The pods' cgroup, as the runtime names it.
    pub(super) cgroup: String,
    pub(super) logs: PathBuf,
    /// For what is mounted into containers.
    pub(super) files: PathBuf,
}

/// Makes the pod's folders.
pub(super) fn sandbox(pod: &Pod, places: &Places) -> io::Result<api::PodSandboxConfig> {
    let logs = places.logs.join(&pod.name);
    fs::create_dir_all(&logs)?;
    fs::create_dir_all(places.files.join(&pod.name))?;
    Ok(api::PodSandboxConfig {
        metadata: Some(api::PodSandboxMetadata {
            name: pod.name.clone(),
            uid: uid(pod),
            namespace: "default".into(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        labels: labels(pod),
        linux: Some(api::LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/kubepods/besteffort/pod{}", places.cgroup, uid(pod)),
            security_context: Some(api::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod.network)),
                seccomp: Some(seccomp(ProfileType::RuntimeDefault)),
                ..Default::default()
            }),
            resources: Some(api::LinuxContainerResources {
                cpu_shares: CPU_SHARES,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// Makes the files that are mounted into this instance of the container.
pub(super) fn container(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    places: &Places,
) -> io::Result<api::ContainerConfig> {
    let memory = container.memory_mib.map(|mib| i64::from(mib) << 20);
    let name = (
        "io.kubernetes.container.name".to_owned(),
        container.name.clone(),
    );
    Ok(api::ContainerConfig {
        metadata: Some(api::ContainerMetadata {
            name: container.name.clone(),
            attempt,
        }),
        image: Some(api::ImageSpec {
            image: container.image.clone(),
            ..Default::default()
        }),
        command: container.command.clone(),
        labels: labels(pod).into_iter().chain([name]).collect(),
        mounts: mounts(&places.files.join(&pod.name), container, attempt)?,
        log_path: format!("{}-{attempt}.log", container.name),
        linux: Some(api::LinuxContainerConfig {
            resources: Some(api::LinuxContainerResources {
                cpu_shares: CPU_SHARES,
                cpu_period: CPU_PERIOD_US,
                memory_limit_in_bytes: memory.unwrap_or(0),
                oom_score_adj: OOM_SCORE_ADJ,
                unified: unified(),
                ..Default::default()
            }),
            security_context: Some(api::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces(pod.network)),
                run_as_user: Some(api::Int64Value {
                    value: container.user,
                }),
                masked_paths: MASKED_PATHS.map(str::to_owned).to_vec(),
                readonly_paths: READONLY_PATHS.map(str::to_owned).to_vec(),
                seccomp: Some(seccomp(ProfileType::Unconfined)),
                ..Default::default()
            }),
        }),
        ..Default::default()
    })
}

/// On v2.
fn unified() -> HashMap<String, String> {
    let files: &[(&str, &str)] = if cgroup::version() == "v2" {
        &[
            ("memory.oom.group", "1"),
            ("memory.min", "0"),
            ("memory.low", "0"),
        ]
    } else {
        &[]
    };
    let text = |(file, value): &(&str, &str)| ((*file).to_owned(), (*value).to_owned());
    files.iter().map(text).collect()
}

/// The hosts file, and one for the termination message.
fn mounts(files: &Path, container: &Container, attempt: u32) -> io::Result<Vec<api::Mount>> {
    let hosts = files.join("etc-hosts");
    fs::copy("/etc/hosts", &hosts)?;
    let message = files.join(format!("{}-{attempt}", container.name));
    fs::write(&message, "")?;
    let mount = |host: &Path, inside: &str| api::Mount {
        host_path: host.display().to_string(),
        container_path: inside.to_owned(),
        ..Default::default()
    };
    Ok(vec![
        mount(&hosts, "/etc/hosts"),
        mount(&message, "/dev/termination-log"),
    ])
}

fn labels(pod: &Pod) -> HashMap<String, String> {
    HashMap::from([
        ("io.kubernetes.pod.name".to_owned(), pod.name.clone()),
        (
            "io.kubernetes.pod.namespace".to_owned(),
            "default".to_owned(),
        ),
        ("io.kubernetes.pod.uid".to_owned(), uid(pod)),
    ])
}

fn uid(pod: &Pod) -> String {
    format!("uid-{}", pod.name)
}

fn seccomp(profile: ProfileType) -> api::SecurityProfile {
    api::SecurityProfile {
        profile_type: profile.into(),
        ..Default::default()
    }
}

fn namespaces(network: Network) -> api::NamespaceOption {
    let network = match network {
        Network::Host => api::NamespaceMode::Node,
        Network::Bridge => api::NamespaceMode::Pod,
    };
    api::NamespaceOption {
        network: network.into(),
        pid: api::NamespaceMode::Container.into(),
        ipc: api::NamespaceMode::Pod.into(),
        ..Default::default()
    }
}
