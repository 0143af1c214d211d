use std::{
    fs,
    io::Write as _,
    os::unix::{fs::symlink, net::UnixListener},
};

use rstest::rstest;
use tokio::sync::{mpsc, watch as views};

use super::*;
use crate::{
    config::Strictness,
    source::{Refusal, Set},
    types::pod::SourceKind,
};

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: \"{image}\"}}]\n"
    )
}

/// A folder of manifests and what the source knows of it.
struct Folder {
    dir: tempfile::TempDir,
    files: Files,
}

fn rules() -> Rules {
    Rules {
        node_name: "n".to_owned(),
        strictness: Strictness::Refuse,
    }
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), rules(), Kept::new(None));
        Self { dir, files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Names of the pods, and refusals as `file: message` with ` (kept)` for a kept pod.
    fn look(&mut self) -> (Option<Vec<String>>, Vec<String>) {
        let found = self.files.look(Depth::Changed, &HashSet::new());
        let refused = found.refused.iter().map(|refused| {
            let file = Path::new(&refused.origin).file_name().unwrap().display();
            let kept = if refused.keeps_last { " (kept)" } else { "" };
            format!("{file}: {}{kept}", refused.message)
        });
        let refused = refused.collect();
        (
            found.set.map(|set| set.iter().map(shown).collect()),
            refused,
        )
    }
}

/// A pod as `name image`.
fn shown(pod: &PodObject) -> String {
    let image = pod.spec.as_ref().unwrap().containers[0].image.as_deref();
    let name = pod.metadata.name.as_deref();
    format!("{} {}", name.unwrap(), image.unwrap())
}

fn some(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|&name| name.to_owned()).collect())
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, fifo, mode, 0).unwrap();
}

#[rstest]
#[case::empty(|path: &Path| fs::write(path, "").unwrap(), "is empty: expected one Pod")]
#[case::not_utf8(
    |path: &Path| fs::write(path, b"a\xff").unwrap(),
    "is not UTF-8 text (byte 1): expected a Pod in YAML or JSON"
)]
#[case::fifo(make_fifo, "is a FIFO: expected a regular file")]
#[case::socket(
    |path: &Path| drop(UnixListener::bind(path).unwrap()),
    "is a socket: expected a regular file"
)]
#[case::device(
    |path: &Path| symlink("/dev/zero", path).unwrap(),
    "is a device: expected a regular file"
)]
#[case::link_to_nothing(
    |path: &Path| symlink("/nowhere", path).unwrap(),
    "is a link to nothing: expected a regular file"
)]
#[case::link_loop(
    |path: &Path| symlink(path, path).unwrap(),
    "cannot be read: Too many levels of symbolic links (os error 40)"
)]
#[case::memory_of_a_process(
    |path: &Path| symlink("/proc/self/mem", path).unwrap(),
    "cannot be read: Input/output error (os error 5)"
)]
#[case::too_large(
    |path: &Path| fs::File::create(path).unwrap().set_len(11 << 20).unwrap(),
    "is larger than 10485760 bytes: expected one Pod"
)]
#[case::a_folder_behind_a_link(|path: &Path| symlink("/tmp", path).unwrap(), "")]
#[case::a_folder(|path: &Path| fs::create_dir(path).unwrap(), "")]
fn a_strange_file_costs_one_message_and_no_other_pod(
    #[case] make: fn(&Path),
    #[case] expected: &str,
) {
    let mut folder = Folder::new();
    folder.write("a.yaml", &pod("a", "i:1"));
    folder.write("c.yaml", &pod("c", "i:1"));
    make(&folder.path("b"));
    let expected = match expected {
        "" => vec![],
        message => vec![format!("b: {message}")],
    };
    let pods = some(&["a-n i:1", "c-n i:1"]);
    assert_eq!(folder.look(), (pods.clone(), expected.clone()));
    assert_eq!(folder.look(), (pods, expected));
}

#[rstest]
#[case("web.yaml~", r#"ends in "~""#)]
#[case("web.yaml.swp", r#"ends in ".swp""#)]
#[case("web.bak", r#"ends in ".bak""#)]
#[case("web.yaml.dpkg-old", r#"ends in ".dpkg-old""#)]
#[case("#web.yaml#", r##"stands between "#""##)]
fn an_editor_s_copy_is_named_and_not_run(#[case] name: &str, #[case] what: &str) {
    let mut folder = Folder::new();
    folder.write(name, &pod("a", "i:1"));
    let expected = format!(
        "{name}: looks like an editor's or a package's copy (its name {what}): expected a manifest under another name"
    );
    assert_eq!(folder.look(), (some(&[]), vec![expected]));
}

#[test]
fn hidden_files_are_passed_over() {
    let mut folder = Folder::new();
    folder.write(".web.yaml.swp", "broken: [");
    folder.write(".hidden.yaml", &pod("a", "i:1"));
    assert_eq!(folder.look(), (some(&[]), vec![]));
}

#[test]
fn a_file_that_becomes_invalid_keeps_its_pod_until_it_is_valid_or_gone() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &pod("a", "i:1"));
    assert_eq!(folder.look(), (some(&["a-n i:1"]), vec![]));

    folder.write("a.yaml", "spec: [");
    let message =
        "a.yaml: is neither YAML nor JSON: unclosed bracket '[' at line 1, column 7 (kept)";
    assert_eq!(
        folder.look(),
        (some(&["a-n i:1"]), vec![message.to_owned()])
    );

    folder.write("a.yaml", &pod("a", "i:2"));
    assert_eq!(folder.look(), (some(&["a-n i:2"]), vec![]));

    folder.write("a.yaml", "");
    let message = "a.yaml: is empty: expected one Pod (kept)";
    assert_eq!(
        folder.look(),
        (some(&["a-n i:2"]), vec![message.to_owned()])
    );

    fs::remove_file(folder.path("a.yaml")).unwrap();
    assert_eq!(folder.look(), (some(&[]), vec![]));
}

#[test]
fn a_file_that_a_fifo_replaces_keeps_its_pod_and_comes_back_as_it_was() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &pod("a", "i:1"));
    folder.look();
    fs::remove_file(folder.path("a.yaml")).unwrap();
    make_fifo(&folder.path("a.yaml"));
    let message = "a.yaml: is a FIFO: expected a regular file (kept)";
    assert_eq!(
        folder.look(),
        (some(&["a-n i:1"]), vec![message.to_owned()])
    );
    fs::remove_file(folder.path("a.yaml")).unwrap();
    folder.write("a.yaml", &pod("a", "i:1"));
    assert_eq!(folder.look(), (some(&["a-n i:1"]), vec![]));
}

#[test]
fn of_two_files_with_one_pod_the_last_name_wins_and_the_other_is_named() {
    let mut folder = Folder::new();
    folder.write("b.yaml", &pod("web", "i:2"));
    folder.write("a.yaml", &pod("web", "i:1"));
    let message = "a.yaml: metadata.name: Duplicate value: the pod default/web-n is also in b.yaml, which wins as the last in the order of names";
    assert_eq!(
        folder.look(),
        (some(&["web-n i:2"]), vec![message.to_owned()])
    );
    fs::remove_file(folder.path("b.yaml")).unwrap();
    assert_eq!(folder.look(), (some(&["web-n i:1"]), vec![]));
}

#[test]
fn the_same_content_under_another_name_is_another_pod() {
    let mut folder = Folder::new();
    let uid = |folder: &mut Folder| {
        let set = folder.files.look(Depth::All, &HashSet::new()).set.unwrap();
        set[0].metadata.uid.clone().unwrap()
    };
    folder.write("a.yaml", &pod("a", "i:1"));
    let first = uid(&mut folder);
    fs::rename(folder.path("a.yaml"), folder.path("b.yaml")).unwrap();
    assert_ne!(uid(&mut folder), first);
}

#[test]
fn a_path_that_is_not_there_is_an_empty_set() {
    let mut folder = Folder::new();
    folder.files.path = folder.path("missing");
    let message = "missing: does not exist: expected a folder of manifests or one manifest";
    assert_eq!(folder.look(), (some(&[]), vec![message.to_owned()]));
}

#[test]
fn a_single_file_that_was_never_good_gives_no_set() {
    let mut folder = Folder::new();
    folder.files.path = folder.path("web.yaml");
    folder.write("web.yaml", "");
    let message = "web.yaml: is empty: expected one Pod";
    assert_eq!(folder.look(), (None, vec![message.to_owned()]));
    folder.write("web.yaml", &pod("a", "i:1"));
    folder.write("other.yaml", &pod("b", "i:1"));
    assert_eq!(folder.look(), (some(&["a-n i:1"]), vec![]));
    folder.write("web.yaml", "[]");
    let (set, refused) = folder.look();
    assert_eq!(set, some(&["a-n i:1"]));
    assert!(refused[0].ends_with("(kept)"), "{refused:?}");
}

#[test]
fn a_path_that_is_a_fifo_keeps_what_was() {
    let mut folder = Folder::new();
    folder.files.path = folder.path("web");
    make_fifo(&folder.path("web"));
    let message = "web: is a FIFO: expected a regular file";
    assert_eq!(folder.look(), (None, vec![message.to_owned()]));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_again() {
    let folder = Folder::new();
    folder.write("a.yaml", "old");
    let path = folder.path("a.yaml");
    let mut changes = vec!["newest", "new"];
    let (bytes, _) = read::read_while(&path, || {
        if let Some(text) = changes.pop() {
            fs::write(&path, text).unwrap();
        }
    })
    .unwrap();
    assert_eq!(bytes, b"newest");
}

#[test]
fn a_file_that_never_stops_changing_is_given_up_for_a_while() {
    let folder = Folder::new();
    folder.write("a.yaml", "x");
    let path = folder.path("a.yaml");
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    let read = read::read_while(&path, || file.write_all(b"x").unwrap());
    assert!(matches!(read, Err(NotRead::Changing)));
}

#[test]
fn a_file_that_is_being_written_is_left_alone() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &pod("a", "i:1"));
    folder.look();
    folder.write("a.yaml", "");
    folder.write("b.yaml", &pod("b", "i:1"));
    let now = Instant::now();
    let mut writing = Writing::default();
    writing.note(News::Pending("a.yaml".into()), now);
    let skipped = writing.names(now);
    let found = folder.files.look(Depth::All, &skipped);
    let pods: Vec<String> = found.set.unwrap().iter().map(shown).collect();
    assert_eq!(
        (pods, found.refused),
        (vec!["a-n i:1".into(), "b-n i:1".into()], vec![])
    );

    writing.note(News::Settled(Some("a.yaml".into())), now);
    assert!(writing.names(now).is_empty());
    writing.note(News::Pending("a.yaml".into()), now);
    assert!(writing.names(now + SETTLE).is_empty());
}

/// A running source over a folder, as the merge sees it.
struct Running {
    folder: Folder,
    sets: mpsc::Receiver<Set>,
    refusals: views::Receiver<Vec<Refusal>>,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

impl Running {
    /// Hours between re-reads, so that what arrives came through inotify.
    fn start(folder: Folder, path: PathBuf) -> Self {
        let (sets_tx, sets) = mpsc::channel(3);
        let (refusals_tx, refusals) = views::channel(Vec::new());
        let outlet = Outlet {
            kind: SourceKind::File,
            sets: sets_tx,
            refusals: refusals_tx,
        };
        let period = Duration::from_secs(7200);
        let source = Source::new(FileSource { path, period }, rules(), None, outlet);
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(source.run(stop.clone()));
        Self {
            folder,
            sets,
            refusals,
            stop,
            tasks,
        }
    }

    async fn until(&mut self, pods: &[&str]) {
        let wanted = some(pods).unwrap();
        let arrives = async {
            loop {
                let set = self.sets.recv().await.expect("the source runs");
                if set.pods.iter().map(shown).collect::<Vec<_>>() == wanted {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), arrives)
            .await
            .unwrap_or_else(|_| panic!("{wanted:?} did not arrive"));
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_the_folder_arrive_without_waiting_for_the_period() {
    let folder = Folder::new();
    let path = folder.dir.path().to_owned();
    let mut running = Running::start(folder, path);
    running.until(&[]).await;

    running.folder.write("a.yaml", &pod("a", "i:1"));
    running.until(&["a-n i:1"]).await;

    running.folder.write("a.yaml", &pod("a", "i:2"));
    running.until(&["a-n i:2"]).await;

    // As an editor saves: a new file takes the place of the old one.
    running.folder.write(".a.yaml.new", &pod("a", "i:3"));
    let (new, old) = (
        running.folder.path(".a.yaml.new"),
        running.folder.path("a.yaml"),
    );
    fs::rename(new, &old).unwrap();
    running.until(&["a-n i:3"]).await;

    running.folder.write("b.yaml", "broken: [");
    let refused = |all: &Vec<Refusal>| all.len() == 1 && all[0].origin.ends_with("b.yaml");
    let arrives = running.refusals.wait_for(refused);
    drop(
        tokio::time::timeout(Duration::from_secs(20), arrives)
            .await
            .unwrap(),
    );
    running.folder.write("b.yaml", &pod("b", "i:1"));
    running.until(&["a-n i:3", "b-n i:1"]).await;
    assert!(running.refusals.borrow().is_empty());

    fs::remove_file(old).unwrap();
    running.until(&["b-n i:1"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_comes_later_or_is_made_anew_is_watched() {
    let folder = Folder::new();
    let path = folder.path("manifests");
    let mut running = Running::start(folder, path.clone());
    running.until(&[]).await;
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), pod("a", "i:1")).unwrap();
    running.until(&["a-n i:1"]).await;
    fs::remove_dir_all(&path).unwrap();
    running.until(&[]).await;
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), pod("a", "i:2")).unwrap();
    running.until(&["a-n i:2"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_file_is_followed_through_its_replacement() {
    let folder = Folder::new();
    folder.write("web.yaml", &pod("a", "i:1"));
    let path = folder.path("web.yaml");
    let mut running = Running::start(folder, path.clone());
    running.until(&["a-n i:1"]).await;
    running.folder.write("web.yaml.new", &pod("a", "i:2"));
    fs::rename(running.folder.path("web.yaml.new"), path).unwrap();
    running.until(&["a-n i:2"]).await;
    running.stop().await;
}

#[test]
fn an_invalid_file_keeps_its_last_good_pod_through_a_restart_and_a_removed_one_does_not() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = || {
        let kept = Kept::new(Some(copies.path().to_owned()));
        Files::new(dir.path().to_owned(), rules(), kept)
    };
    let look = |files: &mut Files| {
        let found = files.look(Depth::All, &HashSet::new());
        let names = found
            .set
            .unwrap()
            .into_iter()
            .map(|pod| pod.metadata.name.unwrap());
        (names.collect::<Vec<_>>(), found.refused)
    };
    let file = dir.path().join("web.yaml");
    let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: i}\n";
    fs::write(&file, good).unwrap();
    let (names, _) = look(&mut start());
    fs::write(&file, "apiVersion: v1\nkind: Po").unwrap();
    let mut restarted = start();
    let (kept, refused) = look(&mut restarted);
    assert_eq!(kept, names);
    assert!(refused[0].keeps_last, "{refused:?}");

    fs::remove_file(&file).unwrap();
    assert!(look(&mut restarted).0.is_empty());
    fs::write(&file, "apiVersion: v1\nkind: Po").unwrap();
    assert!(
        look(&mut start()).0.is_empty(),
        "its copy went with the file"
    );
}
