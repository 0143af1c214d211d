//! Which limit a memory kill hit: the container's, the pod's, its class's, that of all pods, or the
//! machine itself.
//!
//! The kernel's event names the victim and not the limit. The cgroups' own counters tell: a charge
//! that does not fit raises the counter of the innermost level that it does not fit in, and a
//! machine that is out of memory raises none. [`Watch`] keeps the counters as last seen, and is
//! told of each container that starts, is killed in, or goes; it owns nothing else. On v1 the
//! counter (`memory.failcnt`) also rises when giving back caches was enough, so that a container
//! which reads many files at its limit may be named where an outer limit was hit.
//!
//! Reads are of a few cgroup files, which the kernel answers from memory: no blocking thread is
//! needed.

mod task;

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    host::{cgroup::read, hierarchy::CgroupVersion},
    metrics::{CHILD_OOM_KILLS, MAIN_OOM_KILLS},
    types::{clock::Mono, quantity::bytes_text},
};

pub use self::task::Task;

/// Kills so close together may stand on one rise of a counter, which the first has consumed.
const BURST: Duration = Duration::from_secs(1);

/// The level whose limit was hit, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    Container,
    Pod,
    /// The class of Burstable or BestEffort pods.
    Qos,
    /// All pods together: the node's allocatable memory.
    Pods,
    Machine,
}

/// What a memory kill is traced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub level: Level,
    /// In bytes, where it could be read.
    pub bytes: Option<u64>,
}

/// How often each level's limit was hit. None: no such level, or it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub container: Option<u64>,
    pub pod: Option<u64>,
    pub qos: Option<u64>,
    pub pods: Option<u64>,
}

impl Counters {
    fn levels(self) -> [(Level, Option<u64>); 4] {
        [
            (Level::Container, self.container),
            (Level::Pod, self.pod),
            (Level::Qos, self.qos),
            (Level::Pods, self.pods),
        ]
    }
}

/// The innermost level whose counter rose. A level never seen before rose if it was ever hit.
pub fn attribute(before: Counters, after: Counters) -> Option<Level> {
    before
        .levels()
        .into_iter()
        .zip(after.levels())
        .find(|((_, before), (_, after))| {
            after.is_some_and(|after| after > before.unwrap_or_default())
        })
        .map(|(_, (level, _))| level)
}

/// Last seen counters of the containers that run, and of the levels above them.
#[derive(Debug)]
pub struct Watch {
    version: CgroupVersion,
    /// Folder of the cgroup of all pods.
    root: PathBuf,
    seen: HashMap<PathBuf, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    hits: u64,
    limit: Option<u64>,
    rose_at: Option<Mono>,
}

impl Watch {
    /// `root` is the folder of the cgroup of all pods, in the hierarchy that limits memory.
    pub fn new(version: CgroupVersion, root: PathBuf) -> Self {
        Self {
            version,
            root,
            seen: HashMap::new(),
        }
    }

    /// A container's cgroup came up, or was found at start: what its counters hold is history. The
    /// levels above keep what was seen of them before.
    pub fn note_start(&mut self, container: &Path) {
        for (level, directory) in self.levels(container) {
            if level != Level::Container && self.seen.contains_key(&directory) {
                continue;
            }
            match self.read(&directory) {
                Ok(seen) => {
                    self.seen.insert(directory, seen);
                }
                Err(error) => {
                    tracing::debug!(%error, "memory counters of a new container not read");
                }
            }
        }
    }

    /// A process of the container was killed for memory just now. To be asked once for each kill,
    /// soon: what the cgroup could have told is lost with it.
    pub fn attribute_kill(&mut self, container: &Path, now: Mono) -> Limit {
        let levels = self.levels(container);
        let (mut before, mut after) = (Counters::default(), Counters::default());
        for (level, directory) in &levels {
            let old = self.seen.get(directory).copied();
            let new = self.read(directory);
            set(&mut before, *level, old.map(|seen| seen.hits));
            set(&mut after, *level, new.as_ref().ok().map(|seen| seen.hits));
            if let Ok(new) = new {
                let has_risen = new.hits > old.map_or(0, |old| old.hits);
                let rose_at = if has_risen {
                    Some(now)
                } else {
                    old.and_then(|old| old.rose_at)
                };
                self.seen.insert(directory.clone(), Seen { rose_at, ..new });
            }
        }
        let of = |wanted: Level| {
            let (_, directory) = levels.iter().find(|(level, _)| *level == wanted)?;
            self.seen.get(directory)
        };
        let rose_lately = || {
            levels.iter().map(|(level, _)| *level).find(|&level| {
                of(level)
                    .and_then(|seen| seen.rose_at)
                    .is_some_and(|rose_at| now.since(rose_at) <= BURST)
            })
        };
        // Its cgroup went before it could be read and no other limit was hit: its own, if any.
        let was_its_own = || {
            let had_limit = of(Level::Container).is_some_and(|seen| seen.limit.is_some());
            (after.container.is_none() && had_limit).then_some(Level::Container)
        };
        let level = attribute(before, after)
            .or_else(rose_lately)
            .or_else(was_its_own)
            .unwrap_or(Level::Machine);
        // The pod of one limited container has that container's limit, and reaches it first, by
        // what its pause container uses. The user wrote the container's.
        let bytes = |level| of(level).and_then(|seen| seen.limit);
        let is_same = bytes(Level::Pod).is_some() && bytes(Level::Pod) == bytes(Level::Container);
        let level = if level == Level::Pod && is_same {
            Level::Container
        } else {
            level
        };
        Limit {
            level,
            bytes: bytes(level),
        }
    }

    /// The container's cgroup is gone. Levels that no other container needs go too.
    pub fn forget(&mut self, container: &Path) {
        for (_, directory) in self.levels(container) {
            let is_needed = self
                .seen
                .keys()
                .any(|other| other != &directory && other.starts_with(&directory));
            if !is_needed {
                self.seen.remove(&directory);
            }
        }
    }

    /// How many cgroups are watched.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    fn read(&self, directory: &Path) -> Result<Seen, read::ReadError> {
        Ok(Seen {
            hits: read::memory_limit_hits(directory, self.version)?,
            limit: read::memory_limit(directory, self.version)?,
            rose_at: None,
        })
    }

    /// The levels of a container, innermost first: `root[/class]/pod/container`.
    fn levels(&self, container: &Path) -> Vec<(Level, PathBuf)> {
        let below = container
            .strip_prefix(&self.root)
            .map_or(0, |path| path.components().count());
        let names: &[Level] = match below {
            2 => &[Level::Container, Level::Pod, Level::Pods],
            3 => &[Level::Container, Level::Pod, Level::Qos, Level::Pods],
            _ => &[Level::Container],
        };
        names
            .iter()
            .copied()
            .zip(container.ancestors().map(Path::to_owned))
            .collect()
    }
}

fn set(counters: &mut Counters, level: Level, value: Option<u64>) {
    match level {
        Level::Container => counters.container = value,
        Level::Pod => counters.pod = value,
        Level::Qos => counters.qos = value,
        Level::Pods => counters.pods = value,
        Level::Machine => {}
    }
}

/// Counts a kill.
pub fn count(limit: Limit, is_main: bool) {
    let metric = if is_main {
        &MAIN_OOM_KILLS
    } else {
        &CHILD_OOM_KILLS
    };
    metric.add(1, &[("limit", limit.level.into())]);
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.level {
            Level::Container => "the container's limit",
            Level::Pod => "the pod's limit",
            Level::Qos => "the limit of the pod's QoS class",
            Level::Pods => "the limit of all pods together",
            Level::Machine => return f.write_str("the machine was out of memory"),
        };
        f.write_str(whose)?;
        if let Some(bytes) = self.bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
            write!(f, " of {}", bytes_text(bytes))?;
        }
        f.write_str(" was hit")
    }
}

/// The message of the pod's event for a killed process. `container` is the name in the pod.
pub fn kill_message(pid: u32, comm: &str, container: &str, limit: Limit) -> String {
    format!("Killed process {pid} ({comm}) of container \"{container}\" for memory: {limit}")
}

/// The message of the node's event SystemOOM, for a kill that no cgroup's limit caused (CGRP-18).
pub fn system_oom_message(pid: u32, comm: &str) -> String {
    format!("System OOM encountered, victim process: {comm}, pid: {pid}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rstest::rstest;

    use super::*;

    fn counters(container: u64, pod: u64, qos: u64, pods: u64) -> Counters {
        Counters {
            container: Some(container),
            pod: Some(pod),
            qos: Some(qos),
            pods: Some(pods),
        }
    }

    #[rstest]
    #[case::container(counters(4, 3, 3, 3), Some(Level::Container))]
    #[case::pod(counters(3, 4, 3, 3), Some(Level::Pod))]
    #[case::qos(counters(3, 3, 4, 3), Some(Level::Qos))]
    #[case::pods(counters(3, 3, 3, 4), Some(Level::Pods))]
    #[case::innermost(counters(4, 3, 4, 4), Some(Level::Container))]
    #[case::none(counters(3, 3, 3, 3), None)]
    #[case::the_container_is_gone(Counters { container: None, ..counters(0, 5, 3, 3) }, Some(Level::Pod))]
    fn the_limit_is_the_innermost_level_whose_counter_rose(
        #[case] after: Counters,
        #[case] want: Option<Level>,
    ) {
        assert_eq!(attribute(counters(3, 3, 3, 3), after), want);
    }

    /// A recorded v2 tree: `kubepods/burstable/podu/c`.
    struct Recorded {
        dir: tempfile::TempDir,
    }

    impl Recorded {
        fn new() -> Self {
            let recorded = Self {
                dir: tempfile::tempdir().expect("a folder"),
            };
            fs::create_dir_all(recorded.container()).expect("folders");
            for directory in ["", "burstable", "burstable/podu", "burstable/podu/c"] {
                recorded.record(directory, 0, "max");
            }
            recorded
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("kubepods")
        }

        fn container(&self) -> PathBuf {
            self.root().join("burstable/podu/c")
        }

        fn record(&self, directory: &str, oom: u64, limit: &str) {
            let directory = self.root().join(directory);
            let events = format!("low 0\nhigh 0\nmax 9\noom {oom}\noom_kill 7\noom_group_kill 0\n");
            fs::write(directory.join("memory.events.local"), events).expect("written");
            fs::write(directory.join("memory.max"), limit).expect("written");
        }

        fn watch(&self) -> Watch {
            let mut watch = Watch::new(CgroupVersion::V2, self.root());
            watch.note_start(&self.container());
            watch
        }
    }

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn a_kill_names_the_level_and_its_limit() {
        let tree = Recorded::new();
        let mut watch = tree.watch();
        tree.record("burstable/podu", 1, "134217728");
        let limit = watch.attribute_kill(&tree.container(), at(10));
        assert_eq!(
            kill_message(4711, "memhog", "app", limit),
            "Killed process 4711 (memhog) of container \"app\" for memory: \
             the pod's limit of 128Mi was hit"
        );
    }

    #[test]
    fn the_limit_of_a_pods_only_container_is_the_containers() {
        let tree = Recorded::new();
        tree.record("burstable/podu", 0, "67108864");
        tree.record("burstable/podu/c", 0, "67108864");
        let mut watch = tree.watch();
        tree.record("burstable/podu", 1, "67108864");
        let limit = watch.attribute_kill(&tree.container(), at(10));
        assert_eq!(limit.to_string(), "the container's limit of 64Mi was hit");
    }

    #[test]
    fn a_burst_of_kills_on_one_rise_has_one_cause() {
        let tree = Recorded::new();
        let mut watch = tree.watch();
        tree.record("burstable/podu/c", 2, "67108864");
        let first = watch.attribute_kill(&tree.container(), at(10));
        assert_eq!(first, watch.attribute_kill(&tree.container(), at(11)));
        let later = watch.attribute_kill(&tree.container(), at(20));
        assert_eq!(later.to_string(), "the machine was out of memory");
    }

    #[rstest]
    #[case("67108864", Level::Container)]
    #[case("max", Level::Machine)]
    fn a_container_that_is_gone_was_killed_by_its_own_limit_if_it_had_one(
        #[case] limit: &str,
        #[case] want: Level,
    ) {
        let tree = Recorded::new();
        tree.record("burstable/podu/c", 0, limit);
        let mut watch = tree.watch();
        fs::remove_dir_all(tree.container()).expect("removed");
        assert_eq!(watch.attribute_kill(&tree.container(), at(10)).level, want);
    }

    #[test]
    fn what_was_hit_before_the_watch_began_is_history() {
        let tree = Recorded::new();
        tree.record("burstable/podu/c", 5, "67108864");
        tree.record("burstable", 3, "max");
        let mut watch = tree.watch();
        let limit = watch.attribute_kill(&tree.container(), at(10));
        assert_eq!(limit.level, Level::Machine);
    }

    #[test]
    fn nothing_is_kept_of_containers_that_are_gone() {
        let tree = Recorded::new();
        let mut watch = tree.watch();
        assert_eq!(watch.len(), 4);
        watch.forget(&tree.container());
        assert!(watch.is_empty());
    }

    #[test]
    fn a_machine_that_is_out_of_memory_has_upstreams_event() {
        assert_eq!(
            system_oom_message(17, "hog"),
            "System OOM encountered, victim process: hog, pid: 17"
        );
    }
}
