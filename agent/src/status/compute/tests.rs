use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod as PodObject, PodStatus};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::status::{PodRecord, Printed, printed};
use crate::types::{
    id::{PodKey, PodUid, SandboxId},
    pod::{Pod, SourceKind},
    runtime::{
        Container, ContainerResources, ContainerState, ContainerUser, Exit, Sandbox, Witness,
        container_for_tests,
    },
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
}

fn pod_from(source: SourceKind, spec: Value) -> Pod {
    let object: PodObject = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": spec,
    }))
    .expect("a pod");
    Pod::new(object, source)
}

fn pod(spec: Value) -> Pod {
    pod_from(SourceKind::File, spec)
}

fn one_container() -> Pod {
    pod(json!({"containers": [{"name": "app", "image": "app:1"}]}))
}

fn runtime(containers: Vec<Container>) -> RuntimePod {
    RuntimePod {
        uid: PodUid::from("u1"),
        key: PodKey::new("default", "web"),
        sandboxes: vec![Sandbox {
            id: SandboxId::from("s1"),
            attempt: 0,
            is_ready: true,
            created_at: at(-5),
            ips: vec!["10.4.0.7".parse().expect("an address")],
            is_host_network: false,
            runtime_handler: String::new(),
        }],
        containers,
    }
}

fn record(name: &str, id: &str, count: u32, state: ContainerState) -> Container {
    Container {
        id: id.into(),
        sandbox: SandboxId::from("s1"),
        attempt: count,
        created_at: at(i64::from(count)),
        image: "docker.io/library/app:1".to_owned(),
        image_ref: "sha256:aa".to_owned(),
        restart_count: count,
        ..container_for_tests(name, state)
    }
}

fn running(seconds: i64) -> ContainerState {
    ContainerState::Running {
        started_at: at(seconds) + SignedDuration::from_millis(250),
    }
}

fn exited(code: i32, reason: &str, seconds: i64) -> ContainerState {
    ContainerState::Exited(Exit {
        code,
        signal: 0,
        reason: reason.to_owned(),
        message: String::new(),
        started_at: Some(at(seconds - 1)),
        finished_at: at(seconds) + SignedDuration::from_millis(750),
        witness: Witness::Runtime,
        oom_seen: false,
    })
}

fn crash_loop() -> HashMap<String, Waiting> {
    let waiting = Waiting {
        reason: "CrashLoopBackOff".to_owned(),
        message: "back-off 10s restarting failed container=app pod=web_default(u1)".to_owned(),
    };
    HashMap::from([("app".to_owned(), waiting)])
}

struct World<'a> {
    pod: &'a Pod,
    waiting: HashMap<String, Waiting>,
    previous: Option<PodStatus>,
    is_terminating: bool,
    is_terminal: bool,
    now: i64,
}

impl<'a> World<'a> {
    fn new(pod: &'a Pod) -> Self {
        Self {
            pod,
            waiting: HashMap::new(),
            previous: None,
            is_terminating: false,
            is_terminal: false,
            now: 0,
        }
    }

    /// The next status of the pod, ten seconds after the one before.
    fn next(&mut self, runtime: &RuntimePod) -> PodStatus {
        self.now += 10;
        let status = compute(&StatusInput {
            pod: self.pod,
            runtime,
            previous: self.previous.as_ref(),
            waiting: &self.waiting,
            node_ips: &["192.0.2.1".parse().expect("an address")],
            is_terminal: self.is_terminal,
            is_terminating: self.is_terminating,
            runtime_name: "containerd",
            now: at(self.now),
        });
        self.previous = Some(status.clone());
        status
    }

    fn line(&self) -> Printed {
        printed(&PodRecord {
            pod: self.pod.clone(),
            status: self.previous.clone().unwrap_or_default(),
            is_terminating: self.is_terminating,
        })
    }
}

fn app(status: &PodStatus) -> &ContainerStatus {
    &status.container_statuses.as_ref().expect("there are some")[0]
}

fn end(state: Option<&k8s_openapi::api::core::v1::ContainerState>) -> Option<(i32, String)> {
    let end = state?.terminated.as_ref()?;
    Some((end.exit_code, end.reason.clone().unwrap_or_default()))
}

fn condition(status: &PodStatus, type_: &str) -> (String, String, String) {
    let all = status.conditions.as_ref().expect("there are some");
    let one = all.iter().find(|c| c.type_ == type_).expect("it is there");
    (
        one.status.clone(),
        one.reason.clone().unwrap_or_default(),
        one.message.clone().unwrap_or_default(),
    )
}

#[test]
fn a_crash_loop_shows_its_last_end_and_stays_running() {
    let pod = pod(json!({
        "containers": [{"name": "app", "image": "app:1",
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "conf", "mountPath": "/conf", "readOnly": true}],
            "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}}}],
    }));
    let mut world = World::new(&pod);
    world.waiting = crash_loop();
    let containers = vec![
        record("app", "c2", 1, exited(2, "Error", 5)),
        record("app", "c1", 0, exited(1, "Error", 1)),
    ];
    insta::assert_yaml_snapshot!(world.next(&runtime(containers)));
    assert_eq!(world.line().status, "CrashLoopBackOff");
    assert_eq!((world.line().ready, world.line().total), (0, 1));
    assert_eq!(world.line().restarts, 1);
}

#[test]
fn a_running_container_shows_what_the_runtime_applied() {
    let pod = pod(json!({
        "containers": [{"name": "app", "image": "app:1", "resources": {
            "requests": {"cpu": "0.5", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}}],
    }));
    let mut app = record("app", "c1", 0, running(1));
    app.user = Some(ContainerUser {
        uid: 1000,
        gid: 1000,
        supplemental_groups: vec![10, 1000],
    });
    app.resources = Some(ContainerResources {
        cpu_shares: 512,
        cpu_quota: 100_000,
        cpu_period: 100_000,
        memory_limit_bytes: 64 << 20,
    });
    let mut world = World::new(&pod);
    insta::assert_yaml_snapshot!(world.next(&runtime(vec![app])));
    assert_eq!(world.line().status, "Running");
}

#[test]
fn a_memory_kill_of_a_pod_that_never_restarts_fails_it() {
    let pod = pod(json!({"restartPolicy": "Never",
        "containers": [{"name": "app", "image": "app:1"}]}));
    let mut world = World::new(&pod);
    insta::assert_yaml_snapshot!(world.next(&runtime(vec![record(
        "app",
        "c1",
        0,
        exited(137, "OOMKilled", 3)
    )])));
    assert_eq!(world.line().status, "OOMKilled");
}

#[test]
fn a_job_that_went_well_is_completed() {
    let pod = pod(json!({"restartPolicy": "OnFailure",
        "initContainers": [{"name": "init", "image": "app:1"}],
        "containers": [{"name": "app", "image": "app:1"}]}));
    let mut world = World::new(&pod);
    insta::assert_yaml_snapshot!(world.next(&runtime(vec![
        record("app", "c2", 0, exited(0, "Completed", 3)),
        record("init", "c1", 0, exited(0, "Completed", 1)),
    ])));
    assert_eq!(world.line().status, "Completed");
}

#[test]
fn an_init_container_that_runs_keeps_the_pod_pending() {
    let pod = pod(json!({
        "initContainers": [{"name": "first", "image": "app:1"}, {"name": "second", "image": "app:1"}],
        "containers": [{"name": "app", "image": "app:1"}]}));
    let mut world = World::new(&pod);
    insta::assert_yaml_snapshot!(world.next(&runtime(vec![
        record("second", "c2", 0, running(3)),
        record("first", "c1", 0, exited(0, "Completed", 1)),
    ])));
    assert_eq!(world.line().status, "Init:1/2");
}

#[test]
fn a_sidecar_counts_among_the_ready() {
    let pod = pod(json!({
        "initContainers": [{"name": "proxy", "image": "app:1", "restartPolicy": "Always"}],
        "containers": [{"name": "web", "image": "app:1"}, {"name": "app", "image": "app:1"}]}));
    let mut world = World::new(&pod);
    insta::assert_yaml_snapshot!(world.next(&runtime(vec![
        record("web", "c3", 0, running(3)),
        record("app", "c2", 0, running(3)),
        record("proxy", "c1", 0, running(1)),
    ])));
    let line = world.line();
    assert_eq!(
        (line.ready, line.total, line.status.as_str()),
        (3, 3, "Running")
    );
}

#[test]
fn a_pod_without_a_sandbox_waits_for_its_containers() {
    let pod = one_container();
    let mut world = World::new(&pod);
    let status = world.next(&RuntimePod::empty(
        "u1".into(),
        PodKey::new("default", "web"),
    ));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(world.line().status, "ContainerCreating");
    assert_eq!(
        condition(&status, "PodReadyToStartContainers"),
        (
            "False".into(),
            "PodSandboxNotReady".into(),
            "no pod sandbox exists".into()
        )
    );
    assert_eq!(
        condition(&status, "Ready"),
        (
            "False".into(),
            "ContainersNotReady".into(),
            "containers with unready status: [app]".into()
        )
    );
}

/// What a container is at, for the table of phases.
#[derive(Clone, Copy, Debug)]
enum At {
    None,
    Created,
    Runs,
    Ended(i32),
    /// Waits after an end, as in a crash loop.
    Again(i32),
}

fn status_of(name: &str, state: At) -> Option<ContainerStatus> {
    let (state, last, started) = match state {
        At::None => return None,
        At::Created => (json!({"waiting": {}}), json!({}), false),
        At::Runs => (json!({"running": {}}), json!({}), true),
        At::Ended(code) => (json!({"terminated": {"exitCode": code}}), json!({}), false),
        At::Again(code) => (
            json!({"waiting": {}}),
            json!({"terminated": {"exitCode": code}}),
            false,
        ),
    };
    let status = json!({"name": name, "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": state, "lastState": last, "started": started});
    Some(serde_json::from_value(status).expect("a container status"))
}

#[rstest]
// policy, init, sidecar, two regular containers, phase
#[case("Always", None, None, [At::None, At::None], "Pending")]
#[case("Always", None, None, [At::Created, At::Runs], "Pending")]
#[case("Always", None, None, [At::Runs, At::None], "Pending")]
#[case("Always", None, None, [At::Runs, At::Runs], "Running")]
#[case("Always", None, None, [At::Again(1), At::Runs], "Running")]
#[case("Always", None, None, [At::Again(1), At::Again(0)], "Running")]
#[case("Always", None, None, [At::Ended(0), At::Ended(0)], "Running")]
#[case("OnFailure", None, None, [At::Ended(0), At::Ended(0)], "Succeeded")]
#[case("OnFailure", None, None, [At::Ended(0), At::Ended(1)], "Running")]
#[case("OnFailure", None, None, [At::Ended(0), At::Again(1)], "Running")]
#[case("Never", None, None, [At::Ended(0), At::Ended(0)], "Succeeded")]
#[case("Never", None, None, [At::Ended(0), At::Ended(1)], "Failed")]
#[case("Never", None, None, [At::Runs, At::Ended(1)], "Running")]
#[case("Never", None, None, [At::Again(0), At::Ended(0)], "Failed")]
// init containers
#[case("Always", Some(At::None), None, [At::Created, At::Created], "Pending")]
#[case("Always", Some(At::Runs), None, [At::Created, At::Created], "Pending")]
#[case("Always", Some(At::Again(1)), None, [At::Created, At::Created], "Pending")]
#[case("OnFailure", Some(At::Ended(1)), None, [At::Created, At::Created], "Pending")]
#[case("Never", Some(At::Ended(1)), None, [At::Created, At::Created], "Failed")]
#[case("Never", Some(At::Ended(0)), None, [At::Runs, At::Runs], "Running")]
#[case("Never", Some(At::Runs), None, [At::Ended(1), At::Ended(1)], "Pending")]
// sidecars
#[case("Never", None, Some(At::Runs), [At::Ended(0), At::Ended(0)], "Running")]
#[case("Never", None, Some(At::Ended(1)), [At::Ended(0), At::Ended(0)], "Succeeded")]
#[case("Never", None, Some(At::Again(1)), [At::Runs, At::Runs], "Running")]
#[case("Never", None, Some(At::Created), [At::Runs, At::Runs], "Pending")]
#[case("Never", None, Some(At::None), [At::Runs, At::Runs], "Pending")]
fn the_phase_follows_the_containers(
    #[case] policy: &str,
    #[case] init: Option<At>,
    #[case] sidecar: Option<At>,
    #[case] regular: [At; 2],
    #[case] want: &str,
) {
    let mut inits = Vec::new();
    if init.is_some() {
        inits.push(json!({"name": "init"}));
    }
    if sidecar.is_some() {
        inits.push(json!({"name": "side", "restartPolicy": "Always"}));
    }
    let pod = pod(json!({"restartPolicy": policy, "initContainers": inits,
        "containers": [{"name": "a"}, {"name": "b"}]}));
    let all = [
        ("init", init.unwrap_or(At::None)),
        ("side", sidecar.unwrap_or(At::None)),
        ("a", regular[0]),
        ("b", regular[1]),
    ];
    let statuses: Vec<_> = all.iter().filter_map(|(n, at)| status_of(n, *at)).collect();
    let statuses: Vec<_> = statuses.iter().collect();
    assert_eq!(phase(&pod, &statuses, false, false).text(), want);
}

#[test]
fn a_failed_init_container_fails_the_pod_even_before_a_pending_one() {
    let pod = pod(json!({"restartPolicy": "Never",
        "initContainers": [{"name": "one"}, {"name": "two"}], "containers": [{"name": "a"}]}));
    let failed = status_of("one", At::Ended(3)).expect("a status");
    assert_eq!(phase(&pod, &[&failed], false, false), Phase::Failed);
}

#[rstest]
#[case::of_the_api(SourceKind::Api, "Failed")]
#[case::of_a_file(SourceKind::File, "Running")]
fn only_a_pod_of_the_api_ends_by_being_stopped(#[case] source: SourceKind, #[case] want: &str) {
    let pod = pod_from(source, json!({"containers": [{"name": "a"}]}));
    let ended = status_of("a", At::Ended(1)).expect("a status");
    assert_eq!(phase(&pod, &[&ended], true, true).text(), want);
}

#[test]
fn a_container_can_have_a_restart_policy_of_its_own() {
    let pod = pod(
        json!({"restartPolicy": "Never", "containers": [{"name": "a",
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}]}),
    );
    let phase_of = |code| {
        let ended = status_of("a", At::Ended(code)).expect("a status");
        phase(&pod, &[&ended], false, true)
    };
    assert_eq!(phase_of(42), Phase::Running);
    assert_eq!(phase_of(1), Phase::Failed);
}

#[test]
fn the_last_state_survives_the_removal_of_its_record() {
    let pod = one_container();
    let mut world = World::new(&pod);
    world.next(&runtime(vec![record(
        "app",
        "c1",
        0,
        exited(3, "Error", 1),
    )]));
    let second = runtime(vec![record("app", "c2", 1, running(5))]);
    for _ in 0..2 {
        let status = world.next(&second);
        assert_eq!(
            end(app(&status).last_state.as_ref()),
            Some((3, "Error".into()))
        );
        assert_eq!(app(&status).restart_count, 1);
    }
    let status = world.next(&runtime(vec![record(
        "app",
        "c2",
        1,
        exited(4, "Error", 9),
    )]));
    assert_eq!(end(app(&status).state.as_ref()), Some((4, "Error".into())));
    assert_eq!(
        end(app(&status).last_state.as_ref()),
        Some((3, "Error".into()))
    );
}

#[test]
fn an_end_never_stands_in_both_states() {
    let pod = one_container();
    let mut world = World::new(&pod);
    let ended = runtime(vec![record("app", "c1", 0, exited(3, "Error", 1))]);
    world.waiting = crash_loop();
    world.next(&ended);
    world.waiting.clear();
    let status = world.next(&ended);
    assert_eq!(end(app(&status).state.as_ref()), Some((3, "Error".into())));
    assert_eq!(end(app(&status).last_state.as_ref()), None);
}

#[test]
fn the_restart_count_never_shrinks() {
    let pod = one_container();
    let mut world = World::new(&pod);
    world.next(&runtime(vec![record(
        "app",
        "c7",
        7,
        exited(3, "Error", 1),
    )]));
    // All records and logs were removed: the runtime's count begins again.
    let status = world.next(&runtime(vec![record("app", "c8", 0, running(5))]));
    assert_eq!(app(&status).restart_count, 8);
    let status = world.next(&runtime(vec![record("app", "c8", 0, running(5))]));
    assert_eq!(app(&status).restart_count, 8);
}

#[rstest]
#[case::wanted(false, 1)]
#[case::told_to_stop(true, 0)]
fn a_running_container_that_vanished_is_said_to_be_lost(
    #[case] is_terminating: bool,
    #[case] count: i32,
) {
    let pod = one_container();
    let mut world = World::new(&pod);
    world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    world.is_terminating = is_terminating;
    for _ in 0..2 {
        let status = world.next(&runtime(vec![]));
        let last = app(&status).last_state.as_ref();
        assert_eq!(end(last), Some((137, "ContainerStatusUnknown".into())));
        assert_eq!(app(&status).restart_count, count);
        assert_eq!(status.phase.as_deref(), Some("Running"));
    }
}

#[test]
fn a_container_that_the_runtime_lost_has_failed_and_stays_so() {
    let pod = one_container();
    let mut world = World::new(&pod);
    world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    for _ in 0..2 {
        let status = world.next(&runtime(vec![record(
            "app",
            "c1",
            0,
            ContainerState::Unknown,
        )]));
        let state = app(&status).state.as_ref();
        assert_eq!(end(state), Some((137, "ContainerStatusUnknown".into())));
        assert_eq!(app(&status).restart_count, 1);
    }
}

#[test]
fn a_lost_init_container_counts_as_done_once_regular_ones_exist() {
    let pod = pod(json!({"initContainers": [{"name": "init"}], "containers": [{"name": "app"}]}));
    let mut world = World::new(&pod);
    let status = world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    let init = &status.init_container_statuses.as_ref().expect("one")[0];
    assert_eq!(end(init.state.as_ref()), Some((0, "Completed".into())));
    assert!(init.ready);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_terminal_phase_stays() {
    let pod = pod(json!({"restartPolicy": "Never", "containers": [{"name": "app"}]}));
    let mut world = World::new(&pod);
    world.next(&runtime(vec![record(
        "app",
        "c1",
        0,
        exited(1, "Error", 1),
    )]));
    let old = world.previous.as_mut().expect("a status");
    old.reason = Some("Evicted".to_owned());
    old.message = Some("The node was low on memory".to_owned());
    let status = world.next(&runtime(vec![record("app", "c2", 0, running(5))]));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(condition(&status, "Ready").1, "PodFailed");
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let pod = one_container();
    let mut world = World::new(&pod);
    let time = |status: &PodStatus, type_: &str| {
        let all = status.conditions.as_ref().expect("some");
        let one = all.iter().find(|c| c.type_ == type_).expect("it is there");
        one.last_transition_time.as_ref().expect("a time").0
    };
    let first = world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    let second = world.next(&runtime(vec![record(
        "app",
        "c1",
        0,
        exited(1, "Error", 9),
    )]));
    assert_eq!(time(&first, "Ready"), at(10));
    assert_eq!(time(&second, "Ready"), at(20));
    assert_eq!(time(&second, "PodScheduled"), at(10));
    assert_eq!(first.start_time, second.start_time);
}

#[test]
fn readiness_gates_hold_the_pod_back() {
    let object = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"readinessGates": [{"conditionType": "a/b"}, {"conditionType": "c/d"}],
            "containers": [{"name": "app"}]},
        "status": {"conditions": [{"type": "c/d", "status": "False"}]},
    }))
    .expect("a pod");
    let pod = Pod::new(object, SourceKind::Api);
    let mut world = World::new(&pod);
    let status = world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    assert_eq!(
        condition(&status, "Ready"),
        (
            "False".into(),
            "ReadinessGatesNotReady".into(),
            "corresponding condition of pod readiness gate \"a/b\" does not exist., \
             the status of pod readiness gate \"c/d\" is not \"True\", but False"
                .into()
        )
    );
    assert_eq!(condition(&status, "ContainersReady").0, "True");
    let first = &status.conditions.as_ref().expect("some")[0];
    assert_eq!(first.type_, "c/d");
}

#[test]
fn a_pod_of_the_host_network_has_the_nodes_address() {
    let pod = pod(json!({"hostNetwork": true, "containers": [{"name": "app"}]}));
    let mut runtime = runtime(vec![]);
    runtime.sandboxes[0].is_host_network = true;
    runtime.sandboxes[0].ips.clear();
    let status = World::new(&pod).next(&runtime);
    assert_eq!(status.pod_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(condition(&status, "PodReadyToStartContainers").0, "True");
}

#[test]
fn a_termination_message_is_cut_between_characters() {
    let pod = one_container();
    let mut ended = record("app", "c1", 0, exited(1, "Error", 1));
    if let ContainerState::Exited(exit) = &mut ended.state {
        exit.message = "é".repeat(10_000);
    }
    let status = World::new(&pod).next(&runtime(vec![ended]));
    let end = app(&status)
        .state
        .as_ref()
        .and_then(|s| s.terminated.as_ref());
    let message = end.and_then(|end| end.message.as_ref()).expect("a message");
    assert_eq!(message.len(), 12 * 1024);
}

#[test]
fn a_finished_pod_has_no_container_without_an_end() {
    let pod = pod(json!({
        "initContainers": [{"name": "one"}, {"name": "two"}], "containers": [{"name": "app"}]}));
    let mut world = World::new(&pod);
    let before = world.next(&runtime(vec![record("one", "c1", 0, running(1))]));
    let after = finish(&pod, &before);
    let inits = after.init_container_statuses.as_ref().expect("some");
    let lost = Some((137, "ContainerStatusUnknown".to_owned()));
    assert_eq!(end(inits[0].state.as_ref()), lost);
    assert_eq!(end(inits[1].state.as_ref()), None);
    assert_eq!(
        end(app(&after).state.as_ref()),
        None,
        "it was never reached"
    );

    let one = one_container();
    let mut world = World::new(&one);
    let before = world.next(&runtime(vec![record("app", "c1", 0, running(1))]));
    assert_eq!(end(app(&finish(&one, &before)).state.as_ref()), lost);
}

#[rstest]
#[case::pull(None, Some(("ErrImagePull", "")), "ErrImagePull")]
#[case::never_again(Some(exited(1, "Error", 1)), None, "Error")]
#[case::runs(Some(running(1)), Some(("CrashLoopBackOff", "")), "Running")]
#[case::created(Some(ContainerState::Created), Some(("RunContainerError", "")), "RunContainerError")]
fn a_start_error_shows_only_while_the_container_is_to_start(
    #[case] state: Option<ContainerState>,
    #[case] why: Option<(&str, &str)>,
    #[case] word: &str,
) {
    let pod = one_container();
    let mut world = World::new(&pod);
    if let Some((reason, message)) = why {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        world
            .waiting
            .insert("app".to_owned(), Waiting { reason, message });
    }
    let records = state.into_iter().map(|state| record("app", "c1", 0, state));
    world.next(&runtime(records.collect()));
    assert_eq!(world.line().status, word);
    world.is_terminating = true;
    assert_eq!(world.line().status, "Terminating");
}

proptest! {
    /// Whatever the runtime shows, in whatever order: counts only rise, and times to the second.
    #[test]
    fn counts_only_rise(steps in prop::collection::vec((0_u32..4, 0_u32..5, 0_u32..3), 1..12)) {
        let pod = one_container();
        let mut world = World::new(&pod);
        let mut last = 0;
        for (id, count, state) in steps {
            let state = match state {
                0 => running(1),
                1 => exited(1, "Error", 2),
                _ => ContainerState::Unknown,
            };
            let status = world.next(&runtime(vec![record("app", &format!("c{id}"), count, state)]));
            prop_assert!(app(&status).restart_count >= last);
            last = app(&status).restart_count;
        }
    }
}
