//! What the kernel tells: the events that the eBPF programs send, as the agent sees them.

use super::{
    clock::Mono,
    id::{CgroupId, ContainerId, PodUid},
};

/// One event of the kernel's, or news that some were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelNews {
    Event(KernelEvent),
    /// Events were lost: whoever follows state must read everything again, once.
    Gap(Gap),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEvent {
    /// When the hook ran in the kernel.
    pub at: Mono,
    /// The tracked cgroup: a pod's, or a container's. Processes deeper down are reported for the
    /// container's cgroup that they are in.
    pub cgroup: CgroupId,
    pub what: KernelFact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelFact {
    /// A cgroup was made under a tracked one. `name` is the last part of its path.
    Made { parent: CgroupId, name: String },
    /// The first process came into a container's cgroup. Not yet the main one: runc puts a helper
    /// there, which forks it.
    Attached { pid: u32 },
    /// The main process called exec: the container's own program runs now. Certain where it is the
    /// first of a pid namespace of its own (`is_init`). With a shared namespace it is a guess, the
    /// first that called exec there: some runtimes' helpers do so, and only the runtime can tell.
    Started {
        pid: u32,
        is_init: bool,
        comm: String,
    },
    /// A whole process (thread group) of the cgroup ended: the main process, the first process of
    /// the container's pid namespace, or a memory killer's victim; every process where the main
    /// one is not known yet (a container from before the agent's start).
    Exited {
        pid: u32,
        is_main: bool,
        /// As in `Started`.
        is_init: bool,
        exit: KernelExit,
        comm: String,
    },
    /// The memory killer chose this process. Its exit by SIGKILL follows.
    OomVictim {
        pid: u32,
        is_main: bool,
        comm: String,
    },
    /// No process is left in the cgroup or below it.
    Emptied,
    /// The cgroup's directory was removed.
    Removed,
}

/// How a process ended, from the kernel's wait status (see wait(2)); a core dump is not told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelExit {
    Code(u8),
    Signal(u8),
}

impl KernelExit {
    /// From the kernel's `exit_code`: 0x300 is exit 3, 0x9 is SIGKILL, bit 0x80 a core dump.
    pub fn from_wait_status(status: i32) -> Self {
        let signal = (status & 0x7f) as u8;
        if signal == 0 {
            Self::Code(((status >> 8) & 0xff) as u8)
        } else {
            Self::Signal(signal)
        }
    }

    /// The exit code as runtimes report it: a signal is 128 and its number.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => i32::from(code),
            Self::Signal(signal) => 128 + i32::from(signal),
        }
    }
}

/// Where events were lost, and how many if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub at: Mono,
    pub lost: u64,
    pub place: GapPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum GapPlace {
    /// The ring buffer was full when a program wanted to send.
    KernelRing,
    /// The map of tracked cgroups was full: a new cgroup is not followed.
    KernelMap,
    /// The agent's own queue behind the ring buffer was full.
    Queue,
    /// The runtime's event stream broke or fell behind.
    RuntimeStream,
}

/// What whoever accounts for memory kills must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryNews {
    /// A container's cgroup was made: its counters start here.
    Made {
        cgroup: CgroupId,
        uid: PodUid,
        container: ContainerId,
    },
    /// The memory killer chose a process of the container.
    Killed {
        at: Mono,
        cgroup: CgroupId,
        uid: PodUid,
        container: ContainerId,
        pid: u32,
        comm: String,
        is_main: bool,
    },
    Removed {
        cgroup: CgroupId,
    },
}
