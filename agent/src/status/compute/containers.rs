//! The statuses of a pod's containers (COND-11..21, COND-24, COND-25).

use k8s_openapi::api::core::v1::{
    Container as Wanted, ContainerState as State, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus,
    ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use jiff::Timestamp;

use super::{Resources, StatusInput};
use crate::types::{
    pod::{Pod, Role},
    quantity::{Quantity, bytes_text, milli_text},
    reason::{terminated, waiting},
    resources,
    runtime::{Container, ContainerResources, ContainerState, Exit},
};

/// What a container is said to have ended with when nobody saw its end.
const LOST_CODE: i32 = 137;
const LOST_AT_DELETION: &str = "The container could not be located when the pod was deleted.  \
                                The container used to be Running";
const LOST_AT_END: &str = "The container could not be located when the pod was terminated";
const LOST_INIT: &str = "Unable to get init container status from container runtime and pod has \
                         been initialized, treat it as exited normally";

/// At or below these the kernel's own floors hide what was asked for, so the asked value is shown.
const MIN_SHARES_MILLI_CPU: i64 = 2;
const MIN_LIMIT_MILLI_CPU: i64 = 10;

/// By name, as upstream sorts them.
pub(super) fn regular(input: &StatusInput<'_>) -> Vec<ContainerStatus> {
    let old = input.previous.and_then(|s| s.container_statuses.as_deref());
    let mut all: Vec<ContainerStatus> = input
        .pod
        .regular_containers()
        .map(|wanted| one(input, wanted, Role::Regular, find(old, &wanted.name)))
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// In the order of the spec.
pub(super) fn init(input: &StatusInput<'_>) -> Vec<ContainerStatus> {
    let old = input
        .previous
        .and_then(|s| s.init_container_statuses.as_deref());
    input
        .pod
        .init_containers()
        .map(|(wanted, role)| one(input, wanted, role, find(old, &wanted.name)))
        .collect()
}

fn find<'a>(all: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerStatus> {
    all.into_iter().flatten().find(|status| status.name == name)
}

fn one(
    input: &StatusInput<'_>,
    wanted: &Wanted,
    role: Role,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut records = input.runtime.all_of(&wanted.name);
    let newest = records.next();
    let mut status = match newest {
        Some(record) => from_record(input, wanted, record, old),
        None => without_record(input, wanted, old),
    };
    if let Some(exit) = records.next().and_then(|second| second.state.exit()) {
        let id = records_id(input, wanted, 1);
        status.last_state = Some(ended(exit, id));
    }
    if status.volume_mounts.is_none() {
        status.volume_mounts = volume_mounts(wanted);
    }
    if !is_lost_init(input, wanted, role, newest, &mut status) {
        wait(input, wanted, role, newest, &mut status);
    }
    set_ready(&mut status, role);
    status
}

fn records_id(input: &StatusInput<'_>, wanted: &Wanted, index: usize) -> Option<String> {
    let record = input.runtime.all_of(&wanted.name).nth(index)?;
    Some(full_id(input, record))
}

fn full_id(input: &StatusInput<'_>, record: &Container) -> String {
    format!("{}://{}", input.runtime_name, record.id)
}

fn from_record(
    input: &StatusInput<'_>,
    wanted: &Wanted,
    record: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let id = full_id(input, record);
    let is_same = old.is_some_and(|old| old.container_id.as_deref() == Some(&id));
    let old_end = old.and_then(|old| old.state.as_ref()?.terminated.as_ref());
    let old_last = old.and_then(|old| old.last_state.as_ref()?.terminated.as_ref());
    let was_running =
        old.is_some_and(|old| old.state.as_ref().is_some_and(|s| s.running.is_some()));
    let old_count = old.map_or(0, |old| old.restart_count);
    let mut restart_count = i32::try_from(record.restart_count)
        .unwrap_or(i32::MAX)
        .max(old_count);

    // The record of what ran before may be gone; then its end is only in the last status.
    let last = match old_end {
        Some(end) if !is_same => Some(end),
        Some(_) | None => old_last,
    };
    let state = match &record.state {
        ContainerState::Created => waiting_state("", ""),
        ContainerState::Running { started_at } => {
            if old_end.is_some() && i64::from(old_count) >= i64::from(record.restart_count) {
                restart_count = old_count.saturating_add(1);
            }
            State {
                running: Some(ContainerStateRunning {
                    started_at: Some(Time(*started_at)),
                }),
                ..State::default()
            }
        }
        ContainerState::Exited(exit) => ended(exit, Some(id.clone())),
        ContainerState::Unknown if was_running => {
            restart_count = old_count.saturating_add(1);
            lost(terminated::STATUS_UNKNOWN, LOST_AT_END, LOST_CODE)
        }
        // Already called lost: an end that was told stays told.
        ContainerState::Unknown => match old_end.filter(|_| is_same) {
            Some(end) => State {
                terminated: Some(end.clone()),
                ..State::default()
            },
            None => waiting_state("", ""),
        },
    };
    // A container that waits for its restart shows its end as the last state; once it no longer
    // waits, that end is its state and must not stand in both.
    let is_state = |end: &ContainerStateTerminated| {
        state.terminated.is_some() && end.container_id.as_deref() == Some(&id)
    };
    ContainerStatus {
        name: record.name.clone(),
        restart_count,
        image: record.image.clone(),
        image_id: record.image_ref.clone(),
        container_id: Some(id.clone()),
        last_state: last.filter(|end| !is_state(end)).map(|end| State {
            terminated: Some(end.clone()),
            ..State::default()
        }),
        volume_mounts: old.and_then(|old| old.volume_mounts.clone()),
        resources: Some(shown_resources(
            wanted,
            record,
            old.filter(|_| is_same && was_running),
        )),
        allocated_resources: wanted
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.clone())
            .map(canonical),
        user: record.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: Some(user.supplemental_groups.clone())
                    .filter(|groups| !groups.is_empty()),
            }),
        }),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// Never made, or its records were removed.
fn without_record(
    input: &StatusInput<'_>,
    wanted: &Wanted,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let old_state = old.and_then(|old| old.state.as_ref());
    if let Some(old) = old
        && old_state.is_some_and(|state| state.terminated.is_some())
    {
        return old.clone();
    }
    let reason = if input.pod.init_containers().next().is_some() {
        waiting::POD_INITIALIZING
    } else {
        waiting::CONTAINER_CREATING
    };
    let mut status = ContainerStatus {
        name: wanted.name.clone(),
        image: wanted.image.clone().unwrap_or_default(),
        restart_count: old.map_or(0, |old| old.restart_count),
        last_state: old.and_then(|old| old.last_state.clone()),
        state: Some(waiting_state(reason, "")),
        ..ContainerStatus::default()
    };
    // It ran when last seen: it must have ended, and the pod is not to become Pending again.
    let was_running = old_state.is_some_and(|state| state.running.is_some());
    let has_last = |s: &ContainerStatus| {
        s.last_state
            .as_ref()
            .is_some_and(|s| s.terminated.is_some())
    };
    if was_running && !has_last(&status) {
        status.last_state = Some(lost(
            terminated::STATUS_UNKNOWN,
            LOST_AT_DELETION,
            LOST_CODE,
        ));
        if !input.is_terminating {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

/// COND-25: without a record of it, a started regular container proves that it went well.
fn is_lost_init(
    input: &StatusInput<'_>,
    wanted: &Wanted,
    role: Role,
    newest: Option<&Container>,
    status: &mut ContainerStatus,
) -> bool {
    let is_waiting = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    if role != Role::Init || newest.is_some() || !is_waiting {
        return false;
    }
    let has_regular = input.pod.regular_containers().any(|regular| {
        input
            .runtime
            .newest(&regular.name)
            .is_some_and(|record| match record.state {
                ContainerState::Created
                | ContainerState::Running { .. }
                | ContainerState::Exited(_) => true,
                ContainerState::Unknown => false,
            })
    });
    if has_regular {
        debug_assert_eq!(status.name, wanted.name);
        status.state = Some(lost(terminated::COMPLETED, LOST_INIT, 0));
    }
    has_regular
}

/// COND-12: a container that is to be started and could not be, waits with the reason.
fn wait(
    input: &StatusInput<'_>,
    wanted: &Wanted,
    role: Role,
    newest: Option<&Container>,
    status: &mut ContainerStatus,
) {
    let Some(why) = input.waiting.get(&wanted.name) else {
        return;
    };
    let is_to_start = match newest.map(|record| &record.state) {
        _ if input.is_terminating => false,
        None | Some(ContainerState::Created | ContainerState::Unknown) => true,
        Some(ContainerState::Running { .. }) => false,
        Some(ContainerState::Exited(exit)) => {
            // Upstream passes over every init container that exited with 0, sidecars included.
            !(role != Role::Regular && exit.code == 0)
                && input.pod.should_restart(wanted, exit.code)
        }
    };
    if !is_to_start {
        return;
    }
    if let Some(state) = status.state.take_if(|state| state.terminated.is_some()) {
        status.last_state = Some(state);
    }
    status.state = Some(waiting_state(&why.reason, &why.message));
}

/// COND-17, without probes: what runs has started and is ready.
fn set_ready(status: &mut ContainerStatus, role: Role) {
    let state = status.state.as_ref();
    let is_running = state.is_some_and(|state| state.running.is_some());
    status.started = Some(is_running);
    status.ready = match role {
        Role::Regular | Role::Sidecar => is_running,
        Role::Init => state
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|end| end.exit_code == 0),
    };
}

fn waiting_state(reason: &str, message: &str) -> State {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    State {
        waiting: Some(ContainerStateWaiting {
            reason: text(reason),
            message: text(message),
        }),
        ..State::default()
    }
}

fn ended(exit: &Exit, id: Option<String>) -> State {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    State {
        terminated: Some(ContainerStateTerminated {
            exit_code: exit.code,
            signal: Some(exit.signal).filter(|&signal| signal != 0),
            reason: text(&exit.reason),
            message: text(&exit.message),
            // What never ran shows the epoch, as upstream has it.
            started_at: Some(Time(exit.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
            finished_at: Some(Time(exit.finished_at)),
            container_id: id,
        }),
        ..State::default()
    }
}

fn lost(reason: &str, message: &str, code: i32) -> State {
    State {
        terminated: Some(ContainerStateTerminated {
            exit_code: code,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..State::default()
    }
}

/// COND-21. A read-only mount is recursively so only where the runtime offers it and the pod asks
/// for it, which is not built.
fn volume_mounts(wanted: &Wanted) -> Option<Vec<VolumeMountStatus>> {
    let mounts = wanted
        .volume_mounts
        .as_ref()
        .filter(|all| !all.is_empty())?;
    let status = |mount: &k8s_openapi::api::core::v1::VolumeMount| {
        let read_only = mount.read_only.filter(|&is| is);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only,
            recursive_read_only: read_only.map(|_| "Disabled".to_owned()),
            volume_status: None,
        }
    };
    Some(mounts.iter().map(status).collect())
}

/// COND-19: what the runtime applied, where it says so and the container runs; else what was asked
/// for. `old` is the status of the same container, running.
fn shown_resources(
    wanted: &Wanted,
    record: &Container,
    old: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut all = wanted.resources.clone().unwrap_or_default();
    all.limits = all.limits.map(canonical);
    all.requests = all.requests.map(canonical);
    if !record.state.is_running() {
        return all;
    }
    let applied = record.resources.unwrap_or_default();
    let old = old.and_then(|old| old.resources.as_ref());
    if let Some(limits) = &mut all.limits {
        let old = old.and_then(|old| old.limits.as_ref());
        let cpu = limit_milli_cpu(applied);
        show_cpu(limits, old, cpu, MIN_LIMIT_MILLI_CPU);
        match applied.memory_limit_bytes {
            bytes if bytes > 0 => {
                limits.insert("memory".into(), ApiQuantity(bytes_text(bytes)));
            }
            _ => keep(limits, old, "memory"),
        }
    }
    if let Some(requests) = &mut all.requests {
        let old = old.and_then(|old| old.requests.as_ref());
        let cpu = request_milli_cpu(applied);
        show_cpu(requests, old, cpu, MIN_SHARES_MILLI_CPU);
        keep(requests, old, "memory");
    }
    all
}

fn show_cpu(all: &mut Resources, old: Option<&Resources>, applied: Option<i64>, floor: i64) {
    let asked = all
        .get("cpu")
        .and_then(|asked| Quantity::try_from(asked).ok())
        .map_or(0, Quantity::milli_value);
    match applied {
        None => keep(all, old, "cpu"),
        Some(applied) if applied > floor || asked > floor => {
            all.insert("cpu".into(), ApiQuantity(milli_text(applied)));
        }
        Some(_) => {}
    }
}

fn keep(all: &mut Resources, old: Option<&Resources>, name: &str) {
    if let Some(value) = old.and_then(|old| old.get(name)) {
        all.insert(name.into(), value.clone());
    }
}

fn limit_milli_cpu(applied: ContainerResources) -> Option<i64> {
    if applied.cpu_period <= 0 || applied.cpu_quota <= 0 {
        return None;
    }
    applied
        .cpu_quota
        .checked_mul(1000)
        .map(|quota| quota / applied.cpu_period)
        .filter(|&milli| milli > 0)
}

fn request_milli_cpu(applied: ContainerResources) -> Option<i64> {
    if applied.cpu_shares < 2 {
        return None;
    }
    let milli = applied.cpu_shares.checked_mul(1000)?;
    Some(milli / 1024 + i64::from(milli % 1024 != 0))
}

/// Amounts in the form that the API shows them.
pub(super) fn amounts(all: &resources::Amounts) -> Resources {
    let text = |name: &str, amount: &Quantity| match name {
        resources::CPU => milli_text(amount.milli_value()),
        _ => bytes_text(amount.value()),
    };
    all.iter()
        .map(|(name, amount)| (name.clone(), ApiQuantity(text(name, amount))))
        .collect()
}

/// CPU as the API gives it back: a manifest's `0.5` is `500m`.
fn canonical(mut all: Resources) -> Resources {
    if let Some(cpu) = all.get_mut(resources::CPU)
        && let Ok(amount) = Quantity::try_from(&*cpu)
    {
        cpu.0 = milli_text(amount.milli_value());
    }
    all
}

/// Some regular container has left its first waiting, or the last init container is done.
pub(super) fn has_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some((last, role)) = pod.init_containers().last() else {
        return true;
    };
    let has_run = |status: &ContainerStatus| {
        let is_waiting = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
        let last = status.last_state.as_ref();
        !is_waiting || last.is_some_and(|last| last.terminated.is_some())
    };
    if status.container_statuses.iter().flatten().any(has_run) {
        return true;
    }
    let init = find(status.init_container_statuses.as_deref(), &last.name);
    init.is_some_and(|init| match role {
        Role::Sidecar => init.started == Some(true),
        Role::Init | Role::Regular => [&init.state, &init.last_state]
            .into_iter()
            .flatten()
            .filter_map(|state| state.terminated.as_ref())
            .any(|end| end.exit_code == 0),
    })
}

/// How many init containers, from the first, have been tried: at least one where there are any.
pub(super) fn tried_init(status: &PodStatus) -> usize {
    let all = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    all.iter()
        .rposition(|init| {
            let state = init.state.as_ref();
            let last = init.last_state.as_ref();
            state.is_none_or(|state| state.waiting.is_none())
                || last.is_some_and(|last| last.terminated.is_some())
        })
        .map_or(all.len().min(1), |last| last + 1)
}

pub(super) fn end_unknown(status: &mut ContainerStatus) {
    if status.state.as_ref().is_none_or(|s| s.terminated.is_none()) {
        status.state = Some(lost(terminated::STATUS_UNKNOWN, LOST_AT_END, LOST_CODE));
    }
}
