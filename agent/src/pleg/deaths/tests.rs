use jiff::Timestamp;

use super::*;
use crate::types::{
    id::{PodKey, PodUid},
    runtime::{ContainerState, container_for_tests},
};

fn pod(state: ContainerState) -> RuntimePod {
    RuntimePod {
        containers: vec![container_for_tests("c", state)],
        ..RuntimePod::empty(PodUid::from("u"), PodKey::new("default", "p"))
    }
}

fn running() -> ContainerState {
    ContainerState::Running {
        started_at: Timestamp::UNIX_EPOCH,
    }
}

fn recorded(code: i32, reason: &str) -> ContainerState {
    ContainerState::Exited(Exit {
        code,
        signal: 0,
        reason: reason.into(),
        message: String::new(),
        started_at: Some(Timestamp::UNIX_EPOCH),
        finished_at: Timestamp::UNIX_EPOCH,
        witness: Witness::Runtime,
        oom_seen: reason == OOM_KILLED,
    })
}

fn died(exit: KernelExit, is_oom: bool) -> Deaths {
    let mut deaths = Deaths::default();
    *deaths.entry(&ContainerId::from("c")) = Death {
        exit: Some((exit, Mono(5))),
        emptied_at: Some(Mono(6)),
        is_oom,
        oom_seen: is_oom,
        main_pid: Some(7),
        has_run: true,
    };
    deaths
}

fn exit_of(pod: &RuntimePod) -> &Exit {
    pod.containers[0].state.exit().expect("it is an exit")
}

#[test]
fn an_exit_shown_in_full_is_acted_on_while_the_runtime_still_says_running() {
    let mut reading = pod(running());
    died(KernelExit::Code(3), false).lay_over(&mut reading, None);
    let exit = exit_of(&reading);
    assert_eq!(
        (exit.code, exit.reason.as_str(), exit.witness),
        (3, "Error", Witness::Kernel)
    );
}

#[test]
fn an_exit_alone_is_no_proof_while_a_process_is_left() {
    let mut deaths = Deaths::default();
    deaths.entry(&ContainerId::from("c")).exit = Some((KernelExit::Code(0), Mono(5)));
    let mut reading = pod(running());
    deaths.lay_over(&mut reading, None);
    assert!(reading.containers[0].state.is_running());
}

#[test]
fn the_runtimes_record_stands_but_a_memory_kill_is_the_kernels_to_tell() {
    let mut reading = pod(recorded(137, "Error"));
    died(KernelExit::Signal(9), true).lay_over(&mut reading, None);
    let exit = exit_of(&reading);
    assert_eq!((exit.code, exit.reason.as_str()), (137, OOM_KILLED));
    assert_eq!(exit.witness, Witness::Runtime);
}

#[test]
fn where_the_runtime_lost_an_exit_the_kernels_value_stands() {
    let mut reading = pod(recorded(255, "Unknown"));
    died(KernelExit::Code(42), false).lay_over(&mut reading, None);
    assert_eq!(
        (exit_of(&reading).code, exit_of(&reading).reason.as_str()),
        (42, "Error")
    );

    let mut reading = pod(ContainerState::Unknown);
    died(KernelExit::Code(42), false).lay_over(&mut reading, None);
    assert_eq!(exit_of(&reading).code, 42);
}

#[test]
fn a_recorded_exit_is_not_undone_by_a_reading_that_began_earlier() {
    let known = pod(recorded(1, "Error"));
    let mut reading = pod(running());
    Deaths::default().lay_over(&mut reading, Some(&known));
    assert_eq!(exit_of(&reading).code, 1);
}

#[test]
fn a_container_that_never_ran_is_not_told_dead_by_its_set_up_process() {
    let mut deaths = died(KernelExit::Code(1), false);
    deaths.entry(&ContainerId::from("c")).has_run = false;
    let mut reading = pod(ContainerState::Created);
    deaths.lay_over(&mut reading, None);
    assert_eq!(reading.containers[0].state, ContainerState::Created);
}

#[test]
fn a_record_is_not_undone_by_a_reading_that_began_before_it() {
    let deaths = died(KernelExit::Code(3), false);
    let known = pod(recorded(3, "Error"));
    for older in [
        running(),
        ContainerState::Exited(kernel_exit(
            KernelExit::Code(3),
            Mono(5),
            None,
            &Death::default(),
        )),
    ] {
        let mut reading = pod(older);
        deaths.lay_over(&mut reading, Some(&known));
        assert_eq!(reading, known);
    }
}
