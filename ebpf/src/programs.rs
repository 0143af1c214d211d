//! Programs on seven tracepoints, which follow the pods' cgroups and tell the agent what happens
//! in them.
//!
//! - Which cgroups: user space puts the pods' root into `TRACKED`; from then on the programs add
//!   what is made below it, down to containers, and take out what is removed. A process deeper
//!   down belongs to the container above it.
//! - Fields of the kernel's structures are read at offsets that user space finds in the kernel's
//!   BTF and writes into read-only data before the load. Frozen read-only data are constants to
//!   the verifier, so that it checks each load against its own type data: a wrong offset is
//!   refused at load.
//! - Pids are those of the agent's pid namespace.
//! - Nothing is lost in silence: a full ring buffer or map is counted in `LOSSES`.

#![expect(
    unsafe_code,
    reason = "kernel structures are read through pointers that the verifier checks"
)]
#![expect(unreachable_pub, reason = "the kernel's loader reaches them by name")]

use core::{
    mem::MaybeUninit,
    ptr::{addr_of_mut, null, read_volatile},
};

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, bpf_probe_read_kernel_str_bytes, generated},
    macros::{btf_tracepoint, map},
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
    programs::BtfTracePointContext,
};
use ebpf::{
    Event, Head, IS_INIT, IS_MAIN, Kind, LOSS_MAP, LOSS_RING, Made, NAME_BYTES, PodsRoot,
    TRACKED_ATTACHED, TRACKED_FRESH, TRACKED_SETTLED, Tracked,
};

/// Sized by user space.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);
/// Cgroup id to what is known of it. Sized by user space.
#[map]
static TRACKED: HashMap<u64, Tracked> = HashMap::with_max_entries(8192, 0);
#[map]
static PODS_ROOT: Array<PodsRoot> = Array::with_max_entries(1, 0);
/// Per CPU, so that no increment is lost to another CPU.
#[map]
static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(2, 0);
/// Processes that the memory killer chose: thread group id (of the first pid namespace) to the
/// time of the choice, or 0 where the agent has been told of it.
#[map]
static VICTIMS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(512, 0);

/// A victim's exit follows its choice by far less. Later, the pid may be another process's.
const VICTIM_NS: u64 = 60_000_000_000;
/// The kernel's own limit of nested pid namespaces.
const MAX_PID_LEVEL: u32 = 32;
const SIGKILL: i32 = 9;
/// Of the kernel's `sched/signal.h`.
const SIGNAL_GROUP_EXIT: u32 = 4;

macro_rules! settings {
    ($($name:ident),* $(,)?) => {
        $(#[unsafe(no_mangle)] static $name: u32 = 0;)*
    };
}
settings! {
    // Not offsets: the hierarchy and namespace that are followed, and the kernel's forms.
    HIERARCHY_ID, CGROUP_V2, AGENT_PID_NS, EXIT_TELLS_GROUP_DEAD, ANCESTORS_ARE_IDS,
    // Offsets and sizes, in bytes.
    TASK_TGID, TASK_COMM, TASK_EXIT_CODE, TASK_SIGNAL, TASK_CGROUPS, TASK_THREAD_PID, TASK_GROUP_LEADER,
    SIGNAL_LIVE, SIGNAL_FLAGS, SIGNAL_GROUP_EXIT_CODE,
    PID_LEVEL, PID_NUMBERS, UPID_SIZE, UPID_NR, UPID_NS, PID_NS_INUM,
    CSS_SET_DFL_CGRP, CSS_SET_SUBSYS, CSS_CGROUP, CSS_PARENT,
    CGROUP_SELF, CGROUP_KN, CGROUP_ROOT, CGROUP_LEVEL, CGROUP_ANCESTORS, ROOT_HIERARCHY_ID,
    KN_ID, KN_NAME,
}

#[inline(always)]
fn get(setting: &'static u32) -> usize {
    // SAFETY: a valid static. Volatile, because the compiler must not take the 0 above for the
    // value; the verifier does take the frozen one.
    unsafe { read_volatile(setting) as usize }
}

/// A kernel structure.
type Ptr = *const u8;

/// A load that the verifier checks against the kernel's types.
#[inline(always)]
unsafe fn load<T: Copy>(from: Ptr, offset: &'static u32) -> T {
    // SAFETY: the verifier refuses the program unless this is a field of that size.
    unsafe { read_volatile(from.add(get(offset)).cast::<T>()) }
}

/// A load at an offset that is not a constant, or through an array of no declared length. All
/// zeros where there is nothing to read. (No `Option`: the compiler leaves the value of a `None`
/// undefined and may copy it, which the verifier refuses.)
#[inline(always)]
unsafe fn probe<T: Copy>(from: Ptr, offset: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: room for a `T`, for which all zeros are a value; the helper writes zeros where the
    // address is bad.
    unsafe {
        generated::bpf_probe_read_kernel(
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            from.wrapping_add(offset).cast(),
        );
        value.assume_init()
    }
}

#[inline(always)]
unsafe fn cgroup_id(cgroup: Ptr) -> u64 {
    unsafe {
        let kn: Ptr = load(cgroup, &CGROUP_KN);
        load(kn, &KN_ID)
    }
}

#[inline(always)]
unsafe fn is_followed_hierarchy(cgroup: Ptr) -> bool {
    unsafe {
        let root: Ptr = load(cgroup, &CGROUP_ROOT);
        load::<u32>(root, &ROOT_HIERARCHY_ID) as usize == get(&HIERARCHY_ID)
    }
}

#[inline(always)]
unsafe fn cgroup_of(task: Ptr) -> Ptr {
    unsafe {
        let set: Ptr = load(task, &TASK_CGROUPS);
        if get(&CGROUP_V2) != 0 {
            load(set, &CSS_SET_DFL_CGRP)
        } else {
            let css: Ptr = load(set, &CSS_SET_SUBSYS);
            load(css, &CSS_CGROUP)
        }
    }
}

/// 0 where there is none.
#[inline(always)]
unsafe fn ancestor_id(cgroup: Ptr, depth: u64) -> u64 {
    // A depth is a small number; the mask is for the verifier.
    let offset = get(&CGROUP_ANCESTORS) + 8 * (depth as usize & 0xffff);
    unsafe {
        if get(&ANCESTORS_ARE_IDS) != 0 {
            return probe(cgroup, offset);
        }
        let ancestor: Ptr = probe(cgroup, offset);
        let kn: Ptr = probe(ancestor, get(&CGROUP_KN));
        probe(kn, get(&KN_ID))
    }
}

struct Found {
    cgroup: u64,
    tracked: *mut Tracked,
    /// The process is in that very cgroup, not below it.
    exact: bool,
}

#[inline(always)]
fn container(cgroup: u64) -> Option<Found> {
    let tracked = TRACKED.get_ptr_mut(cgroup)?;
    // SAFETY: a value of the map.
    (unsafe { (*tracked).levels_below } == 0).then_some(Found {
        cgroup,
        tracked,
        exact: false,
    })
}

/// The tracked cgroup of a process: its own, else the container's that its own is in. A process
/// outside the pods' root costs one look-up and one comparison.
#[inline(always)]
unsafe fn find(task: Ptr) -> Option<Found> {
    unsafe {
        let own = cgroup_of(task);
        let id = cgroup_id(own);
        if let Some(tracked) = TRACKED.get_ptr_mut(id) {
            return Some(Found {
                cgroup: id,
                tracked,
                exact: true,
            });
        }
        let root = PODS_ROOT.get(0)?;
        let depth = u64::from(load::<u32>(own, &CGROUP_LEVEL));
        if root.cgroup == 0 || depth <= root.depth + 2 {
            return None;
        }
        if ancestor_id(own, root.depth) != root.cgroup {
            return None;
        }
        // Containers are three levels below the root, or two in the Guaranteed class.
        if depth > root.depth + 3
            && let Some(found) = container(ancestor_id(own, root.depth + 3))
        {
            return Some(found);
        }
        container(ancestor_id(own, root.depth + 2))
    }
}

/// Who a process is, as the agent sees it.
#[derive(Clone, Copy)]
struct Who {
    leader: Ptr,
    /// 0 where the agent's pid namespace does not contain the process.
    pid: u32,
    /// First process of a pid namespace right below the agent's: what a container with a pid
    /// namespace of its own starts with.
    is_init: bool,
}

#[inline(always)]
unsafe fn who(task: Ptr) -> Who {
    unsafe {
        // The last thread to end need not be the first that was.
        let leader: Ptr = load(task, &TASK_GROUP_LEADER);
        let mut who = Who {
            leader,
            pid: 0,
            is_init: false,
        };
        let pid: Ptr = load(leader, &TASK_THREAD_PID);
        if pid.is_null() {
            return who;
        }
        let last = load::<u32>(pid, &PID_LEVEL);
        let mut level = 0;
        while level <= MAX_PID_LEVEL && level <= last {
            let number = get(&PID_NUMBERS) + level as usize * get(&UPID_SIZE);
            level += 1;
            let ns: Ptr = probe(pid, number + get(&UPID_NS));
            if probe::<u32>(ns, get(&PID_NS_INUM)) as usize == get(&AGENT_PID_NS) {
                who.pid = probe(pid, number + get(&UPID_NR));
                let below = number + get(&UPID_SIZE) + get(&UPID_NR);
                who.is_init = level == last && probe::<u32>(pid, below) == 1;
                break;
            }
        }
        who
    }
}

#[inline(always)]
fn count_loss(place: u32) {
    if let Some(count) = LOSSES.get_ptr_mut(place) {
        // SAFETY: this CPU's value of the map.
        unsafe { *count += 1 };
    }
}

#[inline(always)]
unsafe fn send(kind: Kind, cgroup: u64, who: Option<Who>, flags: u8, status: i32) {
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
        count_loss(LOSS_RING);
        return;
    };
    let (pid, leader) = match who {
        Some(who) => (who.pid, who.leader),
        None => (0, null()),
    };
    // SAFETY: reserved room of that size, written in full below.
    unsafe {
        let event = entry.as_mut_ptr();
        (*event).head = Head {
            at: bpf_ktime_get_ns(),
            cgroup,
            pid,
            kind: kind as u8,
            flags,
            unused: 0,
        };
        (*event).status = status;
        (*event).unused = 0;
        (*event).comm = if leader.is_null() {
            [0; 16]
        } else {
            probe(leader, get(&TASK_COMM))
        };
    }
    entry.submit(0);
}

#[inline(always)]
fn flags(is_main: bool, who: &Who) -> u8 {
    (if is_main { IS_MAIN } else { 0 }) | (if who.is_init { IS_INIT } else { 0 })
}

/// What `wait(2)` will answer: the group's code where the group ends as one (from Linux 5.17 that
/// includes the last thread's own end), else the leader's.
#[inline(always)]
unsafe fn wait_status(task: Ptr, leader: Ptr) -> i32 {
    unsafe {
        let signal: Ptr = load(task, &TASK_SIGNAL);
        // Both, and then the choice: of two loads in two branches the compiler makes one, at a
        // chosen address, which older verifiers (6.1) don't follow.
        let of_group = load(signal, &SIGNAL_GROUP_EXIT_CODE);
        let of_leader = load(leader, &TASK_EXIT_CODE);
        if load::<u32>(signal, &SIGNAL_FLAGS) & SIGNAL_GROUP_EXIT != 0 {
            of_group
        } else {
            of_leader
        }
    }
}

#[btf_tracepoint(function = "sched_process_exit")]
pub fn on_exit(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let task: Ptr = ctx.arg(0);
        // Only the end of the whole process. Two threads that end at once may both see no
        // other alive, so the kernel's own word is better where the tracepoint has it (6.16).
        if get(&EXIT_TELLS_GROUP_DEAD) != 0 {
            if ctx.arg::<u32>(1) & 0xff == 0 {
                return 0;
            }
        } else {
            let signal: Ptr = load(task, &TASK_SIGNAL);
            if load::<i32>(signal, &SIGNAL_LIVE) != 0 {
                return 0;
            }
        }
        let Some(found) = find(task) else { return 0 };
        let who = who(task);
        let status = wait_status(task, who.leader);
        let tracked = &*found.tracked;
        let is_main = if tracked.main_pid != 0 {
            who.pid == tracked.main_pid
        } else {
            who.is_init && tracked.levels_below == 0
        };

        let mut is_victim = false;
        if status & 0x7f == SIGKILL {
            let tgid = load::<u32>(task, &TASK_TGID);
            if let Some(chosen) = VICTIMS.get(tgid) {
                let chosen = *chosen;
                let _ = VICTIMS.remove(tgid);
                is_victim = chosen == 0 || bpf_ktime_get_ns() - chosen < VICTIM_NS;
                if is_victim && chosen != 0 {
                    send(
                        Kind::OomVictim,
                        found.cgroup,
                        Some(who),
                        flags(is_main, &who),
                        0,
                    );
                }
            }
        }
        // A fresh container whose main process is unknown has not started: what ends there is
        // the runtime's scaffolding.
        let main_unknown = tracked.main_pid == 0 && tracked.state & TRACKED_FRESH == 0;
        let in_container = tracked.levels_below == 0;
        if is_victim || in_container && (is_main || who.is_init || main_unknown) {
            send(
                Kind::Exited,
                found.cgroup,
                Some(who),
                flags(is_main, &who),
                status,
            );
        }
    }
    0
}

#[btf_tracepoint(function = "sched_process_exec")]
pub fn on_exec(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let task: Ptr = ctx.arg(0);
        let Some(found) = find(task) else { return 0 };
        let tracked = &mut *found.tracked;
        if tracked.levels_below != 0 {
            return 0;
        }
        let who = who(task);
        // The runtime's helpers fork the container's first process inside its cgroup, and some of
        // them call exec there too. In a pid namespace of its own that first process is certain;
        // elsewhere the first exec is a guess, which user space mends when the runtime tells.
        let is_open =
            found.exact && tracked.state & (TRACKED_FRESH | TRACKED_SETTLED) == TRACKED_FRESH;
        if is_open && who.is_init {
            tracked.main_pid = who.pid;
            tracked.state |= TRACKED_SETTLED;
        } else if is_open && tracked.main_pid == 0 {
            tracked.main_pid = who.pid;
        }
        if who.pid != 0 && who.pid == tracked.main_pid {
            send(Kind::Started, found.cgroup, Some(who), flags(true, &who), 0);
        }
    }
    0
}

/// The memory killer's choice, where the tracepoint hands over the task.
#[btf_tracepoint(function = "mark_victim")]
pub fn on_victim_task(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        // Not the current task: that is whoever asked for memory.
        let task: Ptr = ctx.arg(0);
        let Some(found) = find(task) else { return 0 };
        let who = who(task);
        let tracked = &*found.tracked;
        let is_main = if tracked.main_pid != 0 {
            who.pid == tracked.main_pid
        } else {
            who.is_init && tracked.levels_below == 0
        };
        let told: u64 = 0;
        let _ = VICTIMS.insert(load::<u32>(task, &TASK_TGID), told, 0);
        send(
            Kind::OomVictim,
            found.cgroup,
            Some(who),
            flags(is_main, &who),
            0,
        );
    }
    0
}

/// The same in older kernels, which hand over a pid of the first namespace: the cgroup is found
/// when that process ends, and both events are sent then.
#[btf_tracepoint(function = "mark_victim")]
pub fn on_victim_pid(ctx: BtfTracePointContext) -> i32 {
    let pid: u32 = ctx.arg(0);
    // SAFETY: takes no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let _ = VICTIMS.insert(pid, now, 0);
    0
}

#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn on_mkdir(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let cgroup: Ptr = ctx.arg(0);
        if !is_followed_hierarchy(cgroup) {
            return 0;
        }
        // `self` is the first part of the cgroup's own structure, so the two offsets add up.
        let parent_css: Ptr = read_volatile(
            cgroup
                .add(get(&CGROUP_SELF) + get(&CSS_PARENT))
                .cast::<Ptr>(),
        );
        if parent_css.is_null() {
            return 0;
        }
        let parent: Ptr = load(parent_css, &CSS_CGROUP);
        let parent_id = cgroup_id(parent);
        let Some(above) = TRACKED.get(parent_id) else {
            return 0;
        };
        if above.levels_below == 0 {
            return 0;
        }
        let id = cgroup_id(cgroup);
        let tracked = Tracked {
            main_pid: 0,
            levels_below: above.levels_below - 1,
            state: TRACKED_FRESH,
            unused: 0,
        };
        if TRACKED.insert(id, tracked, 0).is_err() {
            count_loss(LOSS_MAP);
        }
        let Some(mut entry) = EVENTS.reserve::<Made>(0) else {
            count_loss(LOSS_RING);
            return 0;
        };
        let made = entry.as_mut_ptr();
        (*made).head = Head {
            at: bpf_ktime_get_ns(),
            cgroup: id,
            pid: 0,
            kind: Kind::Made as u8,
            flags: 0,
            unused: 0,
        };
        (*made).parent = parent_id;
        (*made).name = [0; NAME_BYTES];
        let kn: Ptr = load(cgroup, &CGROUP_KN);
        let name: Ptr = load(kn, &KN_NAME);
        let _ = bpf_probe_read_kernel_str_bytes(name, &mut *addr_of_mut!((*made).name));
        entry.submit(0);
    }
    0
}

#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn on_rmdir(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let cgroup: Ptr = ctx.arg(0);
        if is_followed_hierarchy(cgroup) {
            let id = cgroup_id(cgroup);
            if TRACKED.remove(id).is_ok() {
                send(Kind::Removed, id, None, 0, 0);
            }
        }
    }
    0
}

#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn on_attach(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let cgroup: Ptr = ctx.arg(0);
        if !is_followed_hierarchy(cgroup) {
            return 0;
        }
        let id = cgroup_id(cgroup);
        let Some(tracked) = TRACKED.get_ptr_mut(id) else {
            return 0;
        };
        let tracked = &mut *tracked;
        let is_first = tracked.state & (TRACKED_FRESH | TRACKED_ATTACHED) == TRACKED_FRESH;
        if tracked.levels_below == 0 && is_first {
            tracked.state |= TRACKED_ATTACHED;
            let who = who(ctx.arg(2));
            send(Kind::Attached, id, Some(who), 0, 0);
        }
    }
    0
}

#[btf_tracepoint(function = "cgroup_notify_populated")]
pub fn on_populated(ctx: BtfTracePointContext) -> i32 {
    unsafe {
        let cgroup: Ptr = ctx.arg(0);
        if ctx.arg::<u32>(2) == 0 && is_followed_hierarchy(cgroup) {
            let id = cgroup_id(cgroup);
            if TRACKED.get_ptr(id).is_some() {
                send(Kind::Emptied, id, None, 0, 0);
            }
        }
    }
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends the helpers above only to programs under a licence that it knows.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
