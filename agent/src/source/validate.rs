//! Validation as for a create through the API, for the fields that are acted on. Pure.
//!
//! Finds everything that is wrong with a manifest at once. What is not built is `fields`' matter.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, Pod as PodObject, PodSecurityContext, PodSpec,
    ResourceFieldSelector, ResourceRequirements, SeccompProfile, SecurityContext, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as QuantityText;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{problem::Problem, text};
use crate::types::quantity::Quantity;

const MAX_ANNOTATION_BYTES: usize = 256 << 10;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

const HOST_PATH_TYPES: &[&str] = &[
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
/// Fields that a variable may take from the pod (ENV group); labels and annotations by key besides.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const ENV_RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];
const CPU_DIVISORS: &[&str] = &["1m", "1"];
const BYTE_DIVISORS: &[&str] = &[
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

/// All that is wrong with a pod whose defaults are filled in.
pub(super) fn validate(pod: &PodObject) -> Vec<Problem> {
    let mut check = Check::default();
    check.metadata(&pod.metadata);
    match &pod.spec {
        Some(spec) => check.spec(spec),
        None => check.add(Problem::required("spec", "")),
    }
    check.problems
}

#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// One problem for each message about this value.
    fn invalid(&mut self, path: &str, value: &str, messages: Vec<String>) {
        for message in messages {
            self.add(Problem::invalid(path, value, &message));
        }
    }

    fn one_of(&mut self, path: String, value: Option<&str>, supported: &[&str]) {
        let value = value.unwrap_or_default();
        if !supported.contains(&value) {
            self.add(Problem::unsupported(path, value, supported));
        }
    }

    fn metadata(&mut self, metadata: &ObjectMeta) {
        let name = metadata.name.as_deref().unwrap_or_default();
        self.invalid("metadata.name", name, text::dns_subdomain(name));
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        self.invalid("metadata.namespace", namespace, text::dns_label(namespace));
        for (key, value) in metadata.labels.iter().flatten() {
            self.invalid("metadata.labels", key, text::qualified_name(key));
            self.invalid("metadata.labels", value, text::label_value(value));
        }
        let mut bytes = 0;
        for (key, value) in metadata.annotations.iter().flatten() {
            let lower = key.to_lowercase();
            self.invalid("metadata.annotations", key, text::qualified_name(&lower));
            bytes += key.len() + value.len();
        }
        if bytes > MAX_ANNOTATION_BYTES {
            self.add(Problem::new(
                "metadata.annotations",
                format!("Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes"),
            ));
        }
    }

    fn spec(&mut self, spec: &PodSpec) {
        let volumes = self.volumes(spec.volumes.as_deref().unwrap_or_default());
        self.containers(spec, &volumes);
        self.one_of(
            "spec.restartPolicy".into(),
            spec.restart_policy.as_deref(),
            &["Always", "OnFailure", "Never"],
        );
        self.dns(spec);
        if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
            self.add(Problem::invalid(
                "spec.shareProcessNamespace",
                true,
                "ShareProcessNamespace and HostPID cannot both be enabled",
            ));
        }
        for (field, value) in [
            ("spec.hostname", &spec.hostname),
            ("spec.subdomain", &spec.subdomain),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                self.invalid(field, value, text::dns_label(value));
            }
        }
        for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
            let path = format!("spec.hostAliases[{i}]");
            self.invalid(&format!("{path}.ip"), &alias.ip, text::ip(&alias.ip));
            for (j, name) in alias.hostnames.iter().flatten().enumerate() {
                self.invalid(
                    &format!("{path}.hostnames[{j}]"),
                    name,
                    text::dns_subdomain(name),
                );
            }
        }
        if let Some(context) = &spec.security_context {
            self.pod_security(context);
        }
    }

    /// Names of the volumes that are good.
    fn volumes(&mut self, volumes: &[Volume]) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (i, volume) in volumes.iter().enumerate() {
            let path = format!("spec.volumes[{i}]");
            let name_path = format!("{path}.name");
            if volume.name.is_empty() {
                self.add(Problem::required(name_path, ""));
            } else {
                self.invalid(&name_path, &volume.name, text::dns_label(&volume.name));
                if !names.insert(volume.name.clone()) {
                    self.add(Problem::duplicate(name_path, &volume.name));
                }
            }
            self.volume_source(volume, &path);
        }
        names
    }

    fn volume_source(&mut self, volume: &Volume, path: &str) {
        if let Some(empty_dir) = &volume.empty_dir
            && let Some(limit) = &empty_dir.size_limit
        {
            self.quantity(&format!("{path}.emptyDir.sizeLimit"), limit);
        }
        let Some(host_path) = &volume.host_path else {
            return;
        };
        let path = format!("{path}.hostPath");
        if volume.empty_dir.is_some() {
            self.add(Problem::forbidden(
                path,
                "may not specify more than 1 volume type",
            ));
            return;
        }
        if host_path.path.is_empty() {
            self.add(Problem::required(format!("{path}.path"), ""));
            return;
        }
        let backsteps = text::no_backsteps(&host_path.path);
        self.invalid(&format!("{path}.path"), &host_path.path, backsteps);
        self.one_of(
            format!("{path}.type"),
            host_path.type_.as_deref(),
            HOST_PATH_TYPES,
        );
    }

    fn containers(&mut self, spec: &PodSpec, volumes: &BTreeSet<String>) {
        if spec.containers.is_empty() {
            self.add(Problem::required("spec.containers", ""));
        }
        let mut names = BTreeSet::new();
        let mut host_ports = BTreeSet::new();
        for (i, container) in spec.containers.iter().enumerate() {
            let path = format!("spec.containers[{i}]");
            self.container(container, &path, volumes);
            if !container.name.is_empty() && !names.insert(container.name.as_str()) {
                self.add(Problem::duplicate(format!("{path}.name"), &container.name));
            }
            let ports = container.ports.as_deref().unwrap_or_default();
            self.host_ports(ports, &path, &mut host_ports);
            if spec.host_network == Some(true) {
                self.host_network_ports(ports, &path);
            }
        }
        for (i, container) in spec.init_containers.iter().flatten().enumerate() {
            let path = format!("spec.initContainers[{i}]");
            self.container(container, &path, volumes);
            if !container.name.is_empty() && !names.insert(container.name.as_str()) {
                self.add(Problem::duplicate(format!("{path}.name"), &container.name));
            }
            // Init containers run one by one: each alone must not want a port twice.
            let ports = container.ports.as_deref().unwrap_or_default();
            self.host_ports(ports, &path, &mut BTreeSet::new());
        }
    }

    fn container(&mut self, container: &Container, path: &str, volumes: &BTreeSet<String>) {
        let name_path = format!("{path}.name");
        if container.name.is_empty() {
            self.add(Problem::required(name_path, ""));
        } else {
            self.invalid(
                &name_path,
                &container.name,
                text::dns_label(&container.name),
            );
        }
        let image = container.image.as_deref().unwrap_or_default();
        if image.is_empty() {
            self.add(Problem::required(format!("{path}.image"), ""));
        } else if image.trim() != image {
            self.add(Problem::invalid(
                format!("{path}.image"),
                image,
                "must not have leading or trailing whitespace",
            ));
        }
        self.one_of(
            format!("{path}.imagePullPolicy"),
            container.image_pull_policy.as_deref(),
            &["Always", "IfNotPresent", "Never"],
        );
        self.one_of(
            format!("{path}.terminationMessagePolicy"),
            container.termination_message_policy.as_deref(),
            &["File", "FallbackToLogsOnError"],
        );
        self.ports(container.ports.as_deref().unwrap_or_default(), path);
        for (i, variable) in container.env.iter().flatten().enumerate() {
            self.variable(variable, &format!("{path}.env[{i}]"));
        }
        self.mounts(container, path, volumes);
        if let Some(resources) = &container.resources {
            self.resources(resources, &format!("{path}.resources"));
        }
        if let Some(context) = &container.security_context {
            self.security(context, &format!("{path}.securityContext"));
        }
    }

    fn port_number(&mut self, path: String, port: i32) {
        if !(1..=65535).contains(&port) {
            self.add(Problem::invalid(
                path,
                port,
                "must be between 1 and 65535, inclusive",
            ));
        }
    }

    fn ports(&mut self, ports: &[ContainerPort], path: &str) {
        let mut names = BTreeSet::new();
        for (i, port) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{i}]");
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let wrong = text::port_name(name);
                if !wrong.is_empty() {
                    self.invalid(&format!("{path}.name"), name, wrong);
                } else if !names.insert(name) {
                    self.add(Problem::duplicate(format!("{path}.name"), name));
                }
            }
            if port.container_port == 0 {
                self.add(Problem::required(format!("{path}.containerPort"), ""));
            } else {
                self.port_number(format!("{path}.containerPort"), port.container_port);
            }
            if let Some(host_port) = port.host_port.filter(|&port| port != 0) {
                self.port_number(format!("{path}.hostPort"), host_port);
            }
            self.one_of(
                format!("{path}.protocol"),
                port.protocol.as_deref(),
                &["SCTP", "TCP", "UDP"],
            );
        }
    }

    fn host_ports(&mut self, ports: &[ContainerPort], path: &str, taken: &mut BTreeSet<String>) {
        for (i, port) in ports.iter().enumerate() {
            let Some(number) = port.host_port.filter(|&number| number != 0) else {
                continue;
            };
            let protocol = port.protocol.as_deref().unwrap_or_default();
            let ip = port.host_ip.as_deref().unwrap_or_default();
            let wanted = format!("{protocol}/{ip}/{number}");
            if taken.contains(&wanted) {
                let path = format!("{path}.ports[{i}].hostPort");
                self.add(Problem::duplicate(path, &wanted));
            }
            taken.insert(wanted);
        }
    }

    fn host_network_ports(&mut self, ports: &[ContainerPort], path: &str) {
        for (i, port) in ports.iter().enumerate() {
            if port.host_port != Some(port.container_port) {
                self.add(Problem::invalid(
                    format!("{path}.ports[{i}].hostPort"),
                    port.host_port.unwrap_or(0),
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }

    fn variable(&mut self, variable: &EnvVar, path: &str) {
        let name_path = format!("{path}.name");
        if variable.name.is_empty() {
            self.add(Problem::required(name_path, ""));
        } else {
            self.invalid(&name_path, &variable.name, text::env_name(&variable.name));
        }
        let Some(from) = &variable.value_from else {
            return;
        };
        let path = format!("{path}.valueFrom");
        let sources = [
            from.field_ref.is_some(),
            from.resource_field_ref.is_some(),
            from.config_map_key_ref.is_some(),
            from.secret_key_ref.is_some(),
            from.file_key_ref.is_some(),
        ];
        let has_value = variable
            .value
            .as_deref()
            .is_some_and(|value| !value.is_empty());
        match sources.iter().filter(|&&is_set| is_set).count() {
            0 => self.add(Problem::invalid(
                path.as_str(),
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            )),
            _ if has_value => self.add(Problem::invalid(
                path.as_str(),
                "",
                "may not be specified when `value` is not empty",
            )),
            1 => {}
            _ => self.add(Problem::invalid(
                path.as_str(),
                "",
                "may not have more than one field specified at a time",
            )),
        }
        if let Some(field) = &from.field_ref {
            let version = field.api_version.as_deref().unwrap_or_default();
            self.field_ref(version, &field.field_path, &format!("{path}.fieldRef"));
        }
        if let Some(resource) = &from.resource_field_ref {
            self.resource_field_ref(resource, &format!("{path}.resourceFieldRef"));
        }
    }

    fn field_ref(&mut self, version: &str, field: &str, path: &str) {
        let field_path = format!("{path}.fieldPath");
        if field.is_empty() {
            self.add(Problem::required(field_path, ""));
            return;
        }
        if version != "v1" {
            self.add(Problem::invalid(
                field_path,
                field,
                &format!("error converting fieldPath: unsupported pod version: {version}"),
            ));
            return;
        }
        let subscripted = field
            .strip_suffix("']")
            .and_then(|field| field.split_once("['"));
        match subscripted {
            Some(("metadata.annotations", key)) => {
                self.invalid(path, key, text::qualified_name(&key.to_lowercase()));
            }
            Some(("metadata.labels", key)) => {
                self.invalid(path, key, text::qualified_name(key));
            }
            Some(_) => self.add(Problem::invalid(
                field_path,
                field,
                &format!(
                    "error converting fieldPath: field label does not support subscript: {field}"
                ),
            )),
            // Old clients' name for spec.nodeName.
            None if field == "spec.host" => {}
            None => self.one_of(field_path, Some(field), ENV_FIELDS),
        }
    }

    fn resource_field_ref(&mut self, reference: &ResourceFieldSelector, path: &str) {
        let resource = reference.resource.as_str();
        let resource_path = format!("{path}.resource");
        if resource.is_empty() {
            self.add(Problem::required(resource_path, ""));
            return;
        }
        if resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-")
        {
            self.add(Problem::forbidden(
                resource_path,
                "huge pages: not built yet",
            ));
            return;
        }
        self.one_of(resource_path, Some(resource), ENV_RESOURCES);
        let Some(divisor) = &reference.divisor else {
            return;
        };
        let divisor_path = format!("{path}.divisor");
        let Some(value) = self.quantity(&divisor_path, divisor) else {
            return;
        };
        let (supported, of) = if resource.ends_with(".cpu") {
            (CPU_DIVISORS, "cpu")
        } else if resource.ends_with(".memory") {
            (BYTE_DIVISORS, "memory")
        } else {
            (BYTE_DIVISORS, "local ephemeral storage")
        };
        let is_supported = supported
            .iter()
            .any(|text| text.parse::<Quantity>() == Ok(value));
        if !value.is_zero() && !is_supported {
            self.add(Problem::invalid(
                divisor_path,
                resource,
                &format!(
                    "only divisor's values {} are supported with the {of} resource",
                    supported.join(", ")
                ),
            ));
        }
    }

    fn mounts(&mut self, container: &Container, path: &str, volumes: &BTreeSet<String>) {
        let is_privileged = container
            .security_context
            .as_ref()
            .is_some_and(|context| context.privileged == Some(true));
        let mut mount_paths = BTreeSet::new();
        for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let path = format!("{path}.volumeMounts[{i}]");
            if mount.name.is_empty() {
                self.add(Problem::required(format!("{path}.name"), ""));
            } else if !volumes.contains(&mount.name) {
                self.add(Problem::not_found(format!("{path}.name"), &mount.name));
            }
            if mount.mount_path.is_empty() {
                self.add(Problem::required(format!("{path}.mountPath"), ""));
            } else if !mount_paths.insert(mount.mount_path.as_str()) {
                self.add(Problem::invalid(
                    format!("{path}.mountPath"),
                    &mount.mount_path,
                    "must be unique",
                ));
            }
            self.mount_options(mount, &path, is_privileged);
        }
    }

    fn mount_options(&mut self, mount: &VolumeMount, path: &str, is_privileged: bool) {
        let sub_path = mount.sub_path.as_deref().unwrap_or_default();
        let wrong = text::descending_path(sub_path);
        self.invalid(&format!("{path}.subPath"), sub_path, wrong);
        let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
        let expression_path = format!("{path}.subPathExpr");
        if !sub_path.is_empty() && !expression.is_empty() {
            self.add(Problem::invalid(
                expression_path.as_str(),
                expression,
                "subPathExpr and subPath are mutually exclusive",
            ));
        }
        let wrong = text::descending_path(expression);
        self.invalid(&expression_path, expression, wrong);
        if let Some(propagation) = mount.mount_propagation.as_deref() {
            let path = format!("{path}.mountPropagation");
            if propagation == "Bidirectional" && !is_privileged {
                self.add(Problem::forbidden(
                    path.as_str(),
                    "Bidirectional mount propagation is available only to privileged containers",
                ));
            }
            self.one_of(
                path,
                Some(propagation),
                &["Bidirectional", "HostToContainer", "None"],
            );
        }
    }

    /// A quantity that is not negative; none where it is wrong.
    fn quantity(&mut self, path: &str, text: &QuantityText) -> Option<Quantity> {
        match Quantity::try_from(text) {
            Err(_not_a_quantity) => {
                self.add(Problem::invalid(
                    path,
                    &text.0,
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                ));
                None
            }
            Ok(value) if value.is_negative() => {
                self.add(Problem::invalid(
                    path,
                    &text.0,
                    "must be greater than or equal to 0",
                ));
                None
            }
            Ok(value) => Some(value),
        }
    }

    fn resources(&mut self, resources: &ResourceRequirements, path: &str) {
        let limits = resources.limits.iter().flatten();
        let requests = resources.requests.iter().flatten();
        for (name, limit) in limits {
            self.quantity(&format!("{path}.limits[{name}]"), limit);
        }
        for (name, request) in requests {
            let limit = resources
                .limits
                .as_ref()
                .and_then(|limits| limits.get(name));
            if limit == Some(request) {
                continue; // the limit was checked; a request may be its copy
            }
            let Some(wanted) = self.quantity(&format!("{path}.requests[{name}]"), request) else {
                continue;
            };
            if let Some(limit) = limit
                && Quantity::try_from(limit).is_ok_and(|limit| wanted > limit)
            {
                self.add(Problem::invalid(
                    format!("{path}.requests"),
                    &request.0,
                    &format!("must be less than or equal to {name} limit of {}", limit.0),
                ));
            }
        }
    }

    fn dns(&mut self, spec: &PodSpec) {
        self.one_of(
            "spec.dnsPolicy".into(),
            spec.dns_policy.as_deref(),
            &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        );
        let is_none = spec.dns_policy.as_deref() == Some("None");
        let Some(config) = &spec.dns_config else {
            if is_none {
                self.add(Problem::required(
                    "spec.dnsConfig",
                    "must provide `dnsConfig` when `dnsPolicy` is None",
                ));
            }
            return;
        };
        let servers = config.nameservers.as_deref().unwrap_or_default();
        let servers_path = "spec.dnsConfig.nameservers";
        if is_none && servers.is_empty() {
            self.add(Problem::required(
                servers_path,
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ));
        }
        if servers.len() > MAX_NAMESERVERS {
            self.add(Problem::invalid(
                servers_path,
                servers,
                &format!("must not have more than {MAX_NAMESERVERS} nameservers"),
            ));
        }
        for (i, server) in servers.iter().enumerate() {
            self.invalid(&format!("{servers_path}[{i}]"), server, text::ip(server));
        }
        let searches = config.searches.as_deref().unwrap_or_default();
        let searches_path = "spec.dnsConfig.searches";
        if searches.len() > MAX_SEARCHES {
            self.add(Problem::invalid(
                searches_path,
                searches,
                &format!("must not have more than {MAX_SEARCHES} search paths"),
            ));
        }
        if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
            self.add(Problem::invalid(
                searches_path,
                searches,
                &format!(
                    "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
                ),
            ));
        }
        for (i, search) in searches.iter().enumerate() {
            if search != "." {
                let wrong = text::dns_search(search.strip_suffix('.').unwrap_or(search));
                self.invalid(&format!("{searches_path}[{i}]"), search, wrong);
            }
        }
        for (i, option) in config.options.iter().flatten().enumerate() {
            if option.name.as_deref().is_none_or(str::is_empty) {
                self.add(Problem::required(
                    format!("spec.dnsConfig.options[{i}]"),
                    "must not be empty",
                ));
            }
        }
    }

    fn id(&mut self, path: String, id: Option<i64>) {
        if let Some(id) = id
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            self.add(Problem::invalid(
                path,
                id,
                "must be between 0 and 2147483647, inclusive",
            ));
        }
    }

    fn pod_security(&mut self, context: &PodSecurityContext) {
        let path = "spec.securityContext";
        self.id(format!("{path}.fsGroup"), context.fs_group);
        self.id(format!("{path}.runAsUser"), context.run_as_user);
        self.id(format!("{path}.runAsGroup"), context.run_as_group);
        for (i, &group) in context.supplemental_groups.iter().flatten().enumerate() {
            self.id(format!("{path}.supplementalGroups[{i}]"), Some(group));
        }
        if let Some(policy) = context.fs_group_change_policy.as_deref() {
            self.one_of(
                format!("{path}.fsGroupChangePolicy"),
                Some(policy),
                &["Always", "OnRootMismatch"],
            );
        }
        if let Some(profile) = &context.seccomp_profile {
            self.seccomp(profile, &format!("{path}.seccompProfile"));
        }
    }

    fn security(&mut self, context: &SecurityContext, path: &str) {
        self.id(format!("{path}.runAsUser"), context.run_as_user);
        self.id(format!("{path}.runAsGroup"), context.run_as_group);
        if let Some(profile) = &context.seccomp_profile {
            self.seccomp(profile, &format!("{path}.seccompProfile"));
        }
        if context.allow_privilege_escalation != Some(false) {
            return;
        }
        if context.privileged == Some(true) {
            self.add(Problem::invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ));
        }
        let added = context.capabilities.iter().flat_map(|list| &list.add);
        if added.flatten().any(|name| name == "CAP_SYS_ADMIN") {
            self.add(Problem::invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ));
        }
    }

    fn seccomp(&mut self, profile: &SeccompProfile, path: &str) {
        let kind = profile.type_.as_str();
        if kind.is_empty() {
            self.add(Problem::required(
                format!("{path}.type"),
                "type is required when seccompProfile is set",
            ));
            return;
        }
        self.one_of(
            format!("{path}.type"),
            Some(kind),
            &["Localhost", "RuntimeDefault", "Unconfined"],
        );
        let path = format!("{path}.localhostProfile");
        match (kind, profile.localhost_profile.as_deref()) {
            ("Localhost", None) => self.add(Problem::required(
                path,
                "must be set when seccomp type is Localhost",
            )),
            ("Localhost", Some(file)) => self.invalid(&path, file, text::descending_path(file)),
            (_, Some(file)) => self.add(Problem::invalid(
                path,
                file,
                "can only be set when seccomp type is Localhost",
            )),
            (_, None) => {}
        }
    }
}
