//! The table itself. Fields stand in the order of the alphabet, as the API's reference has them.

use super::{
    Field, Kind,
    Verdict::{self, ActedOn, ApiReference, Forbidden, NoEffect, NotBuilt, Only, Parts},
};

const fn f(name: &'static str, verdict: Verdict) -> Field {
    Field { name, verdict }
}

const fn kind(name: &'static str, fields: &'static [Field]) -> Kind {
    Kind {
        name,
        fields,
        others: None,
    }
}

const SCHEDULING: Verdict = NoEffect("the scheduler's: a static pod is on its node already");
const API_SERVER: Verdict = NoEffect("kept by the API server");
const PROBES: Verdict = NotBuilt("probes");
const APP_ARMOR: Verdict = NotBuilt("AppArmor profiles");
const SELINUX: Verdict = NotBuilt("SELinux options");
const WINDOWS: Verdict = Forbidden("Windows options: the node runs Linux");
const GONE_IN_TREE: Verdict = NotBuilt("this volume type (removed from Kubernetes' own code)");

pub(in super::super) static POD: Kind = kind(
    "Pod",
    &[
        f("apiVersion", ActedOn),
        f("kind", ActedOn),
        f("metadata", Parts(&OBJECT_META)),
        f("spec", Parts(&POD_SPEC)),
        f("status", NoEffect("the node writes it")),
    ],
);

static OBJECT_META: Kind = kind(
    "ObjectMeta",
    &[
        f("annotations", ActedOn),
        f("creationTimestamp", API_SERVER),
        f("deletionGracePeriodSeconds", API_SERVER),
        f(
            "deletionTimestamp",
            Forbidden("a manifest can't be one of a pod that is being deleted: remove the file"),
        ),
        f("finalizers", API_SERVER),
        f("generateName", NoEffect("a static pod needs a name")),
        f("generation", API_SERVER),
        f("labels", ActedOn),
        f("managedFields", API_SERVER),
        f("name", ActedOn),
        f("namespace", ActedOn),
        f("ownerReferences", API_SERVER),
        f("resourceVersion", API_SERVER),
        f("selfLink", API_SERVER),
        f("uid", ActedOn),
    ],
);

static POD_SPEC: Kind = kind(
    "PodSpec",
    &[
        f("activeDeadlineSeconds", NotBuilt("deadlines of pods")),
        f("affinity", SCHEDULING),
        f(
            "automountServiceAccountToken",
            Only(&["false"], "service account tokens"),
        ),
        f("containers", Parts(&CONTAINER)),
        f("dnsConfig", Parts(&DNS_CONFIG)),
        f("dnsPolicy", ActedOn),
        f(
            "enableServiceLinks",
            NoEffect("a static pod sees no services"),
        ),
        f("ephemeralContainers", Forbidden("cannot be set on create")),
        f("evictionResponders", NotBuilt("eviction responders")),
        f("hostAliases", Parts(&HOST_ALIAS)),
        f("hostIPC", ActedOn),
        f("hostNetwork", ActedOn),
        f("hostPID", ActedOn),
        f("hostUsers", Only(&["true"], "user namespaces")),
        f("hostname", ActedOn),
        f("hostnameOverride", NotBuilt("host name overrides")),
        f("imagePullSecrets", ApiReference("secrets")),
        f("initContainers", Parts(&CONTAINER)),
        f(
            "nodeName",
            NoEffect("a static pod gets the name of its node"),
        ),
        f("nodeSelector", SCHEDULING),
        f("os", Parts(&POD_OS)),
        f("overhead", NotBuilt("overhead of runtime classes")),
        f("preemptionPolicy", SCHEDULING),
        f("priority", SCHEDULING),
        f("priorityClassName", SCHEDULING),
        f("readinessGates", NotBuilt("readiness gates")),
        f("resourceClaims", ApiReference("resourceclaims")),
        f("resources", NotBuilt("resources of whole pods")),
        f("restartPolicy", ActedOn),
        f("runtimeClassName", NotBuilt("runtime classes")),
        f("schedulerName", SCHEDULING),
        f(
            "schedulingGates",
            Forbidden("a pod with scheduling gates can't be on a node"),
        ),
        f("schedulingGroup", SCHEDULING),
        f("securityContext", Parts(&POD_SECURITY_CONTEXT)),
        f("serviceAccount", ApiReference("serviceaccounts")),
        f("serviceAccountName", ApiReference("serviceaccounts")),
        f(
            "setHostnameAsFQDN",
            Only(&["false"], "full domain names as host names"),
        ),
        f("shareProcessNamespace", ActedOn),
        f("subdomain", ActedOn),
        f("terminationGracePeriodSeconds", ActedOn),
        f("tolerations", SCHEDULING),
        f("topologySpreadConstraints", SCHEDULING),
        f("volumes", Parts(&VOLUME)),
    ],
);

static POD_OS: Kind = kind("PodOS", &[f("name", Only(&["linux"], "other systems"))]);

static DNS_CONFIG: Kind = kind(
    "PodDNSConfig",
    &[
        f("nameservers", ActedOn),
        f("options", Parts(&DNS_OPTION)),
        f("searches", ActedOn),
    ],
);

static DNS_OPTION: Kind = kind(
    "PodDNSConfigOption",
    &[f("name", ActedOn), f("value", ActedOn)],
);

static HOST_ALIAS: Kind = kind("HostAlias", &[f("hostnames", ActedOn), f("ip", ActedOn)]);

static POD_SECURITY_CONTEXT: Kind = kind(
    "PodSecurityContext",
    &[
        f("appArmorProfile", APP_ARMOR),
        f("fsGroup", ActedOn),
        f(
            "fsGroupChangePolicy",
            NoEffect("emptyDir volumes are always set up anew"),
        ),
        f("runAsGroup", ActedOn),
        f("runAsNonRoot", ActedOn),
        f("runAsUser", ActedOn),
        f("seLinuxChangePolicy", SELINUX),
        f("seLinuxOptions", SELINUX),
        f("seccompProfile", Parts(&SECCOMP_PROFILE)),
        f("supplementalGroups", ActedOn),
        f(
            "supplementalGroupsPolicy",
            Only(&["Merge"], "strict supplemental groups"),
        ),
        f("sysctls", NotBuilt("sysctls")),
        f("windowsOptions", WINDOWS),
    ],
);

static SECCOMP_PROFILE: Kind = kind(
    "SeccompProfile",
    &[f("localhostProfile", ActedOn), f("type", ActedOn)],
);

static CONTAINER: Kind = kind(
    "Container",
    &[
        f("args", ActedOn),
        f("command", ActedOn),
        f("env", Parts(&ENV_VAR)),
        f("envFrom", Parts(&ENV_FROM)),
        f("image", ActedOn),
        f("imagePullPolicy", ActedOn),
        f("lifecycle", NotBuilt("lifecycle hooks and stop signals")),
        f("livenessProbe", PROBES),
        f("name", ActedOn),
        f("ports", Parts(&CONTAINER_PORT)),
        f("readinessProbe", PROBES),
        f("resizePolicy", Parts(&RESIZE_POLICY)),
        f("resources", Parts(&RESOURCES)),
        f(
            "restartPolicy",
            Only(
                &["Always"],
                "restart policies of containers other than an init container's Always (a sidecar)",
            ),
        ),
        f(
            "restartPolicyRules",
            NotBuilt("restart rules of containers"),
        ),
        f("securityContext", Parts(&SECURITY_CONTEXT)),
        f("startupProbe", PROBES),
        f("stdin", ActedOn),
        f("stdinOnce", ActedOn),
        f("terminationMessagePath", ActedOn),
        f("terminationMessagePolicy", ActedOn),
        f("tty", ActedOn),
        f("volumeDevices", NotBuilt("block devices")),
        f("volumeMounts", Parts(&VOLUME_MOUNT)),
        f("workingDir", ActedOn),
    ],
);

static RESIZE_POLICY: Kind = kind(
    "ContainerResizePolicy",
    &[
        f("resourceName", NoEffect("goes with restartPolicy")),
        f(
            "restartPolicy",
            Only(&["NotRequired"], "restarts on a resize"),
        ),
    ],
);

static ENV_VAR: Kind = kind(
    "EnvVar",
    &[
        f("name", ActedOn),
        f("value", ActedOn),
        f("valueFrom", Parts(&ENV_VAR_SOURCE)),
    ],
);

static ENV_VAR_SOURCE: Kind = kind(
    "EnvVarSource",
    &[
        f("configMapKeyRef", ApiReference("configmaps")),
        f("fieldRef", Parts(&FIELD_REF)),
        f("fileKeyRef", NotBuilt("variables from files")),
        f("resourceFieldRef", Parts(&RESOURCE_FIELD_REF)),
        f("secretKeyRef", ApiReference("secrets")),
    ],
);

static FIELD_REF: Kind = kind(
    "ObjectFieldSelector",
    &[f("apiVersion", ActedOn), f("fieldPath", ActedOn)],
);

static RESOURCE_FIELD_REF: Kind = kind(
    "ResourceFieldSelector",
    &[
        f("containerName", ActedOn),
        f("divisor", ActedOn),
        f("resource", ActedOn),
    ],
);

static ENV_FROM: Kind = kind(
    "EnvFromSource",
    &[
        f("configMapRef", ApiReference("configmaps")),
        f(
            "prefix",
            NoEffect("goes with configMapRef and secretRef, which are refused"),
        ),
        f("secretRef", ApiReference("secrets")),
    ],
);

static CONTAINER_PORT: Kind = kind(
    "ContainerPort",
    &[
        f("containerPort", ActedOn),
        f("hostIP", ActedOn),
        f("hostPort", ActedOn),
        f("name", ActedOn),
        f("protocol", ActedOn),
    ],
);

static RESOURCES: Kind = kind(
    "ResourceRequirements",
    &[
        f("claims", ApiReference("resourceclaims")),
        f("limits", Parts(&LIMITS)),
        f("requests", Parts(&REQUESTS)),
    ],
);

const OTHER_RESOURCES: Verdict = NotBuilt("huge pages and device resources");

static LIMITS: Kind = Kind {
    name: "Resource limits",
    fields: &[
        f("cpu", ActedOn),
        f(
            "ephemeral-storage",
            NotBuilt("limits of storage, which eviction enforces"),
        ),
        f("memory", ActedOn),
    ],
    others: Some(OTHER_RESOURCES),
};

static REQUESTS: Kind = Kind {
    name: "Resource requests",
    fields: &[
        f("cpu", ActedOn),
        f("ephemeral-storage", SCHEDULING),
        f("memory", ActedOn),
    ],
    others: Some(OTHER_RESOURCES),
};

static SECURITY_CONTEXT: Kind = kind(
    "SecurityContext",
    &[
        f("allowPrivilegeEscalation", ActedOn),
        f("appArmorProfile", APP_ARMOR),
        f("capabilities", Parts(&CAPABILITIES)),
        f("privileged", ActedOn),
        f("procMount", Only(&["Default"], "an unmasked /proc")),
        f("readOnlyRootFilesystem", ActedOn),
        f("runAsGroup", ActedOn),
        f("runAsNonRoot", ActedOn),
        f("runAsUser", ActedOn),
        f("seLinuxOptions", SELINUX),
        f("seccompProfile", Parts(&SECCOMP_PROFILE)),
        f("windowsOptions", WINDOWS),
    ],
);

static CAPABILITIES: Kind = kind("Capabilities", &[f("add", ActedOn), f("drop", ActedOn)]);

static VOLUME_MOUNT: Kind = kind(
    "VolumeMount",
    &[
        f("bindMountOptions", NotBuilt("options of bind mounts")),
        f("mountPath", ActedOn),
        f("mountPropagation", ActedOn),
        f("name", ActedOn),
        f("readOnly", ActedOn),
        f(
            "recursiveReadOnly",
            Only(&["Disabled"], "recursive read-only mounts"),
        ),
        f("subPath", ActedOn),
        f("subPathExpr", ActedOn),
    ],
);

static VOLUME: Kind = kind(
    "Volume",
    &[
        f("awsElasticBlockStore", GONE_IN_TREE),
        f("azureDisk", GONE_IN_TREE),
        f("azureFile", ApiReference("secrets (via azureFile volumes)")),
        f("cephfs", GONE_IN_TREE),
        f("cinder", GONE_IN_TREE),
        f(
            "configMap",
            ApiReference("configmaps (via configmap volumes)"),
        ),
        f("csi", ApiReference("csidrivers (via CSI volumes)")),
        f("downwardAPI", NotBuilt("downward API volumes")),
        f("emptyDir", Parts(&EMPTY_DIR)),
        f(
            "ephemeral",
            ApiReference("persistentvolumeclaims (via ephemeral volumes)"),
        ),
        f("fc", NotBuilt("Fibre Channel volumes")),
        f("flexVolume", NotBuilt("FlexVolumes")),
        f("flocker", GONE_IN_TREE),
        f("gcePersistentDisk", GONE_IN_TREE),
        f("gitRepo", NotBuilt("gitRepo volumes")),
        f(
            "glusterfs",
            ApiReference("endpoints (via glusterFS volumes)"),
        ),
        f("hostPath", Parts(&HOST_PATH)),
        f("image", NotBuilt("image volumes")),
        f("iscsi", NotBuilt("iSCSI volumes")),
        f("name", ActedOn),
        f("nfs", NotBuilt("NFS volumes")),
        f(
            "persistentVolumeClaim",
            ApiReference("persistentvolumeclaims"),
        ),
        f("photonPersistentDisk", GONE_IN_TREE),
        f("portworxVolume", GONE_IN_TREE),
        f("projected", Parts(&PROJECTED)),
        f("quobyte", GONE_IN_TREE),
        f("rbd", GONE_IN_TREE),
        f("scaleIO", GONE_IN_TREE),
        f("secret", ApiReference("secrets (via secret volumes)")),
        f("storageos", GONE_IN_TREE),
        f("vsphereVolume", GONE_IN_TREE),
    ],
);

static EMPTY_DIR: Kind = kind(
    "EmptyDirVolumeSource",
    &[
        f("medium", Only(&["Memory"], "huge pages as a medium")),
        f("mode", NotBuilt("modes of emptyDir volumes")),
        f("sizeLimit", ActedOn),
    ],
);

static HOST_PATH: Kind = kind(
    "HostPathVolumeSource",
    &[f("path", ActedOn), f("type", ActedOn)],
);

static PROJECTED: Kind = kind(
    "ProjectedVolumeSource",
    &[
        f("defaultMode", NotBuilt("projected volumes")),
        f("defaultUser", NotBuilt("projected volumes")),
        f("sources", Parts(&PROJECTION)),
    ],
);

static PROJECTION: Kind = kind(
    "VolumeProjection",
    &[
        f("clusterTrustBundle", ApiReference("clustertrustbundles")),
        f(
            "configMap",
            ApiReference("configmaps (via projected volumes)"),
        ),
        f("downwardAPI", NotBuilt("projected volumes")),
        f("podCertificate", ApiReference("podcertificates")),
        f("secret", ApiReference("secrets (via projected volumes)")),
        f(
            "serviceAccountToken",
            ApiReference("serviceaccounts (via projected volumes)"),
        ),
    ],
);
