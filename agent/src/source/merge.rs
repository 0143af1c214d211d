//! Whole sets of pods in, changes out (SRC-05, 06, 07). Pure.
//!
//! A source always hands over its complete set. Sets are compared by uid within their source, and
//! what differs becomes operations, in upstream's order.

use std::collections::{BTreeMap, HashSet};

use indexmap::IndexMap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodObject;

use crate::types::{
    id::PodUid,
    pod::{Pod, SourceKind},
};

/// `kubernetes.io/config.source`: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// `kubernetes.io/config.seen`: when the agent first saw the pod, as RFC 3339.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// `kubernetes.io/config.mirror`: on the API's picture of a static pod, the uid that it mirrors.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Annotations that say how a pod came here, not what it is.
const LOCAL: [&str; 3] = [CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR];

/// What happened to the pods of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Op {
    /// New. An empty one says that the source delivered its first set, and nothing of it is new.
    Add,
    /// Changed in what the node acts on.
    Update,
    /// No longer wanted.
    Remove,
    /// Only its status differs.
    Reconcile,
    /// Changed, and being deleted through the API: stop it gracefully.
    Delete,
}

/// One message to the sync loop.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    pub source: SourceKind,
    pub op: Op,
    pub pods: Vec<Pod>,
}

/// The pods that each source wants; a source has an entry once it has delivered.
#[derive(Debug, Default)]
pub(super) struct Merge {
    sources: BTreeMap<SourceKind, IndexMap<PodUid, Pod>>,
}

/// What one set led to.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub updates: Vec<PodUpdate>,
    /// Pods that were left out because one of the same name stands before them (SRC-07).
    pub doubles: Vec<Pod>,
}

enum Change {
    None,
    Update(Pod),
    Reconcile(Pod),
    Delete(Pod),
}

impl Merge {
    /// Takes over the complete set of one source.
    pub(super) fn apply(
        &mut self,
        source: SourceKind,
        set: Vec<PodObject>,
        now: Timestamp,
    ) -> Merged {
        let old = self.sources.get(&source);
        let is_first = old.is_none();
        let no_pods = IndexMap::new();
        let old = old.unwrap_or(&no_pods);

        let mut merged = Merged::default();
        let mut new = IndexMap::new();
        let (mut added, mut updated, mut deleted, mut reconciled) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut names = HashSet::new();
        for object in set {
            let wanted = Pod::new(
                annotated(object, CONFIG_SOURCE, &source.to_string()),
                source,
            );
            if !names.insert(wanted.key().clone()) {
                merged.doubles.push(wanted);
                continue;
            }
            let pod = match old.get(wanted.uid()) {
                None => {
                    let object = wanted.object().clone();
                    let seen = Pod::new(annotated(object, CONFIG_SEEN, &now.to_string()), source);
                    added.push(seen.clone());
                    seen
                }
                Some(known) => match compare(known, &wanted) {
                    Change::None => known.clone(),
                    Change::Update(pod) => {
                        updated.push(pod.clone());
                        pod
                    }
                    Change::Delete(pod) => {
                        deleted.push(pod.clone());
                        pod
                    }
                    Change::Reconcile(pod) => {
                        reconciled.push(pod.clone());
                        pod
                    }
                },
            };
            new.insert(pod.uid().clone(), pod);
        }
        let removed: Vec<Pod> = old
            .iter()
            .filter(|(uid, _)| !new.contains_key(*uid))
            .map(|(_, pod)| pod.clone())
            .collect();
        self.sources.insert(source, new);

        let only_says_ready =
            is_first && added.is_empty() && updated.is_empty() && deleted.is_empty();
        let ops = [
            (Op::Remove, removed),
            (Op::Add, added),
            (Op::Update, updated),
            (Op::Delete, deleted),
        ];
        let update = |op, pods| PodUpdate { source, op, pods };
        merged.updates = ops
            .into_iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(op, pods)| update(op, pods))
            .collect();
        if only_says_ready {
            merged.updates.push(update(Op::Add, Vec::new()));
        }
        if !reconciled.is_empty() {
            merged.updates.push(update(Op::Reconcile, reconciled));
        }
        merged
    }

    /// Sources that have delivered at least once.
    pub(super) fn seen(&self) -> impl Iterator<Item = SourceKind> + '_ {
        self.sources.keys().copied()
    }
}

fn annotated(mut object: PodObject, name: &str, value: &str) -> PodObject {
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(name.to_owned(), value.to_owned());
    object
}

fn compare(known: &Pod, wanted: &Pod) -> Change {
    let mut object = known.object().clone();
    if !differs_semantically(known, wanted) {
        if known.object().status == wanted.object().status {
            return Change::None;
        }
        object.status.clone_from(&wanted.object().status);
        return Change::Reconcile(Pod::new(object, known.source()));
    }
    // Other metadata keeps its first value, as upstream's.
    let new = wanted.object().clone();
    object.spec = new.spec;
    object.status = new.status;
    object.metadata.labels = new.metadata.labels;
    object.metadata.deletion_timestamp = new.metadata.deletion_timestamp;
    object.metadata.deletion_grace_period_seconds = new.metadata.deletion_grace_period_seconds;
    object.metadata.generation = new.metadata.generation;
    let mut annotations = new.metadata.annotations.unwrap_or_default();
    for name in LOCAL {
        if let Some(value) = annotation(known, name) {
            annotations.insert(name.to_owned(), value.to_owned());
        }
    }
    object.metadata.annotations = Some(annotations);
    let is_deletion = object.metadata.deletion_timestamp.is_some();
    let pod = Pod::new(object, known.source());
    if is_deletion {
        Change::Delete(pod)
    } else {
        Change::Update(pod)
    }
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let annotations = pod.metadata().annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

/// SRC-06: what the node acts on. `config.hash` counts; the annotations of `LOCAL` do not.
fn differs_semantically(a: &Pod, b: &Pod) -> bool {
    fn foreign(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
        let annotations = pod.metadata().annotations.iter().flatten();
        annotations.filter(|(name, _)| !LOCAL.contains(&name.as_str()))
    }
    let (old, new) = (a.metadata(), b.metadata());
    a.object().spec != b.object().spec
        || old.labels != new.labels
        || old.deletion_timestamp != new.deletion_timestamp
        || old.deletion_grace_period_seconds != new.deletion_grace_period_seconds
        || !foreign(a).eq(foreign(b))
}

#[cfg(test)]
mod tests;
