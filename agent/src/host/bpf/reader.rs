//! Reads the ring buffer on a thread of its own and hands the events on.
//!
//! The thread never waits for its reader: where the queue behind it is full, events are counted
//! and become a gap, as do losses that the programs counted. It runs above the other threads, since
//! a late wake-up on a busy machine is what costs most of the time from hook to agent.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
};

use aya::maps::{MapData, RingBuf};
use ebpf::{Head, IS_INIT, IS_MAIN, Kind, Record};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    time::Timespec,
};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Error, LossCounters, Losses};
use crate::{
    host::priority,
    metrics,
    types::{
        clock::Mono,
        id::CgroupId,
        kernel::{Gap, GapPlace, KernelEvent, KernelExit, KernelFact, KernelNews},
    },
};

const THREAD: &str = "kernel-events";
/// Events taken before losses and the stop signal are looked at again.
const BATCH: usize = 256;
/// Time between two attempts to hand over a gap while the queue is full and nothing else happens.
const RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The reading end of the programs' ring buffer.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    losses: Arc<LossCounters>,
}

struct Ring(RingBuf<MapData>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Reader {
    pub(super) fn new(ring: RingBuf<MapData>, losses: Arc<LossCounters>) -> Self {
        Self {
            ring: Ring(ring),
            losses,
        }
    }

    /// Reads until `stop`, or until nobody listens at `out` any more; the thread has ended when
    /// this returns or is dropped.
    pub async fn run(
        self,
        out: mpsc::Sender<KernelNews>,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(|errno| Error::Read(errno.into()))?);
        let (ended, mut has_ended) = oneshot::channel();
        let mut pump = Pump {
            ring: self.ring,
            losses: self.losses,
            told: Losses::default(),
            pending: [0; PLACES.len()],
            out,
        };
        let thread = thread::Builder::new().name(THREAD.to_owned());
        let stopped = Arc::clone(&wake);
        let thread = thread
            .spawn(move || {
                priority::raise(THREAD);
                // Nobody is left to hear it where the future was dropped.
                let _: Result<(), _> = ended.send(pump.run(&stopped));
            })
            .map_err(Error::Read)?;
        let joined = Joined {
            thread: Some(thread),
            wake,
        };
        tokio::select! {
            result = &mut has_ended => result
                .unwrap_or_else(|_: oneshot::error::RecvError| Err(Error::Read(io::Error::other("the thread panicked")))),
            () = stop.cancelled() => {
                drop(joined);
                has_ended.await.unwrap_or(Ok(()))
            }
        }
    }
}

/// Ends the thread and waits for it, which takes one batch at most.
struct Joined {
    thread: Option<JoinHandle<()>>,
    wake: Arc<OwnedFd>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        // A full counter is a wake-up as well.
        let _: Result<usize, Errno> = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("The thread that reads the kernel's events panicked");
        }
    }
}

/// The places where this thread sees losses.
const PLACES: [GapPlace; 3] = [GapPlace::Queue, GapPlace::KernelRing, GapPlace::KernelMap];
const QUEUE: usize = 0;
const KERNEL_RING: usize = 1;
const KERNEL_MAP: usize = 2;

struct Pump {
    ring: Ring,
    losses: Arc<LossCounters>,
    /// The programs' counts that have become gaps.
    told: Losses,
    /// Losses that are still to be handed over, in the order of `PLACES`.
    pending: [u64; PLACES.len()],
    out: mpsc::Sender<KernelNews>,
}

impl Pump {
    fn run(&mut self, stopped: &OwnedFd) -> Result<(), Error> {
        loop {
            self.take_batch();
            // After the ring, not before: a loss comes while it is full, so that its wake-up is
            // still to come.
            self.count_losses()?;
            self.hand_over_gaps();
            if self.out.is_closed() {
                return Ok(());
            }
            let timeout = self.pending.iter().any(|lost| *lost > 0).then_some(&RETRY);
            let ring = self.ring.0.as_fd();
            let mut fds = [
                PollFd::new(&ring, PollFlags::IN),
                PollFd::new(stopped, PollFlags::IN),
            ];
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Read(errno.into())),
            }
            if fds[1].revents().contains(PollFlags::IN) {
                return Ok(());
            }
            // It would be answered at once for ever.
            if fds[0]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::NVAL)
            {
                let broken = io::Error::other("the ring buffer's descriptor is broken");
                return Err(Error::Read(broken));
            }
        }
    }

    fn take_batch(&mut self) {
        for _ in 0..BATCH {
            let Some(bytes) = self.ring.0.next() else {
                return;
            };
            let record = Record::from_bytes(&bytes);
            drop(bytes);
            match record.and_then(news_of) {
                Some((kind, event)) => {
                    metrics::KERNEL_EVENTS.add(1, &[("kind", kind)]);
                    let age = Mono::now().since(event.at);
                    metrics::KERNEL_EVENT_LATENCY.record(age.as_secs_f64(), &[]);
                    self.offer(event);
                }
                None => {
                    error!("A record of the kernel programs is not understood");
                    self.lose(KERNEL_RING, 1);
                }
            }
        }
    }

    fn offer(&mut self, event: KernelEvent) {
        // What comes after a gap must not overtake it.
        if self.pending[QUEUE] > 0 {
            self.hand_over_gaps();
        }
        if self.pending[QUEUE] > 0 {
            self.lose(QUEUE, 1);
            return;
        }
        match self.out.try_send(KernelNews::Event(event)) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => self.lose(QUEUE, 1),
        }
    }

    fn count_losses(&mut self) -> Result<(), Error> {
        let now = self.losses.read()?;
        let (ring, map) = (
            now.kernel_ring.saturating_sub(self.told.kernel_ring),
            now.kernel_map.saturating_sub(self.told.kernel_map),
        );
        self.told = now;
        self.lose(KERNEL_RING, ring);
        self.lose(KERNEL_MAP, map);
        Ok(())
    }

    fn lose(&mut self, place: usize, lost: u64) {
        if lost == 0 {
            return;
        }
        self.pending[place] += lost;
        let name: &'static str = PLACES[place].into();
        metrics::KERNEL_EVENTS_LOST.add(lost, &[("place", name)]);
    }

    fn hand_over_gaps(&mut self) {
        for (place, pending) in PLACES.iter().zip(&mut self.pending) {
            if *pending == 0 {
                continue;
            }
            let gap = Gap {
                at: Mono::now(),
                lost: *pending,
                place: *place,
            };
            match self.out.try_send(KernelNews::Gap(gap)) {
                Ok(()) => {
                    warn!(
                        place = <&str>::from(*place),
                        lost = *pending,
                        "Kernel events were lost"
                    );
                    *pending = 0;
                }
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return,
            }
        }
    }
}

/// The event of a record and its kind's name; `None` where one does not go with the other.
fn news_of(record: Record) -> Option<(&'static str, KernelEvent)> {
    let head = match &record {
        Record::Event(event) => event.head,
        Record::Made(made) => made.head,
    };
    let Head { pid, .. } = head;
    let is_main = head.flags & IS_MAIN != 0;
    let is_init = head.flags & IS_INIT != 0;
    let (kind, what) = match (Kind::from_number(head.kind)?, record) {
        (Kind::Made, Record::Made(made)) => {
            let (parent, name) = (CgroupId(made.parent), text(&made.name));
            ("made", KernelFact::Made { parent, name })
        }
        (Kind::Attached, Record::Event(_)) => ("attached", KernelFact::Attached { pid }),
        (Kind::Started, Record::Event(event)) => {
            let comm = text(&event.comm);
            ("started", KernelFact::Started { pid, is_init, comm })
        }
        (Kind::Exited, Record::Event(event)) => {
            let what = KernelFact::Exited {
                pid,
                is_main,
                is_init,
                exit: KernelExit::from_wait_status(event.status),
                comm: text(&event.comm),
            };
            ("exited", what)
        }
        (Kind::OomVictim, Record::Event(event)) => {
            let comm = text(&event.comm);
            ("oom_victim", KernelFact::OomVictim { pid, is_main, comm })
        }
        (Kind::Emptied, Record::Event(_)) => ("emptied", KernelFact::Emptied),
        (Kind::Removed, Record::Event(_)) => ("removed", KernelFact::Removed),
        (
            Kind::Attached
            | Kind::Started
            | Kind::Exited
            | Kind::OomVictim
            | Kind::Emptied
            | Kind::Removed,
            Record::Made(_),
        )
        | (Kind::Made, Record::Event(_)) => return None,
    };
    let event = KernelEvent {
        at: Mono(head.at),
        cgroup: CgroupId(head.cgroup),
        what,
    };
    Some((kind, event))
}

/// Text up to its NUL; what is no UTF-8 (a process may name itself anything) is replaced.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use ebpf::{Event, Made, NAME_BYTES};

    use super::*;

    fn head(kind: Kind, flags: u8) -> Head {
        Head {
            at: 7,
            cgroup: 42,
            pid: 1234,
            kind: kind as u8,
            flags,
            unused: 0,
        }
    }

    #[test]
    fn a_record_of_an_exit_says_who_ended_and_how() {
        let mut comm = [0; 16];
        comm[..3].copy_from_slice(b"web");
        let record = Record::Event(Event {
            head: head(Kind::Exited, IS_MAIN),
            status: 0x300,
            unused: 0,
            comm,
        });
        let expected = KernelEvent {
            at: Mono(7),
            cgroup: CgroupId(42),
            what: KernelFact::Exited {
                pid: 1234,
                is_main: true,
                is_init: false,
                exit: KernelExit::Code(3),
                comm: "web".to_owned(),
            },
        };
        assert_eq!(news_of(record), Some(("exited", expected)));
    }

    #[test]
    fn a_name_without_an_end_is_taken_whole() {
        let record = Record::Made(Made {
            head: head(Kind::Made, 0),
            parent: 41,
            name: [b'a'; NAME_BYTES],
        });
        let Some((_, KernelEvent { what, .. })) = news_of(record) else {
            panic!("not understood");
        };
        let name = "a".repeat(NAME_BYTES);
        let parent = CgroupId(41);
        assert_eq!(what, KernelFact::Made { parent, name });
    }

    #[test]
    fn a_kind_in_the_wrong_record_is_not_understood() {
        let record = Record::Event(Event {
            head: head(Kind::Made, 0),
            status: 0,
            unused: 0,
            comm: [0; 16],
        });
        assert_eq!(news_of(record), None);
    }
}
