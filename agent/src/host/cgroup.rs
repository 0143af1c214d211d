//! Cgroups of pods: made, limited, read and removed.
//!
//! [`Cgroups`] owns the part of the hierarchy below the pods' root: `kubepods`, its QoS classes and
//! one cgroup for each pod; what is below a pod's is the runtime's. It has no state but the kernel's
//! own: every question is answered from the file system, so that an agent which was restarted
//! knows what the last one made. Only the cgroupfs driver is built. Inventory rows CGRP-01..13.
//!
//! Calls touch the cgroup file system and are made on blocking threads.

mod limits;
pub mod read;
mod tree;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use limits::Limits;
use rustix::process::{Pid, Signal, kill_process};
pub use tree::Tree;

use crate::{
    config::{CgroupDriver, CgroupSettings},
    host::hierarchy::CgroupVersion,
    metrics::CGROUP_MANAGER_DURATION,
    types::{
        id::PodUid,
        pod::Pod,
        quantity::Quantity,
        resources::{MIN_SHARES, QosClass},
    },
};

/// The cgroup of all pods.
const PODS: &str = "kubepods";
const POD_PREFIX: &str = "pod";

/// How often leftovers of a pod are killed before it is called failed (CGRP-13).
const KILL_PASSES: usize = 5;
/// Waits between two attempts to remove a cgroup: a killed process leaves it only once it is
/// reaped. Together 1.27 s.
const REMOVE_WAITS: [Duration; 7] = [
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(320),
    Duration::from_millis(640),
];

/// What the machine has to share out.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub cpu: Quantity,
    pub memory: Quantity,
    /// Most processes and threads.
    pub pids: Quantity,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cgroupDriver {driver} is not built yet: use cgroupfs")]
    Driver { driver: CgroupDriver },
    #[error("cannot read the mount table")]
    Mounts {
        #[source]
        source: procfs::ProcError,
    },
    #[error("no cgroup v2 file system is mounted")]
    NoV2Mount,
    #[error("system validation failed - Following Cgroup subsystem not mounted: [{missing}]")]
    V1Missing { missing: String },
    #[error("{text}")]
    Invalid { text: String },
    #[error(
        "invalid Node Allocatable configuration. Resource \"{resource}\" has a reservation of \
         {reserved} but capacity of {capacity}. Expected capacity >= reservation."
    )]
    Reservation {
        resource: &'static str,
        reserved: Quantity,
        capacity: Quantity,
    },
    #[error("cannot make the cgroup {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {value:?} to {}: {reason}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        reason: String,
    },
    #[error("{} holds {found:?} after {value:?} was written", path.display())]
    NotTaken {
        path: PathBuf,
        value: String,
        found: String,
    },
    #[error(transparent)]
    Read(#[from] read::ReadError),
    #[error("cannot list {}", path.display())]
    Walk {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to kill all the processes attached to the {} cgroup: {left:?} are left", path.display())]
    Kill { path: PathBuf, left: Vec<u32> },
    #[error("unable to destroy the cgroup {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("work on cgroups was stopped")]
    Stopped,
}

/// The pods' part of the cgroup hierarchy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: CgroupSettings,
    machine: Machine,
    tree: Tree,
}

impl Cgroups {
    /// Finds the mounted hierarchies; makes nothing yet.
    pub fn new(
        settings: &CgroupSettings,
        version: CgroupVersion,
        machine: Machine,
    ) -> Result<Self, Error> {
        Self::on_tree(settings, machine, Tree::detect(version)?)
    }

    /// As [`Self::new`], on a hierarchy that is given.
    pub fn on_tree(settings: &CgroupSettings, machine: Machine, tree: Tree) -> Result<Self, Error> {
        match settings.driver {
            CgroupDriver::Cgroupfs => {}
            CgroupDriver::Systemd => {
                return Err(Error::Driver {
                    driver: settings.driver,
                });
            }
        }
        check_reservations(settings, &machine)?;
        Ok(Self(Arc::new(Inner {
            settings: settings.clone(),
            machine,
            tree,
        })))
    }

    pub fn version(&self) -> CgroupVersion {
        self.0.tree.version()
    }

    /// The folder of the cgroup of all pods, in the hierarchy that limits memory: what is followed.
    pub fn pods_root(&self) -> PathBuf {
        self.0.memory_directory(&self.0.pods_name())
    }

    /// The folder of a pod's cgroup in the hierarchy that limits memory.
    pub fn pod_directory(&self, pod: &Pod) -> PathBuf {
        self.0.memory_directory(&self.0.pod_name(pod))
    }

    /// What the runtime is told as a pod's `cgroup_parent`; empty without a tree of classes
    /// (CGRP-14).
    pub fn parent_for_runtime(&self, pod: &Pod) -> String {
        if self.0.settings.per_qos {
            self.0.pod_name(pod)
        } else {
            String::new()
        }
    }

    /// Makes the cgroups of all pods and of the classes, once at start, and gives them their
    /// weights. `active` are the pods known by then.
    ///
    /// The configured root must be there with all controllers (CGRP-01, CGRP-02).
    pub async fn ensure_root(&self, active: &[Pod]) -> Result<(), Error> {
        let active = active.to_vec();
        self.blocking("create", move |inner| {
            let root = &inner.settings.root;
            inner.tree.validate(root).map_err(|error| Error::Invalid {
                text: format!("invalid configuration: {error}"),
            })?;
            if !inner.settings.per_qos {
                return Ok(());
            }
            let pods = inner.pods_name();
            if inner.tree.validate(&pods).is_err() {
                inner.tree.make(&pods)?;
                let limits = limits::of_all_pods(&inner.machine, &inner.settings);
                // An over-full machine may refuse its limits; they are enforced apart.
                if let Err(error) = limits::apply(&inner.tree, &pods, &limits) {
                    tracing::warn!(%error, "limits of all pods not set");
                }
            }
            inner.tree.validate(&pods).map_err(|error| Error::Invalid {
                text: format!(
                    "error validating root container [{}] : {error}",
                    pods.trim_matches('/').replace('/', " ")
                ),
            })?;
            for class in [QosClass::Burstable, QosClass::BestEffort] {
                let name = inner.class_name(class);
                if inner.tree.validate(&name).is_err() {
                    inner.tree.make(&name)?;
                }
            }
            inner.update_classes(&active)
        })
        .await
    }

    /// Limits all pods together to what the machine has less what is reserved (CGRP-10). Fails
    /// while pods use more memory than that: try again each minute. The event texts are
    /// [`enforced_message`] and [`not_enforced_message`].
    pub async fn enforce_allocatable(&self) -> Result<(), Error> {
        self.blocking("update", |inner| {
            if !inner.settings.per_qos {
                return Ok(());
            }
            let limits = limits::of_all_pods(&inner.machine, &inner.settings);
            limits::apply(&inner.tree, &inner.pods_name(), &limits)
        })
        .await
    }

    /// Makes a pod's cgroup where it is missing, with its limits; true if it was. One that exists is
    /// left as it is (CGRP-03, CGRP-23).
    pub async fn ensure_pod(&self, pod: &Pod) -> Result<bool, Error> {
        if self.exists(pod).await? {
            return Ok(false);
        }
        let pod = pod.clone();
        self.blocking("create", move |inner| {
            let name = inner.pod_name(&pod);
            let limits = limits::of_pod(&pod, &inner.settings);
            let made = inner
                .tree
                .make(&name)
                .and_then(|()| limits::apply(&inner.tree, &name, &limits));
            if made.is_err() {
                // Half-made it would be taken for whole, and unlimited, from now on.
                for directory in inner.tree.directories(&name) {
                    if let Err(error) = tree::remove(&directory) {
                        tracing::warn!(%error, "half-made cgroup of a pod not removed");
                    }
                }
            }
            made.map(|()| true)
        })
        .await
    }

    /// Does the pod's cgroup exist, with all controllers? Without a tree of classes it always does.
    pub async fn exists(&self, pod: &Pod) -> Result<bool, Error> {
        let pod = pod.clone();
        self.run(move |inner| {
            Ok(!inner.settings.per_qos || inner.tree.validate(&inner.pod_name(&pod)).is_ok())
        })
        .await
    }

    /// Weighs the classes by the pods that are active now: before a pod's cgroup is made, after a
    /// pod was killed, and each minute (CGRP-08).
    pub async fn update_qos(&self, active: &[Pod]) -> Result<(), Error> {
        let active = active.to_vec();
        self.blocking("update", move |inner| {
            if inner.settings.per_qos {
                inner.update_classes(&active)
            } else {
                Ok(())
            }
        })
        .await
    }

    /// Gives a pod that is over the least weight, while its volumes keep its cgroup from being
    /// removed (CGRP-13).
    pub async fn reduce_cpu(&self, uid: &PodUid) -> Result<(), Error> {
        let uid = uid.clone();
        self.blocking("update", move |inner| {
            let limits = Limits {
                shares: Some(MIN_SHARES),
                ..Limits::default()
            };
            for name in inner.names_of(&uid) {
                if let Some(directory) = inner.tree.directory("cpu", &name)
                    && directory.exists()
                {
                    limits::apply(&inner.tree, &name, &limits)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Kills what is left in a pod's cgroup and removes it from every hierarchy, children first
    /// (CGRP-13). Nothing there is fine.
    pub async fn remove_pod(&self, uid: &PodUid) -> Result<(), Error> {
        let started = tokio::time::Instant::now();
        let result = self.kill_and_remove(uid).await;
        record("destroy", started);
        result
    }

    async fn kill_and_remove(&self, uid: &PodUid) -> Result<(), Error> {
        for pass in 1.. {
            let uid = uid.clone();
            match self.run(move |inner| inner.kill_left(&uid)).await {
                Ok(0) => break,
                Ok(_) if pass < KILL_PASSES => {}
                // Those killed last may be gone by the time of the removal, which tells.
                Ok(_) => break,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(REMOVE_WAITS[0]).await;
        }
        let mut waits = REMOVE_WAITS.into_iter();
        loop {
            let uid = uid.clone();
            let result = self
                .run(move |inner| {
                    let names = inner.names_of(&uid);
                    names
                        .iter()
                        .flat_map(|name| inner.tree.directories(name))
                        .try_for_each(|directory| tree::remove(&directory))
                })
                .await;
            match (result, waits.next()) {
                (Err(Error::Remove { source, .. }), Some(wait))
                    if source.kind() == io::ErrorKind::ResourceBusy =>
                {
                    tokio::time::sleep(wait).await;
                }
                (result, _) => return result,
            }
        }
    }

    /// The pods that have a cgroup in any hierarchy.
    pub async fn pod_uids(&self) -> Result<BTreeSet<PodUid>, Error> {
        self.run(|inner| {
            let mut found = BTreeSet::new();
            for class in [
                QosClass::Guaranteed,
                QosClass::Burstable,
                QosClass::BestEffort,
            ] {
                let name = inner.class_name(class);
                for directory in inner.tree.directories(&name) {
                    found.extend(pods_in(&directory)?);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let started = tokio::time::Instant::now();
        let result = self.run(work).await;
        record(operation, started);
        result
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .map_err(|_error: tokio::task::JoinError| Error::Stopped)?
    }
}

impl Inner {
    /// `/kubepods`, below the configured root.
    fn pods_name(&self) -> String {
        format!("{}/{PODS}", self.settings.root.trim_end_matches('/'))
    }

    fn class_name(&self, class: QosClass) -> String {
        let pods = self.pods_name();
        match class {
            QosClass::Guaranteed => pods,
            QosClass::Burstable => format!("{pods}/burstable"),
            QosClass::BestEffort => format!("{pods}/besteffort"),
        }
    }

    fn pod_name(&self, pod: &Pod) -> String {
        format!("{}/{POD_PREFIX}{}", self.class_name(pod.qos()), pod.uid())
    }

    /// Where a pod's cgroup may be; its class is not known for one that nobody wants.
    fn names_of(&self, uid: &PodUid) -> [String; 3] {
        [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ]
        .map(|class| format!("{}/{POD_PREFIX}{uid}", self.class_name(class)))
    }

    fn memory_directory(&self, name: &str) -> PathBuf {
        self.tree.mount().join(name.trim_start_matches('/'))
    }

    fn update_classes(&self, active: &[Pod]) -> Result<(), Error> {
        [QosClass::Burstable, QosClass::BestEffort]
            .into_iter()
            .try_for_each(|class| {
                let limits = limits::of_class(class, active);
                limits::apply(&self.tree, &self.class_name(class), &limits)
            })
    }

    /// Sends SIGKILL to every process in the pod's cgroups; answers how many there were.
    fn kill_left(&self, uid: &PodUid) -> Result<usize, Error> {
        let mut all = BTreeSet::new();
        for name in self.names_of(uid) {
            for directory in self.tree.directories(&name) {
                let processes = tree::processes_below(&directory)?;
                // 0 is a process that this pid namespace can't name.
                if processes.contains(&0) {
                    return Err(Error::Kill {
                        path: directory,
                        left: processes,
                    });
                }
                all.extend(processes);
            }
        }
        for &process in &all {
            let id = i32::try_from(process).ok().and_then(Pid::from_raw);
            if let Some(id) = id
                && let Err(error) = kill_process(id, Signal::KILL)
                && error != rustix::io::Errno::SRCH
            {
                tracing::warn!(pid = process, %error, "process of a removed pod not killed");
            }
        }
        Ok(all.len())
    }
}

fn check_reservations(settings: &CgroupSettings, machine: &Machine) -> Result<(), Error> {
    let (system, kube) = (settings.system_reserved, settings.kube_reserved);
    let all = [
        ("cpu", system.cpu + kube.cpu, machine.cpu),
        ("memory", system.memory + kube.memory, machine.memory),
        ("pid", system.pids + kube.pids, machine.pids),
    ];
    for (resource, reserved, capacity) in all {
        if reserved > capacity {
            return Err(Error::Reservation {
                resource,
                reserved,
                capacity,
            });
        }
    }
    Ok(())
}

fn pods_in(directory: &Path) -> Result<Vec<PodUid>, Error> {
    let failed = |source| Error::Walk {
        path: directory.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if let Some(uid) = name.to_str().and_then(|name| name.strip_prefix(POD_PREFIX))
            && !uid.is_empty()
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            found.push(PodUid::from(uid));
        }
    }
    Ok(found)
}

fn record(operation: &str, started: tokio::time::Instant) {
    let seconds = started.elapsed().as_secs_f64();
    CGROUP_MANAGER_DURATION.record(seconds, &[("operation_type", operation)]);
}

/// The message of the event NodeAllocatableEnforced.
pub fn enforced_message() -> &'static str {
    "Updated Node Allocatable limit across pods"
}

/// The message of the event FailedNodeAllocatableEnforcement.
pub fn not_enforced_message(error: &Error) -> String {
    let mut text = format!("Failed to update Node Allocatable Limits [\"{PODS}\"]: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
