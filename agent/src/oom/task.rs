//! Reads the counters at each memory kill and says whose limit was hit. Kept apart from the PLEG,
//! which must not wait for files.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Level, Limit, Watch, count, kill_message, system_oom_message};
use crate::{
    host::cgroup::Cgroups,
    pleg::Cache,
    timeline::Recorder,
    types::{
        clock::Mono,
        id::{CgroupId, ContainerId, PodUid},
        kernel::MemoryNews,
        reason::event,
        runtime::SharedRuntimePod,
        timeline::{self, Entry},
    },
};

/// A container may be killed before the runtime's word of its start has been read. Its name is worth
/// so long a wait.
const NAME_WITHIN: Duration = Duration::from_secs(2);
/// So many may wait for a name; in a storm of kills beyond it the id has to do.
const NAMELESS: usize = 256;

/// With so many containers known, and each time there are twice as many again, those whose removal
/// was not told are looked for.
const PRUNE_AT: usize = 256;

/// Owns the counters last seen. Run it with [`Task::run`].
#[derive(Debug)]
pub struct Task {
    watch: Watch,
    pods_root: PathBuf,
    paths: HashMap<CgroupId, PathBuf>,
    /// At how many paths to prune next.
    prune_at: usize,
    cache: Cache,
    recorder: Recorder,
    news: mpsc::Receiver<MemoryNews>,
    /// Kills that wait for their container's name.
    nameless: JoinSet<()>,
}

impl Task {
    pub fn new(
        cgroups: &Cgroups,
        cache: Cache,
        recorder: Recorder,
        news: mpsc::Receiver<MemoryNews>,
    ) -> Self {
        let pods_root = cgroups.pods_root();
        let watch = Watch::new(cgroups.version(), pods_root.clone());
        Self {
            watch,
            pods_root,
            paths: HashMap::new(),
            prune_at: PRUNE_AT,
            cache,
            recorder,
            news,
            nameless: JoinSet::new(),
        }
    }

    /// Ends with `stop`, or when nobody sends news any more.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let news = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = self.nameless.join_next() => continue,
                news = self.news.recv() => news,
            };
            let Some(news) = news else {
                // The PLEG has ended; the agent follows.
                return stop.cancelled().await;
            };
            self.on_news(news);
        }
    }

    fn on_news(&mut self, news: MemoryNews) {
        match news {
            MemoryNews::Made {
                cgroup,
                uid,
                container,
            } => {
                if let Some(path) = self.path_of(&uid, &container) {
                    self.watch.note_start(&path);
                    self.paths.insert(cgroup, path);
                    if self.paths.len() >= self.prune_at {
                        self.prune();
                    }
                }
            }
            MemoryNews::Removed { cgroup } => {
                if let Some(path) = self.paths.remove(&cgroup) {
                    self.watch.forget(&path);
                }
            }
            MemoryNews::Killed {
                at,
                cgroup,
                uid,
                container,
                pid,
                comm,
                is_main,
            } => {
                let path = match self.paths.get(&cgroup) {
                    Some(path) => Some(path.clone()),
                    None => self.path_of(&uid, &container),
                };
                if let Some(path) = path {
                    self.on_kill(&path, at, &uid, &container, pid, &comm, is_main);
                }
            }
        }
    }

    /// Drops what is gone although no news said so: they may be lost, or not have fitted the queue.
    fn prune(&mut self) {
        for (_, path) in self.paths.extract_if(|_, path| !path.is_dir()) {
            self.watch.forget(&path);
        }
        self.prune_at = PRUNE_AT.max(2 * self.paths.len());
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one kill, taken apart in the one place above"
    )]
    fn on_kill(
        &mut self,
        path: &std::path::Path,
        at: Mono,
        uid: &PodUid,
        id: &ContainerId,
        pid: u32,
        comm: &str,
        is_main: bool,
    ) {
        let limit = self.watch.attribute_kill(path, at);
        count(limit, is_main);
        let kill = Kill {
            at,
            uid: uid.clone(),
            id: id.clone(),
            pid,
            comm: comm.to_owned(),
            is_main,
            limit,
        };
        let pod = self.cache.get(uid);
        let is_known = pod.as_ref().is_some_and(|pod| pod.container(id).is_some());
        if is_known || self.nameless.len() >= NAMELESS {
            kill.record(pod, &self.recorder);
            return;
        }
        let (cache, recorder) = (self.cache.clone(), self.recorder.clone());
        self.nameless.spawn(async move {
            let named = timeout(NAME_WITHIN, cache.wait_container(&kill.uid, &kill.id)).await;
            kill.record(named.ok().or(pod), &recorder);
        });
    }

    /// The container's folder; none where it is gone already.
    fn path_of(&self, uid: &PodUid, container: &ContainerId) -> Option<PathBuf> {
        ["burstable", "besteffort", ""]
            .into_iter()
            .map(|class| {
                self.pods_root
                    .join(class)
                    .join(format!("pod{uid}"))
                    .join(container.as_str())
            })
            .find(|path| path.is_dir())
    }
}

/// A kill whose limit is known.
#[derive(Debug)]
struct Kill {
    at: Mono,
    uid: PodUid,
    id: ContainerId,
    pid: u32,
    comm: String,
    is_main: bool,
    limit: Limit,
}

impl Kill {
    fn record(self, pod: Option<SharedRuntimePod>, recorder: &Recorder) {
        let name = pod
            .as_ref()
            .and_then(|pod| pod.container(&self.id))
            .map_or_else(|| self.id.to_string(), |container| container.name.clone());
        let entry = |reason: &str, message: String| Entry {
            kernel_at: Some(self.at.to_wall()),
            pod: pod.as_ref().map(|pod| pod.key.clone()),
            uid: Some(self.uid.clone()),
            container: Some(name.clone()),
            container_id: Some(self.id.clone()),
            ..Entry::now(timeline::Level::Warning, reason, message)
        };
        let reason = if self.is_main {
            event::OOM_KILLED
        } else {
            event::CHILD_OOM_KILLED
        };
        let message = kill_message(self.pid, &self.comm, &name, self.limit);
        tracing::info!(uid = %self.uid, container = name, %message, "A process was killed for memory");
        recorder.record(entry(reason, message));
        if self.limit.level == Level::Machine {
            let message = system_oom_message(self.pid, &self.comm);
            recorder.record(entry(event::SYSTEM_OOM, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::hierarchy::CgroupVersion, timeline};

    #[tokio::test]
    async fn containers_whose_removal_nobody_told_are_forgotten() {
        let dir = tempfile::tempdir().expect("a folder");
        let (recorder, _timeline) =
            timeline::open(dir.path().join("timeline"), 1 << 20).expect("a timeline");
        let root = dir.path().join("kubepods");
        let mut task = Task {
            watch: Watch::new(CgroupVersion::V2, root.clone()),
            pods_root: root.clone(),
            paths: HashMap::new(),
            prune_at: PRUNE_AT,
            cache: Cache::default(),
            recorder,
            news: mpsc::channel(1).1,
            nameless: JoinSet::new(),
        };
        for n in 0..4 * PRUNE_AT as u64 {
            let container = root.join(format!("podu/{n:08x}"));
            std::fs::create_dir_all(&container).expect("made");
            task.on_news(MemoryNews::Made {
                cgroup: CgroupId(n),
                uid: PodUid::from("u"),
                container: ContainerId::from(format!("{n:08x}")),
            });
            std::fs::remove_dir(&container).expect("removed");
            assert!(task.paths.len() <= PRUNE_AT, "{}", task.paths.len());
        }
    }
}
