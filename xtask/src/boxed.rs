//! A box for everything that runs containers: namespaces of its own (mounts, network, processes,
//! IPC), so that whatever happens inside ends with it; and a look afterwards at what did not.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cache, command, images, setup,
    upstream::{self, Part},
};

/// Run by the box's first process. Its standard input is a pipe that the task holds: when the task
/// ends, in whatever way, all in the box is killed. /var/lib/cni is shared by all networks of a
/// machine; the box has its own.
const SCRIPT: &str = r#"
set -e
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock /var/lib/cni
mount -t tmpfs -o mode=755 tmpfs /var/lib/cni
exec 3<&0 </dev/null
( cat <&3 >/dev/null; kill -KILL -1 ) &
set +e
"$@" 3<&-
status=$?
kill -KILL -1 2>/dev/null
exit $status
"#;

/// What tests in a box are told, by these variables:
///
/// | variable | is |
/// | --- | --- |
/// | `SKEP_TEST_DIR` | an empty folder on a disk, removed afterwards |
/// | `SKEP_TEST_IMAGES` | the folder with `pause.tar` and `busybox.tar` |
/// | `SKEP_TEST_BIN_DIRS` | folders with the tested containerd, runc and CNI plugins, joined by ":" |
/// | `SKEP_TEST_CRICTL` | the program `crictl` |
/// | `SKEP_TEST_CGROUP` | a name for the one top cgroup that a test may make (with anything after it) |
pub(crate) struct Boxes {
    images: PathBuf,
    bin_dirs: String,
    crictl: PathBuf,
    scratch: PathBuf,
    cgroup: String,
}

/// How a run in a box ended.
pub(crate) struct Ended {
    pub(crate) success: bool,
    /// Everything that was printed.
    pub(crate) output: String,
    pub(crate) time: Duration,
}

impl Boxes {
    /// Builds and makes what is missing.
    pub(crate) fn prepare() -> Result<Self> {
        setup::ensure_test()?;
        let parts = upstream::ensure(&upstream::TESTED)?;
        let dir = |part| parts.dir(part).context("the part was asked for");
        let bin_dirs = [Part::Containerd, Part::Runc, Part::Cni]
            .into_iter()
            .map(|part| Ok(dir(part)?.display().to_string()))
            .collect::<Result<Vec<_>>>()?
            .join(":");
        Ok(Self {
            images: images::ensure()?,
            bin_dirs,
            crictl: dir(Part::Cri)?.join("crictl"),
            // Short: sockets lie below it.
            scratch: cache::dir()?.join(format!("t{}", process::id())),
            cgroup: format!("skep-test-{}", process::id()),
        })
    }

    pub(crate) fn images(&self) -> &Path {
        &self.images
    }

    /// Joined by ":".
    pub(crate) fn bin_dirs(&self) -> &str {
        &self.bin_dirs
    }

    /// Runs the program in a box of its own, as root, for at most `limit`. Each line goes to
    /// `each` as it comes.
    pub(crate) fn run(
        &self,
        program: &Path,
        args: &[&str],
        dir: &Path,
        limit: Duration,
        mut each: impl FnMut(&str),
    ) -> Result<Ended> {
        fs::create_dir_all(&self.scratch)
            .with_context(|| format!("making {}", self.scratch.display()))?;
        let keep: [(&str, &OsStr); 7] = [
            ("SKEP_TEST_DIR", self.scratch.as_os_str()),
            ("SKEP_TEST_IMAGES", self.images.as_os_str()),
            ("SKEP_TEST_BIN_DIRS", self.bin_dirs.as_ref()),
            ("SKEP_TEST_CRICTL", self.crictl.as_os_str()),
            ("SKEP_TEST_CGROUP", self.cgroup.as_ref()),
            ("RUST_BACKTRACE", "0".as_ref()),
            (
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".as_ref(),
            ),
        ];
        let started = Instant::now();
        let mut command = command::as_root("unshare", &keep);
        command
            .args(["-m", "-n", "-p", "-i", "--fork", "--kill-child=KILL"])
            .args(["--mount-proc", "--propagation", "private", "sh", "-c"])
            .args([SCRIPT, "box"])
            .arg(program)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {}", command::line(&command)))?;
        let mut held = child.stdin.take();
        let out = child.stdout.take().context("the box's output")?;
        let err = child.stderr.take().context("the box's errors")?;
        // A full queue holds the box back until its lines are taken.
        let (lines_tx, lines) = mpsc::sync_channel(1024);
        let (mut output, mut is_out_of_time) = (String::new(), false);
        let status = std::thread::scope(|scope| {
            let errors_tx = lines_tx.clone();
            scope.spawn(move || pass_on(out, &lines_tx));
            scope.spawn(move || pass_on(err, &errors_tx));
            loop {
                let left = limit.saturating_sub(started.elapsed());
                match lines.recv_timeout(left) {
                    Ok(line) => {
                        each(&line);
                        output.push_str(&line);
                        output.push('\n');
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) if held.is_some() => {
                        is_out_of_time = true;
                        // The box ends when this pipe does.
                        held = None;
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            child.wait()
        })
        .context("waiting for the box")?;
        drop(held);
        if is_out_of_time {
            output.push_str(&format!("killed after {} s\n", limit.as_secs()));
        }
        Ok(Ended {
            success: status.success() && !is_out_of_time,
            output,
            time: started.elapsed(),
        })
    }

    /// What the runs have left behind, as sentences; it is removed, so that the next run is judged
    /// by itself. `before` is how the machine was.
    pub(crate) fn clean(&self, before: &Machine) -> Result<Vec<String>> {
        let after = Machine::look()?;
        let mut left = before.compare(&after);
        let scratch = self.scratch.display().to_string();
        left.extend(
            processes_of(&scratch)
                .into_iter()
                .map(|line| format!("process: {line}")),
        );
        for cgroup in cgroups_named(&self.cgroup) {
            left.push(format!("cgroup: {}", cgroup.display()));
            remove_cgroup(&cgroup);
        }
        if self.scratch.exists() {
            let mounts =
                fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
            if mounts.contains(&scratch) {
                bail!("something is still mounted below {scratch}");
            }
            command::run(command::as_root("rm", &[]).arg("-rf").arg(&self.scratch))?;
        }
        Ok(left)
    }
}

fn pass_on(from: impl std::io::Read, to: &mpsc::SyncSender<String>) {
    for line in BufReader::new(from).split(b'\n') {
        let Ok(line) = line else { return };
        if to
            .send(String::from_utf8_lossy(&line).into_owned())
            .is_err()
        {
            return;
        }
    }
}

/// Everything that containers tend to leave, as it is at one moment.
pub(crate) struct Machine(BTreeSet<String>);

impl Machine {
    pub(crate) fn look() -> Result<Self> {
        let mut seen = BTreeSet::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
        for line in mounts.lines() {
            if let Some(point) = line.split(' ').nth(4) {
                seen.insert(format!("mount: {point}"));
            }
        }
        for name in names_in("/sys/class/net") {
            let bridge = Path::new("/sys/class/net").join(&name).join("bridge");
            if bridge.is_dir() || name.starts_with("veth") {
                seen.insert(format!("interface: {name}"));
            }
        }
        for name in names_in("/run/netns") {
            seen.insert(format!("network namespace: {name}"));
        }
        for name in names_in("/run/containerd/s") {
            seen.insert(format!("shim socket: {name}"));
        }
        // Without iptables there are no rules.
        if command::find("iptables-save").is_some() {
            let rules = command::read(&mut command::as_root("iptables-save", &[]))?;
            for line in rules.lines().filter(|line| line.starts_with("-A")) {
                seen.insert(format!("rule: {line}"));
            }
        }
        Ok(Self(seen))
    }

    fn compare(&self, after: &Self) -> Vec<String> {
        after.0.difference(&self.0).cloned().collect()
    }
}

fn names_in(dir: &str) -> Vec<String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Processes whose command line names the folder.
fn processes_of(dir: &str) -> Vec<String> {
    names_in("/proc")
        .into_iter()
        .filter(|name| name.parse::<u32>().is_ok_and(|pid| pid != process::id()))
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(dir).then(|| format!("{pid} {line}"))
        })
        .collect()
}

/// Top cgroups, in every hierarchy, whose name begins so.
fn cgroups_named(prefix: &str) -> Vec<PathBuf> {
    walkdir::WalkDir::new("/sys/fs/cgroup")
        .min_depth(1)
        .max_depth(2)
        .into_iter()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(walkdir::DirEntry::into_path)
        .collect()
}

/// With all below it; one that has processes stays.
fn remove_cgroup(top: &Path) {
    let dirs: Vec<_> = walkdir::WalkDir::new(top)
        .contents_first(true)
        .into_iter()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_dir())
        .map(walkdir::DirEntry::into_path)
        .collect();
    // Says so itself when it cannot.
    if let Err(error) = command::run(command::as_root("rmdir", &[]).args(&dirs)) {
        let _ = writeln!(std::io::stderr(), "{error:#}");
    }
}
