//! Threads that run before all ordinary ones of the node.

use std::io;

use tracing::debug;

/// Puts the calling thread above the ordinary ones, or else as far up as is allowed; `name` is for
/// the log. For threads that have little to do and must do it at once: on a busy machine an
/// ordinary one waits for a processor for up to some tenths of a second. Threads that it starts are
/// ordinary again (`sched(7)`, `SCHED_RESET_ON_FORK`).
///
/// Real-time scheduling is refused without `CAP_SYS_NICE`, and in a cgroup that has no real-time of
/// its own, on kernels that share it out by cgroups (`CONFIG_RT_GROUP_SCHED`).
pub fn raise(name: &str) {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    #[expect(unsafe_code, reason = "no safe crate in use has this system call")]
    // SAFETY: the pointer is to a live value of the right type; 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0;
    if !refused {
        return;
    }
    let error = io::Error::last_os_error();
    debug!(%error, thread = name, "Real-time scheduling is refused");
    // On Linux this is the calling thread's value alone.
    if let Err(error) = rustix::process::setpriority_process(None, -20) {
        debug!(%error, thread = name, "A higher priority is refused");
    }
}
