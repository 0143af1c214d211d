//! Loads and attaches the eBPF programs; turns their ring buffer into a stream of events.
//!
//! Owns the programs and their maps. In: the pods' root and what is known of containers found at
//! start ([`Programs`]). Out: [`KernelNews`](crate::types::kernel::KernelNews) ([`Reader`]).
//!
//! Order of use, so that nothing is missed: [`open`] (attached from then on), [`Reader::run`],
//! [`Programs::follow`] the pods' root, then list the runtime and teach the main processes of the
//! containers that were already there with [`Programs::set_main`].

mod offsets;
mod reader;

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, ProgramError},
};
use ebpf::{LOSS_MAP, LOSS_RING, TRACKED_SETTLED, Tracked};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

pub use self::reader::Reader;
use super::{
    btf, heap,
    hierarchy::{self, Found, Hierarchy, Place},
};
use crate::types::id::CgroupId;

const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Lines of the verifier's log that an error shows: its last ones say what it refused.
const LOG_LINES: usize = 12;

/// How the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Size of the ring buffer: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Most cgroups that are followed at once: pods, containers and the few above them.
    pub max_tracked: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            // 500 pods with 15 containers each; a cgroup takes less than 100 bytes.
            max_tracked: 8192,
        }
    }
}

/// Why there are no kernel events, or why something could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel's type data {} cannot be read (a kernel with CONFIG_DEBUG_INFO_BTF is needed)", path.display())]
    NoTypes {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the kernel's type data {}: {source}", path.display())]
    Types { path: PathBuf, source: btf::Error },
    #[error("the kernel lacks what the programs need: {0}")]
    Missing(btf::Error),
    #[error("the mark_victim tracepoint hands over neither a task nor a pid")]
    VictimForm,
    #[error(
        "the bpf system call is not permitted (it needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN, and must not be filtered or locked down)"
    )]
    NotPermitted(#[source] io::Error),
    #[error("the ring buffer's size {bytes} is not a power of two of at least one page ({page})")]
    RingSize { bytes: u32, page: usize },
    #[error("cannot make the map {map}")]
    Map {
        map: String,
        #[source]
        source: io::Error,
    },
    #[error("the programs' object cannot be loaded: {source}")]
    Object {
        #[source]
        source: Box<EbpfError>,
    },
    #[error("the object has no {what}: it was built from other sources")]
    ObjectLacks { what: &'static str },
    #[error("the kernel refused the program {program} ({reason}); its last words: {log}")]
    Refused {
        program: &'static str,
        reason: io::Error,
        log: String,
    },
    #[error("the program {program} cannot be attached to the tracepoint {tracepoint}: {source}")]
    Attach {
        program: &'static str,
        tracepoint: &'static str,
        #[source]
        source: Box<ProgramError>,
    },
    #[error("cannot tell the agent's pid namespace")]
    PidNamespace(#[source] io::Error),
    #[error("cannot read the cgroup directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Hierarchy(#[from] hierarchy::Error),
    #[error("cannot use the programs' map {map}: {source}")]
    MapUse {
        map: &'static str,
        #[source]
        source: Box<MapError>,
    },
    #[error("cannot read the kernel's events")]
    Read(#[source] io::Error),
}

/// Totals since the load, by place. They only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub kernel_ring: u64,
    pub kernel_map: u64,
}

struct LossCounters(PerCpuArray<MapData, u64>);

impl fmt::Debug for LossCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.read())
    }
}

impl LossCounters {
    fn read(&self) -> Result<Losses, Error> {
        let total = |index| {
            let per_cpu = self.0.get(&index, 0).map_err(map_use("LOSSES"))?;
            Ok::<u64, Error>(per_cpu.iter().sum())
        };
        Ok(Losses {
            kernel_ring: total(LOSS_RING)?,
            kernel_map: total(LOSS_MAP)?,
        })
    }
}

/// The attached programs. Dropping it detaches them.
pub struct Programs {
    hierarchy: Hierarchy,
    tracked: Mutex<HashMap<MapData, u64, u64>>,
    pods_root: Mutex<Array<MapData, [u64; 2]>>,
    losses: Arc<LossCounters>,
    /// Holds the programs and their attachments.
    _object: Ebpf,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs")
            .field("hierarchy", &self.hierarchy)
            .field("losses", &self.losses)
            .finish_non_exhaustive()
    }
}

/// Loads the programs for this kernel and hierarchy and attaches them.
pub fn open(settings: &Settings, hierarchy: &Hierarchy) -> Result<(Programs, Reader), Error> {
    let opened = match open_within_limits(settings, hierarchy) {
        // Before Linux 5.11 maps and programs count as the process's locked memory, of which a
        // small limit is the default.
        Err(error @ Error::NotPermitted(_)) => match MemlockRaised::new() {
            Some(_raised) => open_within_limits(settings, hierarchy),
            None => Err(error),
        },
        other => other,
    };
    // The kernel's types took tens of MiB.
    heap::trim();
    opened
}

/// No limit of locked memory while it lives: children must not inherit that.
struct MemlockRaised(Rlimit);

impl MemlockRaised {
    /// `None` where that changes nothing or is not allowed.
    fn new() -> Option<Self> {
        let before = getrlimit(Resource::Memlock);
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        let raised = before != unlimited && setrlimit(Resource::Memlock, unlimited).is_ok();
        raised.then_some(Self(before))
    }
}

impl Drop for MemlockRaised {
    fn drop(&mut self) {
        if let Err(error) = setrlimit(Resource::Memlock, self.0) {
            warn!(%error, "The limit of locked memory cannot be put back");
        }
    }
}

fn open_within_limits(
    settings: &Settings,
    hierarchy: &Hierarchy,
) -> Result<(Programs, Reader), Error> {
    let page = rustix::param::page_size();
    if !settings.ring_bytes.is_power_of_two() || (settings.ring_bytes as usize) < page {
        return Err(Error::RingSize {
            bytes: settings.ring_bytes,
            page,
        });
    }
    let path = Path::new(KERNEL_TYPES);
    let data = fs::read(path).map_err(|source| Error::NoTypes {
        path: path.to_owned(),
        source,
    })?;
    let types = btf::Btf::parse(&data).map_err(|source| Error::Types {
        path: path.to_owned(),
        source,
    })?;
    let pid_namespace = fs::metadata("/proc/self/ns/pid").map_err(Error::PidNamespace)?;
    // The kernel's number of a namespace has 32 bits.
    let pid_namespace = pid_namespace.ino() as u32;
    let globals = offsets::globals(&types, hierarchy, pid_namespace).map_err(Error::Missing)?;
    let programs = offsets::programs(&types)?;
    drop(types);
    drop(data);

    let mut loader = EbpfLoader::new();
    // It has read the kernel's types for itself; here they are needed too, and twice is too much.
    loader.btf(None);
    let kernel = aya::Btf::from_sys_fs().map_err(|source| Error::Object {
        source: Box::new(source.into()),
    })?;
    loader
        .btf(Some(&kernel))
        .map_max_entries("EVENTS", settings.ring_bytes)
        .map_max_entries("TRACKED", settings.max_tracked);
    for (name, value) in &globals {
        loader.override_global(name, value, true);
    }
    let mut object = loader.load(ebpf::OBJECT).map_err(load_error)?;

    let ring = RingBuf::try_from(take(&mut object, "EVENTS")?).map_err(map_use("EVENTS"))?;
    let tracked = HashMap::try_from(take(&mut object, "TRACKED")?).map_err(map_use("TRACKED"))?;
    let root = Array::try_from(take(&mut object, "PODS_ROOT")?).map_err(map_use("PODS_ROOT"))?;
    let losses = take(&mut object, "LOSSES")?;
    let losses = PerCpuArray::try_from(losses).map_err(map_use("LOSSES"))?;

    for (program, tracepoint) in programs {
        attach(&mut object, program, tracepoint, &kernel)?;
    }
    let losses = Arc::new(LossCounters(losses));
    let programs = Programs {
        hierarchy: hierarchy.clone(),
        tracked: Mutex::new(tracked),
        pods_root: Mutex::new(root),
        losses: Arc::clone(&losses),
        _object: object,
    };
    Ok((programs, Reader::new(ring, losses)))
}

fn take(object: &mut Ebpf, what: &'static str) -> Result<aya::maps::Map, Error> {
    object.take_map(what).ok_or(Error::ObjectLacks { what })
}

fn map_use(map: &'static str) -> impl Fn(MapError) -> Error {
    move |source| Error::MapUse {
        map,
        source: Box::new(source),
    }
}

fn attach(
    object: &mut Ebpf,
    program: &'static str,
    tracepoint: &'static str,
    kernel: &aya::Btf,
) -> Result<(), Error> {
    let failed = |source| Error::Attach {
        program,
        tracepoint,
        source: Box::new(source),
    };
    let found: &mut BtfTracePoint = object
        .program_mut(program)
        .ok_or(Error::ObjectLacks { what: program })?
        .try_into()
        .map_err(failed)?;
    found
        .load(tracepoint, kernel)
        .map_err(|error| match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => {
                let log = last_lines(&verifier_log.to_string());
                if log.is_empty() && io_error.kind() == io::ErrorKind::PermissionDenied {
                    Error::NotPermitted(io_error)
                } else {
                    Error::Refused {
                        program,
                        reason: io_error,
                        log,
                    }
                }
            }
            other => failed(other),
        })?;
    found.attach().map_err(failed)?;
    Ok(())
}

fn load_error(error: EbpfError) -> Error {
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error }) => {
            let is_refused = io_error.kind() == io::ErrorKind::PermissionDenied
                || io_error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error());
            if is_refused {
                Error::NotPermitted(io_error)
            } else {
                Error::Map {
                    map: name,
                    source: io_error,
                }
            }
        }
        other => Error::Object {
            source: Box::new(other),
        },
    }
}

/// The end of the verifier's log on one line, without its closing statistics.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("processed "))
        .collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
}

impl Programs {
    /// Follows everything below the pods' root: what is there now, and what comes. Returns what is
    /// there. A class's directory that is made later wants [`Self::track_root`].
    pub fn follow(&self, pods_root: &Path) -> Result<Vec<Found>, Error> {
        self.track_root(pods_root)?;
        let mut refused = None;
        let walked = hierarchy::walk(pods_root, &mut |found| {
            self.follow_one(found)
                .map_err(|error| io::Error::other(refused.insert(error).to_string()))
        });
        match (walked, refused) {
            (_, Some(error)) => Err(error),
            (Ok(found), None) => Ok(found),
            (Err(source), None) => Err(Error::Directory {
                path: pods_root.to_owned(),
                source,
            }),
        }
    }

    fn follow_one(&self, found: &Found) -> Result<(), Error> {
        match found.place {
            // The programs take a class for a pod, since they know no names.
            Place::Qos(_) => self.write(found.id, found.place.levels_below(), None, true)?,
            Place::Pod(_) | Place::Container(_) => {
                self.track(found.id, found.place.levels_below(), None)?;
            }
        }
        // Removed meanwhile, perhaps before it was known: then the kernel took nothing out.
        if hierarchy::cgroup_id(&found.path).ok() != Some(found.id) {
            match self.tracked().remove(&found.id.0) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(MapError::SyscallError(error))
                    if error.io_error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(map_use("TRACKED")(source)),
            }
        }
        Ok(())
    }

    /// Follows two levels below a directory: pods and containers. For the pods' root, and for the
    /// directories of the QoS classes, as soon as they are made. The highest one is the root: nested
    /// cgroups of containers are found only below it.
    pub fn track_root(&self, directory: &Path) -> Result<CgroupId, Error> {
        let depth = u64::from(self.hierarchy.depth(directory)?);
        let id = hierarchy::cgroup_id(directory).map_err(|source| Error::Directory {
            path: directory.to_owned(),
            source,
        })?;
        let mut root = lock(&self.pods_root);
        let [known, known_depth] = root.get(&0, 0).map_err(map_use("PODS_ROOT"))?;
        if known == 0 || depth <= known_depth {
            root.set(0, [id.0, depth], 0)
                .map_err(map_use("PODS_ROOT"))?;
        }
        drop(root);
        self.write(id, 2, None, true)?;
        Ok(id)
    }

    /// Follows one cgroup, of a container (`levels_below` 0) or a pod (1). What the kernel knows of
    /// its main process stays unless `main_pid` says otherwise; a pid is that of the agent's own
    /// pid namespace.
    ///
    /// A cgroup that is gone already would stay in the map: this is for cgroups known to be there.
    pub fn track(
        &self,
        cgroup: CgroupId,
        levels_below: u8,
        main_pid: Option<u32>,
    ) -> Result<(), Error> {
        self.write(cgroup, levels_below, main_pid, false)
    }

    /// Tells the programs a container's main process, if they follow that cgroup; whether they do.
    pub fn set_main(&self, cgroup: CgroupId, pid: u32) -> Result<bool, Error> {
        let mut tracked = self.tracked();
        let Some(mut known) = get(&tracked, cgroup)? else {
            return Ok(false);
        };
        let settled = Tracked {
            main_pid: pid,
            state: known.state | TRACKED_SETTLED,
            ..known
        };
        if known == settled {
            return Ok(true);
        }
        known = settled;
        match tracked.insert(cgroup.0, known.to_bits(), BPF_EXIST) {
            Ok(()) => Ok(true),
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(false)
            }
            Err(source) => Err(map_use("TRACKED")(source)),
        }
    }

    fn write(
        &self,
        cgroup: CgroupId,
        levels_below: u8,
        main_pid: Option<u32>,
        anew: bool,
    ) -> Result<(), Error> {
        let mut tracked = self.tracked();
        let known = if anew { None } else { get(&tracked, cgroup)? };
        let mut value = known.unwrap_or_default();
        value.levels_below = levels_below;
        if let Some(pid) = main_pid {
            value.main_pid = pid;
            value.state |= TRACKED_SETTLED;
        }
        if known == Some(value) {
            return Ok(());
        }
        tracked
            .insert(cgroup.0, value.to_bits(), BPF_ANY)
            .map_err(map_use("TRACKED"))
    }

    pub fn losses(&self) -> Result<Losses, Error> {
        self.losses.read()
    }

    fn tracked(&self) -> MutexGuard<'_, HashMap<MapData, u64, u64>> {
        lock(&self.tracked)
    }
}

/// Flags of a map's update, from the kernel's `bpf.h`.
const BPF_ANY: u64 = 0;
const BPF_EXIST: u64 = 2;

fn get(tracked: &HashMap<MapData, u64, u64>, cgroup: CgroupId) -> Result<Option<Tracked>, Error> {
    match tracked.get(&cgroup.0, 0) {
        Ok(bits) => Ok(Some(Tracked::from_bits(bits))),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(source) => Err(map_use("TRACKED")(source)),
    }
}

/// The maps are whole even where a holder of the lock panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_is_no_power_of_two_of_pages_is_refused_before_anything_is_loaded() {
        let hierarchy = Hierarchy {
            version: hierarchy::CgroupVersion::V1,
            id: 1,
            mount: "/nowhere".into(),
            mount_depth: 0,
        };
        for ring_bytes in [0, 1, 2048, 4095, 12288] {
            let settings = Settings {
                ring_bytes,
                ..Settings::default()
            };
            let error = open(&settings, &hierarchy).map(drop).unwrap_err();
            assert!(matches!(error, Error::RingSize { .. }), "{ring_bytes}");
        }
    }

    #[test]
    fn the_verifiers_last_words_are_kept_without_its_statistics() {
        let log = "0: R1=ctx()\n1: r2 = 5\nR2 invalid mem access 'scalar'\nprocessed 2 insns\n\n";
        assert_eq!(
            last_lines(log),
            "0: R1=ctx() | 1: r2 = 5 | R2 invalid mem access 'scalar'"
        );
        let long: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert!(last_lines(&long).starts_with("88 | "));
        assert_eq!(last_lines(""), "");
    }
}
