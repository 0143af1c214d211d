//! Whether the node takes a pod. One check so far: their number (ADM; upstream's predicate "pods").
//! Pure.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::PodStatus, apimachinery::pkg::apis::meta::v1::Time};

use crate::types::pod::Pod;

/// Upstream's words for a node that has no place left.
const OUT_OF_PODS: &str = "OutOfpods";

/// Why a further pod is not taken beside `used` ones; none while there is a place.
pub(super) fn refusal(used: usize, capacity: u32) -> Option<String> {
    let is_full = u32::try_from(used).is_ok_and(|used| used >= capacity);
    is_full.then(|| {
        format!(
            "Node didn't have enough resource: pods, requested: 1, used: {used}, capacity: {capacity}"
        )
    })
}

/// The status of a pod that was not taken.
pub(super) fn rejected(pod: &Pod, message: String, now: Timestamp) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(OUT_OF_PODS.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(pod.qos().to_string()),
        start_time: Some(Time(now)),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_more_than_the_node_has_places_for_is_refused_in_upstreams_words() {
        assert_eq!(refusal(109, 110), None);
        assert_eq!(
            refusal(110, 110).as_deref(),
            Some("Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110")
        );
    }
}
