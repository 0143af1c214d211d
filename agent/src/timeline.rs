//! What happened to the pods, kept on disk within a bound, through restarts.
//!
//! Anyone may record an entry and never waits for it. The last entries stand in memory, where live
//! readers follow them by number; the task alone writes the disk (`timeline/segments.rs`). An entry
//! that cannot be kept (queue full, disk full) is counted, and the next ones go on.
//!
//! In: [`Recorder::record`]. Out: [`Recorder::query`] for the past, [`Recorder::subscribe`] live.

mod segments;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics,
    types::{id::PodKey, timeline::Entry},
};
use segments::{Line, Segments};

pub use segments::Error;

/// Entries that wait for the disk. A thousand exits at once fit; beyond that the disk is too slow
/// or full, and entries are dropped and counted.
const QUEUE: usize = 1024;

/// Entries in memory: more than the queue holds, so that an entry which is not yet on disk can
/// always be read here. Some 500 bytes each.
const IN_MEMORY: usize = 2 * QUEUE;

/// Entries written at one time.
const BATCH: usize = 256;

/// Opens the timeline in `dir`, which is made if need be. Its files never hold more than `max_bytes`
/// together: the oldest go.
pub fn open(dir: PathBuf, max_bytes: u64) -> Result<(Recorder, Task), Error> {
    let segments = Segments::open(dir.clone(), max_bytes)?;
    let next = segments.next_number();
    let (lines_tx, lines_rx) = mpsc::channel(QUEUE);
    let memory = Arc::new(Mutex::new(Memory {
        recent: VecDeque::new(),
        next,
    }));
    let recorder = Recorder {
        memory,
        lines_tx,
        next: Arc::new(watch::channel(next).0),
        dir,
    };
    let task = Task {
        segments,
        lines_rx,
        is_failing: false,
    };
    Ok((recorder, task))
}

/// Which entries are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only this pod's.
    pub pod: Option<PodKey>,
    /// Only those that the agent knew at this time or later.
    pub since: Option<Timestamp>,
}

impl Filter {
    pub fn matches(&self, entry: &Entry) -> bool {
        self.pod
            .as_ref()
            .is_none_or(|pod| entry.pod.as_ref() == Some(pod))
            && self.since.is_none_or(|since| entry.agent_at >= since)
    }
}

#[derive(Debug)]
struct Memory {
    /// Ascending by number, without holes; the last one is `next - 1`.
    recent: VecDeque<(u64, Arc<Entry>)>,
    next: u64,
}

/// The way in, and the way to read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    memory: Arc<Mutex<Memory>>,
    lines_tx: mpsc::Sender<Line<Arc<Entry>>>,
    /// The number that the next entry gets; moves with each one.
    next: Arc<watch::Sender<u64>>,
    dir: PathBuf,
}

impl Recorder {
    /// Never waits. An entry that the disk's queue has no room for is shown to live readers only.
    pub fn record(&self, entry: Entry) {
        let entry = Arc::new(entry);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let number = memory.next;
        memory.next += 1;
        if memory.recent.len() == IN_MEMORY {
            memory.recent.pop_front();
        }
        memory.recent.push_back((number, entry.clone()));
        // Sent under the lock, so that lines lie on disk in the order of their numbers.
        let is_queued = self.lines_tx.try_send(Line { number, entry }).is_ok();
        let next = memory.next;
        drop(memory);
        if !is_queued {
            metrics::TIMELINE_DROPPED.add(1, &[]);
        }
        self.next.send_replace(next);
    }

    /// What happens from now on.
    pub fn subscribe(&self) -> Live {
        let next_rx = self.next.subscribe();
        let next = self
            .memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next;
        Live {
            memory: self.memory.clone(),
            next_rx,
            next,
        }
    }

    /// The past, from memory and disk, ordered by when the agent knew.
    pub async fn query(&self, filter: &Filter) -> Result<Vec<Entry>, Error> {
        self.query_before(filter, u64::MAX).await
    }

    /// The past, and a reader that goes on exactly where it ends.
    pub async fn query_and_follow(&self, filter: &Filter) -> Result<(Vec<Entry>, Live), Error> {
        let live = self.subscribe();
        let past = self.query_before(filter, live.next).await?;
        Ok((past, live))
    }

    async fn query_before(&self, filter: &Filter, end: u64) -> Result<Vec<Entry>, Error> {
        let (dir, wanted) = (self.dir.clone(), filter.clone());
        let reading = tokio::task::spawn_blocking(move || {
            segments::read_all(&dir, |entry| wanted.matches(entry))
        });
        let on_disk = match reading.await {
            Ok(result) => result?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The process is ending, and nobody will read the answer.
            Err(_) => Vec::new(),
        };
        // Memory is read after the disk: what was written in between is in both, what was not yet
        // written is here.
        let mut found: BTreeMap<u64, Entry> = on_disk
            .into_iter()
            .map(|line| (line.number, line.entry))
            .collect();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, entry) in &memory.recent {
            if filter.matches(entry) {
                found.entry(*number).or_insert_with(|| Entry::clone(entry));
            }
        }
        drop(memory);
        let mut entries: Vec<Entry> = found
            .into_iter()
            .take_while(|(number, _)| *number < end)
            .map(|(_, entry)| entry)
            .collect();
        entries.sort_by_key(|entry| entry.agent_at);
        Ok(entries)
    }
}

/// A live reader. Reads from memory at its own pace; one that falls too far behind is told how many
/// it missed.
#[derive(Debug)]
pub struct Live {
    memory: Arc<Mutex<Memory>>,
    next_rx: watch::Receiver<u64>,
    next: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    Entry(Arc<Entry>),
    /// This reader was too slow; so many entries are past it.
    Missed(u64),
}

impl Live {
    /// The next entry; none once every [`Recorder`] is gone. Cancel-safe: an entry counts as read
    /// only when it is returned.
    pub async fn next(&mut self) -> Option<Followed> {
        let next = self.next;
        self.next_rx.wait_for(|latest| *latest > next).await.ok()?;
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let (oldest, _) = memory.recent.front()?;
        if *oldest > self.next {
            let missed = *oldest - self.next;
            self.next = *oldest;
            return Some(Followed::Missed(missed));
        }
        let at = usize::try_from(self.next - oldest).ok()?;
        let (number, entry) = memory.recent.get(at)?;
        self.next = number + 1;
        Some(Followed::Entry(entry.clone()))
    }
}

/// Writes the entries to disk.
#[derive(Debug)]
pub struct Task {
    segments: Segments,
    lines_rx: mpsc::Receiver<Line<Arc<Entry>>>,
    is_failing: bool,
}

impl Task {
    /// Ends when `stop` is cancelled, after what was recorded until then has been written.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.lines_rx.close();
                    self.lines_rx.recv_many(&mut batch, BATCH).await
                }
                received = self.lines_rx.recv_many(&mut batch, BATCH) => received,
            };
            if received == 0 {
                return;
            }
            match self.write(std::mem::take(&mut batch)).await {
                Some(task) => self = task,
                None => return,
            }
        }
    }

    /// None: the runtime is ending, nothing more can be written.
    async fn write(mut self, lines: Vec<Line<Arc<Entry>>>) -> Option<Self> {
        let writing = tokio::task::spawn_blocking(move || {
            let written = self.segments.append(&lines);
            (self, written)
        });
        let (mut task, written) = match writing.await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return None,
        };
        match written {
            Ok(()) => {
                if std::mem::take(&mut task.is_failing) {
                    tracing::info!("timeline is written again");
                }
            }
            Err(failure) => {
                metrics::TIMELINE_DROPPED.add(failure.dropped, &[]);
                // Said once per spell: a full disk stays full for many entries.
                if !std::mem::replace(&mut task.is_failing, true) {
                    tracing::warn!(
                        error = %failure.error,
                        cause = %failure.error.cause(),
                        "timeline cannot be written; entries are dropped"
                    );
                }
            }
        }
        Some(task)
    }
}

#[cfg(test)]
mod tests;
