//! Where pods come from: merges every source into one ordered stream of updates.
//!
//! Sources: `file` (a folder of manifests or one file), `http` (a URL). The third, `api` (the pods
//! that an API server binds to this node), has its place beside them: one more module that hands
//! complete sets to the merge, with `SourceKind::Api`.
//!
//! - **State**: each source owns what it last read; the merge owns the desired pods by source.
//! - **In**: files, HTTP answers.
//! - **Out**: `PodUpdate`s in order, for the sync loop; a view of the manifests that are refused.
//!
//! A source hands over complete sets, so losing one never loses a change. A source that can't be
//! read keeps its last set (SRC-03, SRC-04).

pub mod fields;

mod decode;
mod defaults;
mod file;
mod http;
mod manifest;
mod merge;
mod problem;
mod text;
mod validate;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod as PodObject};
use serde::Serialize;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::{SourceSettings, Strictness},
    health::{Board, Grade, Part},
    metrics,
    types::{
        clock,
        pod::{Pod, SourceKind},
    },
};

pub use defaults::CONFIG_HASH;
pub use merge::{CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, Op, PodUpdate};
pub use problem::Problem;

use manifest::{Origin, Rules};
use merge::Merge;

/// Updates that may wait for the sync loop; upstream's bound (SRC-01). When it is full the merge
/// waits, and the sources behind it: they hand over whole sets, so nothing is lost by waiting.
const UPDATES: usize = 50;
/// Sets that may wait for the merge: one for each source that there can be.
const SETS: usize = 3;

/// A manifest that can't be used, as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub source: SourceKind,
    /// The file's path or the URL.
    pub origin: String,
    /// One line: every problem with its field.
    pub message: String,
    /// The pod of this manifest's last good version is kept until the manifest is good or gone.
    pub keeps_last: bool,
    pub since: Timestamp,
}

/// What others may know of the sources. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sources {
    configured: Arc<[SourceKind]>,
    refusals: watch::Receiver<Vec<Refusal>>,
}

impl Sources {
    /// Sources that were set up. "All sources ready" is an update of each (SRC-08, SRC-14).
    pub fn configured(&self) -> &[SourceKind] {
        &self.configured
    }

    /// Manifests that are refused now.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.refusals.borrow().clone()
    }

    /// Changes with each refusal that comes or goes.
    pub fn watch_refusals(&self) -> watch::Receiver<Vec<Refusal>> {
        self.refusals.clone()
    }
}

/// Reads the sources and sends what changes, until it is told to stop.
#[derive(Debug)]
pub struct Task {
    file: Option<file::Source>,
    http: Option<http::Source>,
    merging: Merging,
}

/// Sets up the sources that the settings name. `kept` is the folder for copies of the last good
/// manifests. Nothing is read before the task runs.
pub fn new(
    settings: &SourceSettings,
    node_name: &str,
    kept: Option<PathBuf>,
    board: Board,
) -> (Sources, Task, mpsc::Receiver<PodUpdate>) {
    let (updates_tx, updates_rx) = mpsc::channel(UPDATES);
    let (sets_tx, sets_rx) = mpsc::channel(SETS);
    let (refusals_tx, refusals_rx) = watch::channel(Vec::new());
    let rules = Rules {
        node_name: node_name.to_owned(),
        strictness: settings.strictness,
    };
    let outlet = |kind| Outlet {
        kind,
        sets: sets_tx.clone(),
        refusals: refusals_tx.clone(),
    };
    let file = settings
        .file
        .clone()
        .map(|file| file::Source::new(file, rules.clone(), kept, outlet(SourceKind::File)));
    let http = settings
        .http
        .clone()
        .map(|http| http::Source::new(http, rules.clone(), outlet(SourceKind::Http)));
    let configured: Arc<[SourceKind]> = [
        file.is_some().then_some(SourceKind::File),
        http.is_some().then_some(SourceKind::Http),
    ]
    .into_iter()
    .flatten()
    .collect();
    let sources = Sources {
        configured: configured.clone(),
        refusals: refusals_rx.clone(),
    };
    let merging = Merging {
        configured,
        sets: sets_rx,
        refusals: refusals_rx,
        updates: updates_tx,
        board,
    };
    let task = Task {
        file,
        http,
        merging,
    };
    (sources, task, updates_rx)
}

impl Task {
    pub async fn run(self, stop: CancellationToken) {
        let mut parts = JoinSet::new();
        if let Some(file) = self.file {
            parts.spawn(file.run(stop.clone()));
        }
        if let Some(http) = self.http {
            parts.spawn(http.run(stop.clone()));
        }
        parts.spawn(self.merging.run(stop));
        while let Some(ended) = parts.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                // Without one of its parts this task would be silent for ever.
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

/// The complete set of one source.
#[derive(Debug)]
struct Set {
    source: SourceKind,
    pods: Vec<PodObject>,
}

/// The loop around the merge.
#[derive(Debug)]
struct Merging {
    configured: Arc<[SourceKind]>,
    sets: mpsc::Receiver<Set>,
    refusals: watch::Receiver<Vec<Refusal>>,
    updates: mpsc::Sender<PodUpdate>,
    board: Board,
}

impl Merging {
    async fn run(mut self, stop: CancellationToken) {
        let mut merge = Merge::default();
        let mut has_sources = true;
        self.tell(&merge);
        loop {
            // Every arm is a receive, which loses nothing when another arm is taken.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                set = self.sets.recv(), if has_sources => match set {
                    // No source is configured: the stream stays open, and silent.
                    None => has_sources = false,
                    Some(set) => {
                        let merged = merge.apply(set.source, set.pods, clock::wall_now());
                        for pod in merged.doubles {
                            warn!(
                                pod = pod.described(),
                                source = %set.source,
                                "pod ignored: one of the same name stands before it"
                            );
                        }
                        self.tell(&merge);
                        for update in merged.updates {
                            tokio::select! {
                                () = stop.cancelled() => return,
                                sent = self.updates.send(update) => if sent.is_err() { return },
                            }
                        }
                    }
                },
                changed = self.refusals.changed(), if has_sources => {
                    has_sources = changed.is_ok();
                    self.tell(&merge);
                }
            }
        }
    }

    fn tell(&self, merge: &Merge) {
        let waiting: Vec<String> = self
            .configured
            .iter()
            .filter(|kind| !merge.seen().any(|seen| seen == **kind))
            .map(ToString::to_string)
            .collect();
        let refusals = self.refusals.borrow();
        let (grade, text) = if !waiting.is_empty() {
            let sources = waiting.join(", ");
            (Grade::Degraded, format!("nothing read yet from: {sources}"))
        } else if let Some(first) = refusals.first() {
            let (count, origin) = (refusals.len(), &first.origin);
            let text = format!("{count} refused; first {origin}: {}", first.message);
            (Grade::Degraded, text)
        } else {
            (Grade::Good, "all sources read".to_owned())
        };
        self.board.set(Part::Sources, grade, text);
    }
}

/// Where a source puts what it found.
#[derive(Debug)]
struct Outlet {
    kind: SourceKind,
    sets: mpsc::Sender<Set>,
    refusals: watch::Sender<Vec<Refusal>>,
}

/// A refusal before it has a time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    origin: String,
    message: String,
    keeps_last: bool,
}

impl Outlet {
    /// False once nobody takes sets any more.
    async fn send(&self, pods: Vec<PodObject>) -> bool {
        let source = self.kind;
        self.sets.send(Set { source, pods }).await.is_ok()
    }

    /// Replaces this source's refusals; each is said once, when it comes and when it goes.
    fn refuse(&self, found: Vec<Refused>, now: Timestamp) {
        self.refusals.send_if_modified(|all| {
            let (mine, mut next): (Vec<Refusal>, Vec<Refusal>) =
                all.drain(..).partition(|old| old.source == self.kind);
            for refused in &found {
                let is_old = mine
                    .iter()
                    .any(|old| old.origin == refused.origin && old.message == refused.message);
                if !is_old {
                    metrics::MANIFESTS_REFUSED.add(1, &[("source", self.kind.into())]);
                    warn!(
                        origin = refused.origin,
                        problem = refused.message,
                        keeps_last = refused.keeps_last,
                        "manifest refused"
                    );
                }
            }
            for old in &mine {
                if !found.iter().any(|refused| refused.origin == old.origin) {
                    info!(origin = old.origin, "manifest no longer refused");
                }
            }
            let with_time = found.into_iter().map(|refused| {
                let same = mine
                    .iter()
                    .find(|old| old.origin == refused.origin && old.message == refused.message);
                Refusal {
                    source: self.kind,
                    origin: refused.origin,
                    message: refused.message,
                    keeps_last: refused.keeps_last,
                    since: same.map_or(now, |old| old.since),
                }
            });
            let new: Vec<Refusal> = with_time.collect();
            let is_changed = new != mine;
            next.extend(new);
            next.sort_by(|a, b| a.origin.cmp(&b.origin));
            *all = next;
            is_changed
        });
    }
}

/// One manifest as `skep check FILE` reads it: what the agent would do, without running it.
pub fn check_file(
    path: &Path,
    node_name: &str,
    strictness: Strictness,
) -> Result<Pod, Vec<Problem>> {
    let rules = Rules {
        node_name: node_name.to_owned(),
        strictness,
    };
    let bytes = file::read(path).map_err(|problem| vec![problem])?;
    let mut loaded = rules.load_pod(&bytes, Origin::File(path))?;
    let object = loaded
        .pods
        .pop()
        .expect("a manifest that was loaded has a pod");
    Ok(Pod::new(object, SourceKind::File))
}

/// KRT-08: the hash that marks a container with what it was made from, equal to upstream's, so
/// that containers of either agent are taken over by the other. Only image and name count.
pub fn container_hash(container: &Container) -> u32 {
    #[derive(Serialize)]
    struct Counted<'a> {
        image: &'a str,
        name: &'a str,
    }
    let json = serde_json::to_string(&Counted {
        image: container.image.as_deref().unwrap_or_default(),
        name: &container.name,
    })
    .expect("two strings have a JSON form")
    // Go writes these so.
    .replace('&', "\\u0026")
    .replace('<', "\\u003c")
    .replace('>', "\\u003e");
    let mut text = String::from("([]uint8)[");
    for (index, byte) in json.bytes().enumerate() {
        let blank = if index == 0 { "" } else { " " };
        let _ = write!(text, "{blank}{byte}");
    }
    text.push(']');
    // 32-bit FNV-1a.
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests;
