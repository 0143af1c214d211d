//! The exact words that users and controllers match on, all in one place.
//!
//! Values are upstream's (`pkg/kubelet`: `events`, `images`, `container`, `status`); those of
//! Skep's own say so.

/// Why a container waits: `state.waiting.reason` (COND-13).
pub mod waiting {
    pub const CONTAINER_CREATING: &str = "ContainerCreating";
    pub const POD_INITIALIZING: &str = "PodInitializing";
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
    pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
    pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
    pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
    pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";
    pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
    pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
    pub const PRE_CREATE_HOOK_ERROR: &str = "PreCreateHookError";
    pub const PRE_START_HOOK_ERROR: &str = "PreStartHookError";
    pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
    pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";

    /// All of them: the closed set of the label `code`.
    pub const ALL: [&str; 16] = [
        CONTAINER_CREATING,
        POD_INITIALIZING,
        CRASH_LOOP_BACK_OFF,
        ERR_IMAGE_PULL,
        IMAGE_PULL_BACK_OFF,
        ERR_IMAGE_NEVER_PULL,
        IMAGE_INSPECT_ERROR,
        INVALID_IMAGE_NAME,
        REGISTRY_UNAVAILABLE,
        SIGNATURE_VALIDATION_FAILED,
        CREATE_CONTAINER_CONFIG_ERROR,
        CREATE_CONTAINER_ERROR,
        PRE_CREATE_HOOK_ERROR,
        PRE_START_HOOK_ERROR,
        POST_START_HOOK_ERROR,
        RUN_CONTAINER_ERROR,
    ];
}

/// How a container ended: `state.terminated.reason` (COND-14).
pub mod terminated {
    pub const COMPLETED: &str = "Completed";
    pub const ERROR: &str = "Error";
    pub const OOM_KILLED: &str = "OOMKilled";
    pub const START_ERROR: &str = "StartError";
    pub const CONTAINER_CANNOT_RUN: &str = "ContainerCannotRun";
    pub const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
}

/// Reasons of pod conditions (COND-04..09).
pub mod condition {
    pub const POD_COMPLETED: &str = "PodCompleted";
    pub const POD_FAILED: &str = "PodFailed";
    pub const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
    pub const CONTAINERS_NOT_INITIALIZED: &str = "ContainersNotInitialized";
    pub const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
    pub const POD_SANDBOX_NOT_READY: &str = "PodSandboxNotReady";
}

/// Reasons of events (`pkg/kubelet/events`). Several names share one text, as upstream's do.
pub mod event {
    pub const CREATED: &str = "Created";
    pub const STARTED: &str = "Started";
    pub const FAILED: &str = "Failed";
    pub const KILLING: &str = "Killing";
    pub const BACK_OFF: &str = "BackOff";
    pub const EXCEEDED_GRACE_PERIOD: &str = "ExceededGracePeriod";
    pub const FAILED_KILL_POD: &str = "FailedKillPod";
    pub const FAILED_CREATE_POD_CONTAINER: &str = "FailedCreatePodContainer";
    pub const NETWORK_NOT_READY: &str = "NetworkNotReady";
    pub const PULLING: &str = "Pulling";
    pub const PULLED: &str = "Pulled";
    pub const INSPECT_FAILED: &str = "InspectFailed";
    pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
    pub const FAILED_MOUNT: &str = "FailedMount";
    pub const CONTAINER_GC_FAILED: &str = "ContainerGCFailed";
    pub const FAILED_NODE_ALLOCATABLE_ENFORCEMENT: &str = "FailedNodeAllocatableEnforcement";
    pub const NODE_ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
    pub const SANDBOX_CHANGED: &str = "SandboxChanged";
    pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
    pub const FAILED_STATUS_POD_SANDBOX: &str = "FailedPodSandBoxStatus";
    pub const FAILED_SYNC: &str = "FailedSync";
    pub const FAILED_VALIDATION: &str = "FailedValidation";
    pub const STARTING: &str = "Starting";
    pub const SYSTEM_OOM: &str = "SystemOOM";
    pub const CGROUP_V1: &str = "CgroupV1";
    pub const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
    pub const CHECK_LIMITS_FOR_RESOLV_CONF: &str = "CheckLimitsForResolvConf";
    pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

    /// Skep's own: a container's main process ended.
    pub const DIED: &str = "Died";
    /// Skep's own: a container's main process was killed for memory.
    pub const OOM_KILLED: &str = "OomKilled";
    /// Skep's own: another process of a container was killed for memory.
    pub const CHILD_OOM_KILLED: &str = "ChildOomKilled";
    /// Skep's own: events were lost.
    pub const GAP: &str = "Gap";
    /// Skep's own: the PLEG changed its mode.
    pub const MODE: &str = "Mode";
}
