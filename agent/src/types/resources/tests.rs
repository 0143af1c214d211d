use super::*;
use crate::types::pod::SourceKind;
use rstest::rstest;
use serde_json::{Value, json};

fn spec(value: Value) -> PodSpec {
    serde_json::from_value(value).expect("a pod spec")
}

fn pod(spec: Value, source: SourceKind) -> Pod {
    let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
    Pod::new(serde_json::from_value(object).expect("a pod"), source)
}

fn res(requests: Value, limits: Value) -> Value {
    json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
}

#[rstest]
#[case::nothing(json!({"containers": [{"name": "c"}]}), QosClass::BestEffort)]
#[case::zero(json!({"containers": [res(json!({"cpu": "0"}), json!({}))]}), QosClass::BestEffort)]
#[case::other_resource(
    json!({"containers": [res(json!({"ephemeral-storage": "1Gi"}), json!({}))]}),
    QosClass::BestEffort
)]
#[case::request_only(json!({"containers": [res(json!({"cpu": "1"}), json!({}))]}), QosClass::Burstable)]
#[case::cpu_only(
    json!({"containers": [res(json!({"cpu": "1"}), json!({"cpu": "1"}))]}),
    QosClass::Burstable
)]
#[case::equal(
    json!({"containers": [res(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1000m", "memory": "1024Mi"}))]}),
    QosClass::Guaranteed
)]
#[case::init_without(
    json!({"containers": [res(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1", "memory": "1Gi"}))],
           "initContainers": [{"name": "i"}]}),
    QosClass::Burstable
)]
#[case::pod_level(
    json!({"containers": [{"name": "c"}],
           "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}),
    QosClass::Guaranteed
)]
#[case::empty_pod_level(
    json!({"containers": [res(json!({"cpu": "1"}), json!({}))], "resources": {}}),
    QosClass::Burstable
)]
fn tells_the_class_of_a_pod(#[case] pod: Value, #[case] class: QosClass) {
    assert_eq!(qos_class(&spec(pod)), class);
}

#[rstest]
#[case::regular(json!({"containers": [res(json!({"cpu": "100m"}), json!({})), res(json!({"cpu": "200m"}), json!({}))]}), 300)]
#[case::init_is_larger(
    json!({"containers": [res(json!({"cpu": "100m"}), json!({}))],
           "initContainers": [res(json!({"cpu": "1"}), json!({})), res(json!({"cpu": "300m"}), json!({}))]}),
    1000
)]
#[case::sidecars_add(
    json!({"containers": [res(json!({"cpu": "100m"}), json!({}))],
           "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}}]}),
    150
)]
#[case::init_after_sidecar(
    json!({"containers": [res(json!({"cpu": "100m"}), json!({}))],
           "initContainers": [
             res(json!({"cpu": "120m"}), json!({})),
             {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
             res(json!({"cpu": "120m"}), json!({}))]}),
    170
)]
#[case::overhead(
    json!({"containers": [res(json!({"cpu": "100m"}), json!({}))], "overhead": {"cpu": "20m"}}),
    120
)]
#[case::pod_level_wins(
    json!({"containers": [res(json!({"cpu": "100m"}), json!({}))], "resources": {"requests": {"cpu": "2"}}}),
    2000
)]
fn sums_what_a_pod_asks_for(#[case] pod: Value, #[case] milli: i64) {
    let requests = pod_requests(&spec(pod));
    assert_eq!(requests.cpu.expect("a request").milli_value(), milli);
}

#[test]
fn tells_whether_every_container_is_limited() {
    let limited = spec(
        json!({"containers": [res(json!({}), json!({"cpu": "1", "memory": "1Mi"})),
        res(json!({}), json!({"memory": "1Mi"}))], "overhead": {"memory": "1Mi", "cpu": "1"}}),
    );
    let limits = pod_limits(&limited);
    assert!(!limits.all_cpu_limited);
    assert!(limits.all_memory_limited);
    assert_eq!(limits.memory, Some(Quantity::of(3 << 20)));
    assert_eq!(sandbox_limits(&limited).memory, Some(Quantity::of(2 << 20)));

    let pod_limited =
        spec(json!({"containers": [{"name": "c"}], "resources": {"limits": {"cpu": "1"}}}));
    let limits = pod_limits(&pod_limited);
    assert!(limits.all_cpu_limited && !limits.all_memory_limited);
}

#[rstest]
#[case(0, 2)]
#[case(1, 2)]
#[case(100, 102)]
#[case(1000, 1024)]
#[case(256_000, 262_144)]
#[case(i64::MAX, 262_144)]
#[case(-5, 2)]
fn converts_cpu_to_shares(#[case] milli: i64, #[case] shares: u64) {
    assert_eq!(cpu_shares(milli), shares);
}

#[rstest]
#[case(0, 100_000, 0)]
#[case(1, 100_000, 1000)]
#[case(500, 100_000, 50_000)]
#[case(1500, 10_000, 15_000)]
fn converts_cpu_to_quota(#[case] milli: i64, #[case] period: i64, #[case] quota: i64) {
    assert_eq!(cpu_quota(milli, period), quota);
}

#[rstest]
#[case(2 << 20, "2MB")]
#[case(1 << 30, "1GB")]
#[case(64 << 10, "64KB")]
fn names_page_sizes_as_the_kernel_does(#[case] bytes: i64, #[case] name: &str) {
    assert_eq!(hugepage_size_name(bytes), name);
}

const GIB: i64 = 1 << 30;

#[rstest]
#[case::best_effort(json!({"containers": [{"name": "c"}]}), 1000)]
#[case::guaranteed(json!({"containers": [res(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1", "memory": "1Gi"}))]}), -997)]
#[case::a_tenth(json!({"containers": [res(json!({"memory": "1Gi"}), json!({}))]}), 900)]
#[case::tiny(json!({"containers": [res(json!({"memory": "1"}), json!({}))]}), 999)]
#[case::cpu_only(json!({"containers": [res(json!({"cpu": "1"}), json!({}))]}), 999)]
#[case::nearly_all(json!({"containers": [res(json!({"memory": "11Gi"}), json!({}))]}), 3)]
#[case::node_critical(
    json!({"containers": [res(json!({"memory": "1Gi"}), json!({}))], "priorityClassName": "system-node-critical"}),
    -997
)]
#[case::cluster_critical(
    json!({"containers": [res(json!({"memory": "1Gi"}), json!({}))], "priorityClassName": "system-cluster-critical"}),
    900
)]
#[case::pod_level(
    json!({"containers": [{"name": "c"}, {"name": "d"}], "resources": {"requests": {"memory": "2Gi"}}}),
    900
)]
fn scores_a_container_for_the_memory_killer(#[case] spec: Value, #[case] adj: i64) {
    let pod = pod(spec, SourceKind::File);
    let container = &pod.spec().containers[0];
    assert_eq!(oom_score_adj(&pod, container, 10 * GIB), adj);
}

#[test]
fn kills_a_sidecar_no_sooner_than_those_it_serves() {
    let pod = pod(
        json!({"containers": [res(json!({"memory": "2Gi"}), json!({})), res(json!({"memory": "1Gi"}), json!({}))],
               "initContainers": [{"name": "s", "restartPolicy": "Always"}]}),
        SourceKind::Api,
    );
    let sidecar = &pod.spec().init_containers.as_ref().expect("a sidecar")[0];
    assert_eq!(oom_score_adj(&pod, sidecar, 10 * GIB), 900);
}

#[test]
fn priority_of_an_api_pod_makes_it_critical() {
    let with_priority = |priority: i64| {
        pod(
            json!({"containers": [{"name": "c"}], "priority": priority}),
            SourceKind::Api,
        )
    };
    assert!(is_critical(&with_priority(2_000_000_000)));
    assert!(!is_critical(&with_priority(1_999_999_999)));
}
