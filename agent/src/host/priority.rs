//! Threads that run before all ordinary ones of the node.

use std::io;

use tracing::info;

/// Puts the calling thread above the ordinary ones, or else as far up as is allowed; `name` is for
/// the log. For threads that have little to do and must do it at once: on a busy machine an
/// ordinary one waits for a processor for up to some tenths of a second. Threads that it starts are
/// ordinary again (`sched(7)`, `SCHED_RESET_ON_FORK`).
///
/// Real-time scheduling is refused without `CAP_SYS_NICE`, and in a cgroup that has no real-time of
/// its own, on kernels that share it out by cgroups (`CONFIG_RT_GROUP_SCHED`). Timers and sockets
/// stay the ordinary threads' business, and a lock that one of those holds is waited for.
pub fn raise(name: &str) {
    let Err(error) = set_policy(libc::SCHED_FIFO, 1) else {
        return;
    };
    info!(%error, thread = name, "Real-time scheduling is refused: a busy node holds this thread up");
    if let Err(error) = raise_as_ordinary() {
        info!(%error, thread = name, "A higher priority is refused");
    }
}

/// The highest priority of ordinary threads.
fn raise_as_ordinary() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER, 0)?;
    // On Linux this is the calling thread's value alone.
    rustix::process::setpriority_process(None, -20)?;
    Ok(())
}

/// Of the calling thread, not of those that it starts.
fn set_policy(policy: i32, sched_priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    #[expect(unsafe_code, reason = "no safe crate in use has this system call")]
    // SAFETY: the pointer is to a live value of the right type; 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0;
    if refused {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Needs root's rights, or those to raise a priority.
    #[test]
    fn what_a_raised_thread_starts_is_ordinary() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let raised = thread::spawn(move || {
            raise_as_ordinary().map(|()| (nice(), thread::spawn(nice).join().unwrap()))
        });
        match raised.join().unwrap() {
            Ok(seen) => assert_eq!(seen, (-20, 0)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        assert_eq!(nice(), before);
    }
}
