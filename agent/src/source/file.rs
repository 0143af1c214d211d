//! The file source (SRC-03): a folder of manifests, one Pod a file, or a single file.
//!
//! - **State**: what each file held when it was last read, and the last good pod of it.
//! - **In**: inotify's news, and a full re-read each `fileCheckFrequency`, the first at once.
//! - **Out**: the complete set of pods, in the order of the files' names, whenever it changes;
//!   what is refused, each said once.
//!
//! A file that becomes invalid keeps the pod of its last good version until it is valid again or
//! gone (upstream removes the pod within 20 s): a half-written file must not stop a pod, not even
//! through a restart of the agent ([`kept`]). What is
//! not a manifest costs one message and never another file's pod.

mod kept;
mod read;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod as PodObject;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    kept::Kept,
    read::{NotRead, Stamp},
    watch::{News, Watch},
};
use super::{
    Outlet, Refused,
    manifest::{Origin, Rules},
    problem::{Problem, joined},
};
use crate::{config::FileSource, types::clock};

/// How long a file that is being written is waited for; its close ends the wait.
const SETTLE: Duration = Duration::from_millis(100);
/// When a file that changed during every attempt to read it is tried again.
const RETRY_CHANGING: Duration = Duration::from_secs(1);
/// Between two attempts to set up the watch; doubles up to the longest.
const RETRY_WATCH: Duration = Duration::from_secs(1);
const RETRY_WATCH_MAX: Duration = Duration::from_secs(20);

/// A period of nothing would be a busy loop.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Endings of what editors and package tools leave beside a file.
const BACKUP_ENDINGS: &[&str] = &[
    "~",
    ".bak",
    ".orig",
    ".rej",
    ".swp",
    ".swo",
    ".tmp",
    ".dpkg-dist",
    ".dpkg-new",
    ".dpkg-old",
    ".dpkg-tmp",
    ".rpmnew",
    ".rpmorig",
    ".rpmsave",
];

/// The bytes of one file, or what is wrong with it; never blocks on what is no regular file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    match read::read(path) {
        Ok((bytes, _stamp)) => Ok(bytes),
        Err(NotRead::Gone) => Err(Problem::of_file("does not exist")),
        Err(NotRead::Folder) => Err(Problem::of_file("is a folder: expected a regular file")),
        Err(NotRead::Changing) => Err(Problem::of_file(CHANGING)),
        Err(NotRead::Refused(problem)) => Err(problem),
    }
}

const CHANGING: &str = "changes while it is read: expected a file that is whole";

/// The part that runs.
#[derive(Debug)]
pub(super) struct Source {
    files: Files,
    period: Duration,
    outlet: Outlet,
}

impl Source {
    /// `kept`: the folder for copies of the last good manifests.
    pub(super) fn new(
        settings: FileSource,
        rules: Rules,
        kept: Option<PathBuf>,
        outlet: Outlet,
    ) -> Self {
        Self {
            files: Files::new(settings.path, rules, Kept::new(kept)),
            period: settings.period.max(SHORTEST_PERIOD),
            outlet,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut watch: Option<Watch> = None;
        let mut watch_at = Instant::now();
        let mut watch_pause = RETRY_WATCH;
        let mut is_watch_missed = false;
        let mut sent: Option<Vec<PodObject>> = None;
        let mut full_at = Instant::now();
        let mut writing = Writing::default();
        loop {
            // The watch is set before the look, so that nothing falls between them.
            watch = watch.filter(Watch::is_valid);
            if watch.is_none() && watch_at <= Instant::now() {
                match Watch::set(&self.files.path) {
                    Ok(set) => {
                        watch = Some(set);
                        watch_pause = RETRY_WATCH;
                        is_watch_missed = false;
                        full_at = Instant::now();
                    }
                    Err(error) => {
                        if !is_watch_missed && !matches!(&error, watch::Error::Look(_)) {
                            let cause = std::error::Error::source(&error).map(ToString::to_string);
                            warn!(%error, cause, "manifests are re-read by time only");
                            is_watch_missed = true;
                        }
                        watch_at = Instant::now() + watch_pause;
                        // A folder that is not there may come at any time, and costs one look.
                        if !matches!(error, watch::Error::Look(_)) {
                            watch_pause = (watch_pause * 2).min(RETRY_WATCH_MAX);
                        }
                    }
                }
            }

            let depth = if full_at <= Instant::now() {
                full_at = Instant::now() + self.period;
                Depth::All
            } else {
                Depth::Changed
            };
            while let Some(news) = watch.as_mut().and_then(Watch::waiting) {
                writing.note(news, Instant::now());
            }
            let skipped = writing.names(Instant::now());
            let mut look_at = writing.over_at();
            let mut files = self.files;
            // Reading can block on a slow disk. A panic in there is a bug: it ends the task.
            let looked = tokio::task::spawn_blocking(move || {
                let found = files.look(depth, &skipped);
                (files, found)
            });
            let found;
            (self.files, found) = match looked.await {
                Ok(looked) => looked,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is going down.
                Err(_cancelled) => return,
            };
            self.outlet.refuse(found.refused, clock::wall_now());
            if found.is_changing {
                look_at.get_or_insert_with(|| Instant::now() + RETRY_CHANGING);
            }
            if let Some(set) = found.set
                && sent.as_ref() != Some(&set)
            {
                sent = Some(set.clone());
                tokio::select! {
                    () = stop.cancelled() => return,
                    is_open = self.outlet.send(set) => if !is_open { return },
                }
            }

            loop {
                let mut wake_at = look_at.map_or(full_at, |at| at.min(full_at));
                if watch.is_none() {
                    wake_at = wake_at.min(watch_at);
                }
                // Both receives lose nothing when another arm is taken.
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    news = next_news(&mut watch) => match news {
                        Some(news) => {
                            let is_settled = matches!(news, News::Settled(_));
                            writing.note(news, Instant::now());
                            if is_settled {
                                break;
                            }
                            look_at = look_at.into_iter().chain(writing.over_at()).min();
                        }
                        None => {
                            watch = None;
                            watch_at = Instant::now() + watch_pause;
                        }
                    },
                    () = tokio::time::sleep_until(wake_at) => break,
                }
            }
        }
    }
}

async fn next_news(watch: &mut Option<Watch>) -> Option<News> {
    match watch {
        Some(watch) => watch.news().await,
        None => std::future::pending().await,
    }
}

/// Files that are being written, each with the time until which that is believed.
#[derive(Debug, Default)]
struct Writing(HashMap<OsString, Instant>);

impl Writing {
    fn note(&mut self, news: News, now: Instant) {
        match news {
            News::Pending(name) => {
                self.0.entry(name).or_insert(now + SETTLE);
            }
            News::Settled(Some(name)) => {
                self.0.remove(&name);
            }
            News::Settled(None) => {}
        }
    }

    /// Files to leave alone for now; those whose time is over are forgotten.
    fn names(&mut self, now: Instant) -> HashSet<OsString> {
        self.0.retain(|_, over_at| *over_at > now);
        self.0.keys().cloned().collect()
    }

    fn over_at(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Files whose stamp differs.
    Changed,
    /// Every file: a target behind a link can change without its stamp being seen to.
    All,
}

/// What is known of one file.
#[derive(Debug, Default)]
struct File {
    stamp: Option<Stamp>,
    /// Hash of the content that `refusal` and `good` come from; none where it could not be read.
    content: Option<[u8; 32]>,
    good: Option<PodObject>,
    refusal: Option<String>,
}

/// What a look found.
#[derive(Debug)]
struct Found {
    /// The complete set; none where the path itself can't be used, so that the last set stays.
    set: Option<Vec<PodObject>>,
    refused: Vec<Refused>,
    /// A file was being written all the time.
    is_changing: bool,
}

/// What was last read, by file name.
#[derive(Debug)]
struct Files {
    path: PathBuf,
    rules: Rules,
    kept: Kept,
    known: BTreeMap<OsString, File>,
}

impl Files {
    fn new(path: PathBuf, rules: Rules, kept: Kept) -> Self {
        Self {
            path,
            rules,
            kept,
            known: BTreeMap::new(),
        }
    }

    /// Looks at the path and reads what is new, but for files that are being written. Blocking.
    fn look(&mut self, depth: Depth, skipped: &HashSet<OsString>) -> Found {
        let metadata = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Upstream's: an empty set, which also says that the source was read.
                self.known.clear();
                return Found {
                    set: Some(Vec::new()),
                    refused: vec![self.path_refused(
                        "does not exist: expected a folder of manifests or one manifest".to_owned(),
                        false,
                    )],
                    is_changing: false,
                };
            }
            Err(error) => return self.unusable(format!("cannot be read: {error}")),
        };
        if metadata.is_dir() {
            self.look_at_folder(depth, skipped)
        } else {
            self.look_at_single(depth, skipped)
        }
    }

    fn look_at_folder(&mut self, depth: Depth, skipped: &HashSet<OsString>) -> Found {
        let names = match names_in(&self.path) {
            Ok(names) => names,
            Err(error) => return self.unusable(format!("cannot be read: {error}")),
        };
        self.known.retain(|name, _| names.contains(name));
        let mut is_changing = false;
        for name in names {
            if skipped.contains(&name) {
                continue;
            }
            let path = self.path.join(&name);
            is_changing |= self.visit(name, &path, depth);
        }
        if depth == Depth::All {
            self.forget_gone(&self.path);
        }
        let (set, refused) = self.summary(&self.path);
        Found {
            set: Some(set),
            refused,
            is_changing,
        }
    }

    /// A single file: without one good version of it there is no set, and the source stays
    /// unread, so that nothing is cleaned up on its account (SRC-03).
    fn look_at_single(&mut self, depth: Depth, skipped: &HashSet<OsString>) -> Found {
        let name = self.path.file_name().unwrap_or_default().to_owned();
        self.known.retain(|known, _| *known == name);
        let path = self.path.clone();
        let is_changing = !skipped.contains(&name) && self.visit(name, &path, depth);
        let folder = self.path.parent().unwrap_or(Path::new("")).to_owned();
        let (set, refused) = self.summary(&folder);
        Found {
            set: (!set.is_empty()).then_some(set),
            refused,
            is_changing,
        }
    }

    /// Reads one file if it is new. True where it changed all the while.
    fn visit(&mut self, name: OsString, path: &Path, depth: Depth) -> bool {
        let read = match backup_reason(&name) {
            Some(reason) => Err(NotRead::Refused(Problem::of_file(reason))),
            None => match read::look(path) {
                Ok(stamp) => {
                    let known = self.known.get(&name).and_then(|file| file.stamp);
                    if depth == Depth::Changed && known == Some(stamp) {
                        return false;
                    }
                    read::read(path)
                }
                Err(not_read) => Err(not_read),
            },
        };
        let (bytes, stamp) = match read {
            Ok(read) => read,
            Err(NotRead::Gone | NotRead::Folder) => {
                self.known.remove(&name);
                return false;
            }
            Err(not_read) => {
                let is_changing = matches!(not_read, NotRead::Changing);
                let file = self.known.entry(name).or_default();
                file.stamp = None;
                file.content = None;
                file.refusal = Some(match not_read {
                    NotRead::Refused(problem) => problem.message,
                    NotRead::Changing | NotRead::Gone | NotRead::Folder => CHANGING.to_owned(),
                });
                return is_changing;
            }
        };
        let content: [u8; 32] = Sha256::digest(&bytes).into();
        let file = self.known.entry(name).or_default();
        file.stamp = Some(stamp);
        if file.content == Some(content) {
            return false;
        }
        file.content = Some(content);
        match self.rules.load_pod(&bytes, Origin::File(path)) {
            Ok(mut loaded) => {
                for warning in &loaded.warnings {
                    warn!(file = %path.display(), problem = %warning, "manifest accepted with a warning");
                }
                file.good = loaded.pods.pop();
                file.refusal = None;
                self.kept.store(path, &bytes);
                info!(file = %path.display(), "manifest read");
            }
            Err(problems) => {
                file.refusal = Some(joined(&problems));
                if file.good.is_none() {
                    file.good = last_good(&self.kept, &self.rules, path);
                }
            }
        }
        false
    }

    /// Copies of manifests that are gone go too.
    fn forget_gone(&self, folder: &Path) {
        let there: Vec<PathBuf> = self.known.keys().map(|name| folder.join(name)).collect();
        self.kept.retain(there.iter().map(PathBuf::as_path));
    }

    /// The pods in the order of the files' names, and everything that is refused. Of two files
    /// with one pod the last in that order wins, as upstream's.
    fn summary(&self, folder: &Path) -> (Vec<PodObject>, Vec<Refused>) {
        let mut set = Vec::new();
        let mut refused = Vec::new();
        let mut names = BTreeMap::new();
        let mut uids = HashSet::new();
        for (file_name, file) in self.known.iter().rev() {
            let origin = folder.join(file_name).display().to_string();
            if let Some(message) = &file.refusal {
                refused.push(Refused {
                    origin: origin.clone(),
                    message: message.clone(),
                    keeps_last: file.good.is_some(),
                });
            }
            let Some(pod) = &file.good else { continue };
            let metadata = &pod.metadata;
            let key = (&metadata.namespace, &metadata.name);
            let winner = names.get(&key).copied();
            if let Some(winner) = winner {
                refused.push(overruled(&origin, pod, winner));
            } else if !uids.insert(&metadata.uid) {
                refused.push(Refused {
                    origin,
                    message: "metadata.uid: Duplicate value: the pod of a later file has it"
                        .to_owned(),
                    keeps_last: false,
                });
            } else {
                names.insert(key, file_name.as_os_str());
                set.push(pod.clone());
            }
        }
        set.reverse();
        refused.reverse();
        (set, refused)
    }

    /// The path itself can't be used: what was read stays.
    fn unusable(&self, message: String) -> Found {
        let keeps_last = self.known.values().any(|file| file.good.is_some());
        Found {
            set: None,
            refused: vec![self.path_refused(message, keeps_last)],
            is_changing: false,
        }
    }

    fn path_refused(&self, message: String, keeps_last: bool) -> Refused {
        Refused {
            origin: self.path.display().to_string(),
            message,
            keeps_last,
        }
    }
}

/// The pod that this file's last good version held, from before the agent's start.
fn last_good(kept: &Kept, rules: &Rules, path: &Path) -> Option<PodObject> {
    rules
        .load_pod(&kept.load(path)?, Origin::File(path))
        .ok()?
        .pods
        .pop()
}

fn overruled(origin: &str, pod: &PodObject, winner: &OsStr) -> Refused {
    let metadata = &pod.metadata;
    Refused {
        origin: origin.to_owned(),
        message: format!(
            "metadata.name: Duplicate value: the pod {}/{} is also in {}, which wins as the last in the order of names",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
            winner.display(),
        ),
        keeps_last: false,
    }
}

/// Names in a folder without the hidden ones.
fn names_in(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.insert(name);
        }
    }
    Ok(names)
}

fn backup_reason(name: &OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    let ending = BACKUP_ENDINGS
        .iter()
        .find(|ending| name.ends_with(**ending));
    let what = match ending {
        Some(ending) => format!("ends in {ending:?}"),
        None if name.len() > 1 && name.starts_with('#') && name.ends_with('#') => {
            "stands between \"#\"".to_owned()
        }
        None => return None,
    };
    Some(format!(
        "looks like an editor's or a package's copy (its name {what}): expected a manifest under another name"
    ))
}

#[cfg(test)]
mod tests;
