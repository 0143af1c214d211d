use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    types::{
        id::{PodKey, PodUid},
        runtime::{Exit, Sandbox, Witness, container_for_tests},
    },
    worker::testing,
};

/// A pod with these containers; init containers whose names begin with `side` are sidecars.
fn pod(policy: &str, init: &[&str], regular: &[&str]) -> Pod {
    let container = |name: &&str| -> Value {
        let mut spec = json!({"name": name, "image": "busybox:1"});
        if name.starts_with("side") {
            spec["restartPolicy"] = json!("Always");
        }
        spec
    };
    testing::pod(json!({
        "restartPolicy": policy,
        "initContainers": init.iter().map(container).collect::<Vec<_>>(),
        "containers": regular.iter().map(container).collect::<Vec<_>>(),
    }))
}

fn sandbox(id: &str, attempt: u32, is_ready: bool) -> Sandbox {
    Sandbox {
        id: id.into(),
        attempt,
        is_ready,
        created_at: Timestamp::UNIX_EPOCH,
        ips: vec!["10.0.0.2".parse().expect("an address")],
        is_host_network: false,
        runtime_handler: String::new(),
    }
}

fn container(pod: &Pod, name: &str, sandbox: &str, state: ContainerState) -> Container {
    let hash = pod
        .all_containers()
        .find(|(c, _)| c.name == name)
        .map(|(c, _)| container_hash(c));
    Container {
        id: ContainerId::from(format!("{name}-id")),
        sandbox: sandbox.into(),
        hash,
        restart_count: 2,
        ..container_for_tests(name, state)
    }
}

fn running() -> ContainerState {
    ContainerState::Running {
        started_at: Timestamp::UNIX_EPOCH,
    }
}

fn exited(code: i32) -> ContainerState {
    ContainerState::Exited(Exit {
        code,
        signal: 0,
        reason: if code == 0 { "Completed" } else { "Error" }.into(),
        message: String::new(),
        started_at: Some(Timestamp::UNIX_EPOCH),
        finished_at: Timestamp::UNIX_EPOCH,
        witness: Witness::Kernel,
        oom_seen: false,
    })
}

fn observed(sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> RuntimePod {
    RuntimePod {
        sandboxes,
        containers,
        ..RuntimePod::empty(PodUid::from("u"), PodKey::new("d", "p"))
    }
}

fn in_sandbox(pod: &Pod, states: &[(&str, ContainerState)]) -> RuntimePod {
    let containers = states
        .iter()
        .map(|(name, state)| container(pod, name, "s", state.clone()))
        .collect();
    observed(vec![sandbox("s", 0, true)], containers)
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.start.iter().map(|start| start.name.as_str()).collect()
}

#[test]
fn a_new_pod_gets_a_sandbox_and_all_its_containers() {
    let pod = pod("Always", &[], &["a", "b"]);
    let plan = next(&pod, &observed(vec![], vec![]));
    assert_eq!(
        plan.sandbox,
        Some(NewSandbox {
            attempt: 0,
            replaces: None
        })
    );
    assert_eq!(names(&plan), ["a", "b"]);
    assert!(!plan.kill_pod);
}

#[test]
fn a_pod_that_runs_as_wanted_needs_nothing() {
    let pod = pod("Always", &["i"], &["a"]);
    let observed = in_sandbox(&pod, &[("a", running()), ("i", exited(0))]);
    assert!(next(&pod, &observed).is_empty());
}

#[rstest]
#[case("Always", 0, true)]
#[case("Always", 1, true)]
#[case("OnFailure", 0, false)]
#[case("OnFailure", 1, true)]
#[case("Never", 0, false)]
#[case("Never", 1, false)]
fn restarts_by_policy(#[case] policy: &str, #[case] code: i32, #[case] restarts: bool) {
    let pod = pod(policy, &[], &["a"]);
    let plan = next(&pod, &in_sandbox(&pod, &[("a", exited(code))]));
    assert_eq!(names(&plan).len(), usize::from(restarts));
    // With nothing left to run the sandbox goes too.
    assert_eq!(plan.kill_pod, !restarts);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = pod("Always", &["i1", "i2"], &["a"]);
    let first = next(&pod, &observed(vec![], vec![]));
    assert_eq!(names(&first), ["i1"]);
    assert!(next(&pod, &in_sandbox(&pod, &[("i1", running())])).is_empty());
    assert_eq!(
        names(&next(&pod, &in_sandbox(&pod, &[("i1", exited(0))]))),
        ["i2"]
    );
    let last = in_sandbox(&pod, &[("i2", exited(0)), ("i1", exited(0))]);
    assert_eq!(names(&next(&pod, &last)), ["a"]);
    // Records of earlier init containers may be gone: the last one tells.
    assert_eq!(
        names(&next(&pod, &in_sandbox(&pod, &[("i2", exited(0))]))),
        ["a"]
    );
}

#[test]
fn a_failed_init_container_runs_again_or_ends_the_pod() {
    for (policy, restarts) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let pod = pod(policy, &["i"], &["a"]);
        let plan = next(&pod, &in_sandbox(&pod, &[("i", exited(1))]));
        assert_eq!(
            names(&plan),
            if restarts { vec!["i"] } else { vec![] },
            "{policy}"
        );
        assert_eq!(plan.kill_pod, !restarts, "{policy}");
    }
}

#[test]
fn an_init_container_with_a_memory_kill_has_failed_whatever_its_code() {
    let pod = pod("Always", &["i"], &["a"]);
    let ContainerState::Exited(mut exit) = exited(0) else {
        panic!("an exit")
    };
    exit.oom_seen = true;
    let plan = next(
        &pod,
        &in_sandbox(&pod, &[("i", ContainerState::Exited(exit))]),
    );
    assert_eq!(names(&plan), ["i"]);
}

#[test]
fn what_follows_a_sidecar_starts_once_it_runs_and_it_is_kept_running() {
    let pod = pod("Never", &["side", "i"], &["a"]);
    assert_eq!(
        names(&next(&pod, &in_sandbox(&pod, &[("side", running())]))),
        ["i"]
    );
    let done = in_sandbox(&pod, &[("i", exited(0)), ("side", running())]);
    assert_eq!(names(&next(&pod, &done)), ["a"]);
    let side_died = in_sandbox(
        &pod,
        &[("a", running()), ("i", exited(0)), ("side", exited(1))],
    );
    assert_eq!(names(&next(&pod, &side_died)), ["side"]);
}

#[test]
fn a_sidecar_does_not_keep_a_finished_pod_alive() {
    let pod = pod("Never", &["side"], &["a"]);
    let plan = next(
        &pod,
        &in_sandbox(&pod, &[("a", exited(0)), ("side", running())]),
    );
    assert!(plan.kill_pod);
    assert!(plan.start.is_empty());
}

#[test]
fn a_changed_image_restarts_a_container_whatever_the_policy() {
    let pod = pod("Never", &[], &["a"]);
    let mut observed = in_sandbox(&pod, &[("a", running())]);
    observed.containers[0].hash = Some(1);
    let plan = next(&pod, &observed);
    assert_eq!(
        plan.kill[0].message,
        "Container a definition changed, will be restarted"
    );
    assert_eq!(names(&plan), ["a"]);
}

#[test]
fn a_container_that_was_made_and_never_started_is_made_anew_with_its_count() {
    let pod = pod("Always", &[], &["a"]);
    let plan = next(&pod, &in_sandbox(&pod, &[("a", ContainerState::Created)]));
    assert_eq!(plan.remove, [ContainerId::from("a-id")]);
    assert_eq!(plan.start[0].reuse_count, Some(2));
}

#[test]
fn a_dead_sandbox_is_replaced_and_the_init_chain_runs_again() {
    let pod = pod("Always", &["i"], &["a"]);
    let dead = observed(
        vec![sandbox("s", 3, false)],
        vec![
            container(&pod, "a", "s", exited(255)),
            container(&pod, "i", "s", exited(0)),
        ],
    );
    let plan = next(&pod, &dead);
    assert_eq!(
        plan.sandbox,
        Some(NewSandbox {
            attempt: 4,
            replaces: Some("s".into())
        })
    );
    assert!(plan.kill_pod);
    assert_eq!(plan.remove, [ContainerId::from("i-id")]);
    assert_eq!(names(&plan), ["i"]);
}

#[test]
fn a_pod_that_must_not_restart_gets_no_second_sandbox() {
    let pod = pod("Never", &[], &["a"]);
    let dead = observed(
        vec![sandbox("s", 0, false)],
        vec![container(&pod, "a", "s", exited(1))],
    );
    // What is over already is not stopped again at each look.
    assert!(next(&pod, &dead).is_empty());
    let still_running = observed(
        vec![sandbox("s", 0, false)],
        vec![container(&pod, "a", "s", running())],
    );
    let plan = next(&pod, &still_running);
    assert_eq!((plan.sandbox, plan.kill_pod), (None, true));
}

#[test]
fn on_failure_a_new_sandbox_is_only_for_what_has_not_succeeded() {
    let pod = pod("OnFailure", &[], &["a", "b"]);
    let dead = observed(
        vec![sandbox("s", 0, false)],
        vec![
            container(&pod, "a", "s", exited(0)),
            container(&pod, "b", "s", exited(1)),
        ],
    );
    assert_eq!(names(&next(&pod, &dead)), ["b"]);
}

#[test]
fn two_ready_sandboxes_are_one_too_many() {
    let pod = pod("Always", &[], &["a"]);
    let two = observed(vec![sandbox("t", 1, true), sandbox("s", 0, true)], vec![]);
    let plan = next(&pod, &two);
    assert_eq!(
        plan.sandbox,
        Some(NewSandbox {
            attempt: 2,
            replaces: Some("t".into())
        })
    );
}

#[test]
fn a_container_of_unknown_state_is_killed_before_it_is_started() {
    let pod = pod("Always", &[], &["a"]);
    let plan = next(&pod, &in_sandbox(&pod, &[("a", ContainerState::Unknown)]));
    assert_eq!(
        plan.kill[0].message,
        "Container is in \"unknown\" state, try killing it before restart"
    );
    assert_eq!(names(&plan), ["a"]);
}
