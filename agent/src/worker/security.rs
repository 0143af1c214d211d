//! Who a container runs as and what it may do (SCTX-01 to 07, 11). Pure.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, PodSecurityContext, SELinuxOptions, SeccompProfile,
    SecurityContext,
};

use super::{config_error::ConfigError, facts::NodeFacts};
use crate::{
    cri::api::{
        Capability, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext,
        NamespaceMode, NamespaceOption, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy,
        security_profile::ProfileType,
    },
    types::pod::Pod,
};

/// The user that an image asks for: by number, or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageUser {
    pub(crate) uid: Option<i64>,
    pub(crate) username: String,
}

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

/// Of a sandbox. Its own process needs no more than the runtime's default seccomp profile, also
/// where the pod's containers may do more.
pub(crate) fn of_sandbox(pod: &Pod) -> Result<LinuxSandboxSecurityContext, ConfigError> {
    let own = pod.spec().security_context.as_ref();
    Ok(LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: own
            .and_then(|own| own.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: own.and_then(|own| own.run_as_user).map(int64),
        run_as_group: own.and_then(|own| own.run_as_group).map(int64),
        supplemental_groups: groups(own),
        supplemental_groups_policy: groups_policy(own)?.into(),
        privileged: pod
            .all_containers()
            .any(|(container, _)| is_privileged(container)),
        seccomp: Some(profile(ProfileType::RuntimeDefault)),
        ..LinuxSandboxSecurityContext::default()
    })
}

/// Of a container; its own fields come before the pod's. Refuses what `runAsNonRoot` forbids.
pub(crate) fn of_container(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
    facts: &NodeFacts,
) -> Result<LinuxContainerSecurityContext, ConfigError> {
    let of_pod = pod.spec().security_context.as_ref();
    let own = container.security_context.as_ref();
    let user = own
        .and_then(|own| own.run_as_user)
        .or(of_pod.and_then(|of_pod| of_pod.run_as_user));
    let group = own
        .and_then(|own| own.run_as_group)
        .or(of_pod.and_then(|of_pod| of_pod.run_as_group));
    check_non_root(pod, container, user, image_user)?;

    let is_unmasked = own.and_then(|own| own.proc_mount.as_deref()) == Some("Unmasked");
    let (masked_paths, readonly_paths) = if is_unmasked {
        (Vec::new(), Vec::new())
    } else {
        let masked = MASKED_PATHS.map(str::to_owned).into_iter();
        (
            masked
                .chain(facts.thermal_throttle_paths.iter().cloned())
                .collect(),
            READONLY_PATHS.map(str::to_owned).to_vec(),
        )
    };
    let (apparmor, apparmor_profile) = apparmor(pod, container)?;
    let selinux_options = own
        .and_then(|own| own.se_linux_options.as_ref())
        .or(of_pod.and_then(|of_pod| of_pod.se_linux_options.as_ref()));
    let flag = |pick: fn(&SecurityContext) -> Option<bool>| own.and_then(pick);
    Ok(LinuxContainerSecurityContext {
        capabilities: own
            .and_then(|own| own.capabilities.as_ref())
            .map(capabilities),
        privileged: is_privileged(container),
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux_options.map(selinux),
        run_as_user: user.or(image_user.uid).map(int64),
        run_as_group: group.map(int64),
        run_as_username: match user {
            Some(_) => String::new(),
            None => image_user.username.clone(),
        },
        readonly_rootfs: flag(|own| own.read_only_root_filesystem) == Some(true),
        supplemental_groups: groups(of_pod),
        supplemental_groups_policy: groups_policy(of_pod)?.into(),
        no_new_privs: flag(|own| own.allow_privilege_escalation) == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp(
            own.and_then(|own| own.seccomp_profile.as_ref())
                .or(of_pod.and_then(|of_pod| of_pod.seccomp_profile.as_ref())),
            facts,
        )?),
        apparmor,
        #[expect(deprecated, reason = "older runtimes read nothing else")]
        apparmor_profile,
        ..LinuxContainerSecurityContext::default()
    })
}

/// Which namespaces are the node's, the pod's or the container's own (SCTX-11, NET-19).
pub(crate) fn namespaces(pod: &Pod) -> NamespaceOption {
    let spec = pod.spec();
    let node_or_pod = |is_host: Option<bool>| match is_host {
        Some(true) => NamespaceMode::Node,
        Some(false) | None => NamespaceMode::Pod,
    };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => NamespaceMode::Node,
        (_, Some(true)) => NamespaceMode::Pod,
        (_, _) => NamespaceMode::Container,
    };
    NamespaceOption {
        network: node_or_pod(spec.host_network).into(),
        pid: pid.into(),
        ipc: node_or_pod(spec.host_ipc).into(),
        ..NamespaceOption::default()
    }
}

fn is_privileged(container: &Container) -> bool {
    let own = container.security_context.as_ref();
    own.and_then(|own| own.privileged) == Some(true)
}

fn check_non_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image_user: &ImageUser,
) -> Result<(), ConfigError> {
    let of_pod = pod.spec().security_context.as_ref();
    let own = container.security_context.as_ref();
    let is_wanted = own
        .and_then(|own| own.run_as_non_root)
        .or(of_pod.and_then(|of_pod| of_pod.run_as_non_root));
    if is_wanted != Some(true) {
        return Ok(());
    }
    let text = match (user, image_user.uid) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (Some(_), _) => return Ok(()),
        (None, Some(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        (None, Some(uid)) if i32::try_from(uid).is_err() || uid < 0 => format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be \
             1-({max})): must be between 0 and {max}, inclusive",
            max = i32::MAX
        ),
        (None, Some(_)) => return Ok(()),
        (None, None) if image_user.username.is_empty() => return Ok(()),
        (None, None) => format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user \
             is non-root",
            image_user.username
        ),
    };
    Err(ConfigError::new(format!(
        "{text} (pod: {:?}, container: {})",
        pod.described(),
        container.name
    )))
}

/// fsGroup first, then the supplemental groups (SCTX-03).
fn groups(of_pod: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(of_pod) = of_pod else {
        return Vec::new();
    };
    let others = of_pod.supplemental_groups.iter().flatten();
    of_pod.fs_group.iter().chain(others).copied().collect()
}

fn groups_policy(
    of_pod: Option<&PodSecurityContext>,
) -> Result<SupplementalGroupsPolicy, ConfigError> {
    match of_pod.and_then(|of_pod| of_pod.supplemental_groups_policy.as_deref()) {
        None => Ok(SupplementalGroupsPolicy::Merge),
        Some(name) => SupplementalGroupsPolicy::from_str_name(name).ok_or_else(|| {
            ConfigError::new(format!("unsupported supplementalGroupsPolicy: {name}"))
        }),
    }
}

fn seccomp(
    wanted: Option<&SeccompProfile>,
    facts: &NodeFacts,
) -> Result<SecurityProfile, ConfigError> {
    let Some(wanted) = wanted else {
        return Ok(profile(if facts.seccomp_default {
            ProfileType::RuntimeDefault
        } else {
            ProfileType::Unconfined
        }));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Localhost" => {
            let path = wanted.localhost_profile.as_deref().unwrap_or_default();
            let path = path.trim_start_matches('/');
            if path.is_empty() {
                return Err(ConfigError::new(
                    "localhostProfile must be set if seccompProfile type is Localhost.",
                ));
            }
            let file = facts.root_dir.join("seccomp").join(path);
            Ok(localhost(file.to_string_lossy().into_owned()))
        }
        _ => Ok(profile(ProfileType::Unconfined)),
    }
}

const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The profile in both forms that runtimes read (SCTX-07). The field of the container comes
/// before the annotation, and that before the field of the pod.
fn apparmor(
    pod: &Pod,
    container: &Container,
) -> Result<(Option<SecurityProfile>, String), ConfigError> {
    let own = container.security_context.as_ref();
    let annotation = pod.metadata().annotations.as_ref().and_then(|all| {
        let value = all.get(&format!("{APPARMOR_ANNOTATION}{}", container.name))?;
        let (type_, file) = match value.as_str() {
            "runtime/default" => ("RuntimeDefault", None),
            "unconfined" => ("Unconfined", None),
            other => (
                "Localhost",
                Some(other.strip_prefix("localhost/")?.to_owned()),
            ),
        };
        Some(AppArmorProfile {
            type_: type_.to_owned(),
            localhost_profile: file,
        })
    });
    let of_pod = pod.spec().security_context.as_ref();
    let Some(wanted) = own
        .and_then(|own| own.app_armor_profile.clone())
        .or(annotation)
        .or(of_pod.and_then(|of_pod| of_pod.app_armor_profile.clone()))
    else {
        return Ok((None, String::new()));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok((
            Some(profile(ProfileType::RuntimeDefault)),
            "runtime/default".to_owned(),
        )),
        "Unconfined" => Ok((
            Some(profile(ProfileType::Unconfined)),
            "unconfined".to_owned(),
        )),
        "Localhost" => match wanted.localhost_profile {
            Some(name) => {
                let deprecated = format!("localhost/{name}");
                Ok((Some(localhost(name)), deprecated))
            }
            None => Err(ConfigError::new("missing localhost apparmor profile name")),
        },
        other => Err(ConfigError::new(format!(
            "unknown apparmor profile type: {other:?}"
        ))),
    }
}

fn profile(kind: ProfileType) -> SecurityProfile {
    SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: String::new(),
    }
}

fn localhost(localhost_ref: String) -> SecurityProfile {
    SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref,
    }
}

fn int64(value: i64) -> Int64Value {
    Int64Value { value }
}

fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

fn capabilities(wanted: &Capabilities) -> Capability {
    Capability {
        add_capabilities: wanted.add.clone().unwrap_or_default(),
        drop_capabilities: wanted.drop.clone().unwrap_or_default(),
        ..Capability::default()
    }
}

#[cfg(test)]
mod tests;
