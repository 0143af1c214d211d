//! Every metric of the agent, in one table: name, help, labels, buckets. Nothing else names one.
//!
//! Names are upstream's where the kubelet has the metric (so that dashboards and alerts work), and
//! begin with `skep_` otherwise. Label values come from closed sets, never from pod names.

#![expect(
    clippy::disallowed_macros,
    reason = "this is the one module that may use them"
)]

/// A number that only rises. `NAME.add(1, &[("label", "value")])`.
#[derive(Debug)]
pub struct Counter {
    pub name: &'static str,
    pub help: &'static str,
}

/// A number that stands for how things are now.
#[derive(Debug)]
pub struct Gauge {
    pub name: &'static str,
    pub help: &'static str,
}

/// A distribution, in seconds unless the name says otherwise.
#[derive(Debug)]
pub struct Histogram {
    pub name: &'static str,
    pub help: &'static str,
    pub buckets: &'static [f64],
}

/// Label pairs: names and values from closed sets.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

fn owned(labels: Labels<'_>) -> Vec<metrics::Label> {
    labels
        .iter()
        .map(|(name, value)| metrics::Label::new(*name, (*value).to_owned()))
        .collect()
}

impl Counter {
    pub fn add(&self, amount: u64, labels: Labels<'_>) {
        metrics::counter!(self.name, owned(labels)).increment(amount);
    }

    /// For a total that somebody else counts (the kernel's programs): never lowers it.
    pub fn set_total(&self, total: u64, labels: Labels<'_>) {
        metrics::counter!(self.name, owned(labels)).absolute(total);
    }
}

impl Gauge {
    pub fn set(&self, value: f64, labels: Labels<'_>) {
        metrics::gauge!(self.name, owned(labels)).set(value);
    }
}

impl Histogram {
    pub fn record(&self, seconds: f64, labels: Labels<'_>) {
        metrics::histogram!(self.name, owned(labels)).record(seconds);
    }
}

macro_rules! table {
    ($($kind:ident $const:ident = $name:literal, $help:literal $(, $buckets:expr)?;)*) => {
        $(
            #[doc = $help]
            pub static $const: $kind = $kind { name: $name, help: $help $(, buckets: $buckets)? };
        )*
        fn describe() {
            $( describe_one(&$const); )*
        }
        /// Name and buckets of every histogram, for the recorder.
        fn histograms() -> Vec<(&'static str, &'static [f64])> {
            let mut all: Vec<(&'static str, &'static [f64])> = Vec::new();
            $( $const.push_buckets(&mut all); )*
            all
        }
    };
}

trait Described {
    fn describe(&self);
    fn push_buckets(&self, _all: &mut Vec<(&'static str, &'static [f64])>) {}
}

impl Described for Counter {
    fn describe(&self) {
        metrics::describe_counter!(self.name, self.help);
    }
}

impl Described for Gauge {
    fn describe(&self) {
        metrics::describe_gauge!(self.name, self.help);
    }
}

impl Described for Histogram {
    fn describe(&self) {
        metrics::describe_histogram!(self.name, self.help);
    }
    fn push_buckets(&self, all: &mut Vec<(&'static str, &'static [f64])>) {
        all.push((self.name, self.buckets));
    }
}

fn describe_one(metric: &dyn Described) {
    metric.describe();
}

/// Prometheus' own default buckets, which upstream uses for most of its histograms.
const DEFAULT: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// 0.005 x 2.5^0..13: upstream's buckets of runtime operations (KRT-18).
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];
/// From 50 microseconds to 5 seconds, for what the kernel's events make fast.
const FAST: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5,
    1.0, 5.0,
];

table! {
    // Upstream's names.
    Histogram PLEG_RELIST_DURATION = "kubelet_pleg_relist_duration_seconds", "Time of a listing of all pods in the runtime", DEFAULT;
    Histogram PLEG_RELIST_INTERVAL = "kubelet_pleg_relist_interval_seconds", "Time between listings of all pods", DEFAULT;
    Histogram PLEG_POD_RELIST_DURATION = "kubelet_pleg_pod_relist_duration_seconds", "Time of a re-read of one pod from the runtime", DEFAULT;
    Counter PLEG_DISCARD_EVENTS = "kubelet_pleg_discard_events", "Pod events dropped because the sync loop's queue was full";
    Gauge PLEG_LAST_SEEN = "kubelet_pleg_last_seen_seconds", "Unix time of the last proof that the PLEG works";
    Counter RUNTIME_OPERATIONS = "kubelet_runtime_operations_total", "Runtime calls by operation_type";
    Counter RUNTIME_OPERATIONS_ERRORS = "kubelet_runtime_operations_errors_total", "Failed runtime calls by operation_type";
    Histogram RUNTIME_OPERATIONS_DURATION = "kubelet_runtime_operations_duration_seconds", "Time of runtime calls by operation_type", RUNTIME;
    Gauge RUNNING_PODS = "kubelet_running_pods", "Pods with a ready sandbox";
    Gauge RUNNING_CONTAINERS = "kubelet_running_containers", "Containers by container_state";
    Counter STARTED_PODS = "kubelet_started_pods_total", "Sandboxes that the agent tried to make";
    Counter STARTED_PODS_ERRORS = "kubelet_started_pods_errors_total", "Sandboxes that could not be made";
    Counter STARTED_CONTAINERS = "kubelet_started_containers_total", "Containers that the agent tried to start, by container_type";
    Counter STARTED_CONTAINERS_ERRORS = "kubelet_started_containers_errors_total", "Containers that could not be started, by container_type and code";
    Histogram RUN_PODSANDBOX_DURATION = "kubelet_run_podsandbox_duration_seconds", "Time of RunPodSandbox by runtime_handler", RUNTIME;
    Counter RUN_PODSANDBOX_ERRORS = "kubelet_run_podsandbox_errors_total", "Failed RunPodSandbox by runtime_handler";
    Histogram POD_WORKER_DURATION = "kubelet_pod_worker_duration_seconds", "Time of one sync of a pod by operation_type", DEFAULT;
    Histogram POD_WORKER_START_DURATION = "kubelet_pod_worker_start_duration_seconds", "Time from seeing a pod to its worker's start", DEFAULT;
    Histogram POD_START_DURATION = "kubelet_pod_start_duration_seconds", "Time from seeing a pod to its running", DEFAULT;
    Gauge CONTAINERS_PER_POD = "kubelet_containers_per_pod_count", "Containers of the last pod that was seen";
    Gauge DESIRED_PODS = "kubelet_desired_pods", "Pods that the sources want, by static";
    Gauge ACTIVE_PODS = "kubelet_active_pods", "Pods that have workers which are not terminated, by static";
    Gauge WORKING_PODS = "kubelet_working_pods", "Pod workers by lifecycle, config and static";
    Counter ORPHANED_RUNTIME_PODS = "kubelet_orphaned_runtime_pods_total", "Pods found running that nobody wanted";
    Counter RESTARTED_PODS = "kubelet_restarted_pods_total", "Pods started again because their uid came back, by static";
    Gauge CGROUP_VERSION = "kubelet_cgroup_version", "Version of the cgroup hierarchy, 1 or 2";
    Histogram CGROUP_MANAGER_DURATION = "kubelet_cgroup_manager_duration_seconds", "Time of cgroup operations by operation_type", DEFAULT;
    Gauge CRI_LOSING_SUPPORT = "kubelet_cri_losing_support", "1 where the runtime lacks a call that version will need";
    Counter EVENTED_PLEG_CONNECTION_SUCCESS = "kubelet_evented_pleg_connection_success_count", "Connections made to the runtime's event stream";
    Counter EVENTED_PLEG_CONNECTION_ERROR = "kubelet_evented_pleg_connection_error_count", "Connections to the runtime's event stream that failed or broke";
    Histogram EVENTED_PLEG_CONNECTION_LATENCY = "kubelet_evented_pleg_connection_latency_seconds", "Age of the runtime's events when they arrive", DEFAULT;
    Histogram IMAGE_PULL_DURATION = "kubelet_image_pull_duration_seconds", "Time of image pulls by image_size_in_bytes", &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];
    Counter IMAGE_ENSURE_REQUESTS = "kubelet_image_manager_ensure_image_requests_total", "Images asked for, by pull_policy, present_locally and pull_required";
    Gauge ORPHAN_POD_CLEANED = "kubelet_orphan_pod_cleaned_volumes", "Folders of pods that nobody wants, seen in the last pass";
    Gauge ORPHAN_POD_CLEANED_ERRORS = "kubelet_orphan_pod_cleaned_volumes_errors", "Folders of pods that nobody wants and that could not be removed";

    // Skep's own.
    Counter KERNEL_EVENTS = "skep_kernel_events_total", "Events received from the kernel, by kind";
    Counter KERNEL_EVENTS_LOST = "skep_kernel_events_lost_total", "Events lost, by place (kernel_ring, kernel_map, queue, runtime_stream)";
    Histogram KERNEL_EVENT_LATENCY = "skep_kernel_event_latency_seconds", "Time from the kernel's hook to the agent's reader", FAST;
    Counter PLEG_GAPS = "skep_pleg_gaps_total", "Gaps that made the PLEG read everything again, by place";
    Counter PLEG_REREADS = "skep_pleg_rereads_total", "Re-reads of one pod from the runtime, by cause (kernel, stream, asked, listing)";
    Counter PLEG_LISTINGS = "skep_pleg_listings_total", "Listings of all pods, by cause (start, mode, safety, gap, forced, period)";
    Counter PLEG_MISSED = "skep_pleg_missed_total", "Differences that a listing found and that no event had told";
    Histogram RUNTIME_LAG = "skep_runtime_lag_seconds", "Time from the kernel's exit to the runtime's record of it", FAST;
    Counter EXIT_MISMATCH = "skep_exit_mismatch_total", "Exits whose code or signal the runtime recorded otherwise than the kernel, by field";
    Counter OOM_REASON_CORRECTED = "skep_oom_reason_corrected_total", "Memory kills of main processes that the runtime had another reason for";
    Histogram EVENT_TO_SYNC = "skep_event_to_sync_seconds", "Time from a kernel event to the sync of its pod", FAST;
    Gauge PLEG_MODE = "skep_pleg_mode", "1 for the mode in force, by mode (kernel, stream, listing)";
    Counter PLEG_MODE_CHANGES = "skep_pleg_mode_changes_total", "Changes of the PLEG's mode, by mode that was entered";
    Counter CHILD_OOM_KILLS = "skep_child_oom_kills_total", "Memory kills of processes other than a container's main one, by limit (container, pod, qos, pods, machine)";
    Counter MAIN_OOM_KILLS = "skep_main_oom_kills_total", "Memory kills of containers' main processes, by limit (container, pod, qos, pods, machine)";
    Counter WORKER_PANICS = "skep_worker_panics_total", "Pod workers that panicked and were started again";
    Gauge STARTS_IN_FLIGHT = "skep_starts_in_flight", "Containers and sandboxes being started at this moment";
    Counter MANIFESTS_REFUSED = "skep_manifests_refused_total", "Manifests that were refused, by source";
    Counter TIMELINE_DROPPED = "skep_timeline_dropped_total", "Timeline entries that could not be kept";
}

/// Installs the process's recorder and returns the handle that renders the Prometheus text.
pub fn install() -> anyhow::Result<metrics_exporter_prometheus::PrometheusHandle> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in histograms() {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    describe();
    Ok(handle)
}
