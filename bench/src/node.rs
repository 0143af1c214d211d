//! The machine that all subjects get alike: a containerd of this turn's own with the images, the
//! cgroups, and the folders.
//!
//! Everything comes from the environment of the box (`cargo xtask bench` makes it):
//! `SKEP_TEST_DIR`, `SKEP_TEST_IMAGES`, `SKEP_TEST_BIN_DIRS`, `SKEP_TEST_CGROUP`.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::mount::{MountFlags, mount};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep},
};

use crate::{cgroup::Cgroups, cri::Cri, pods, process::Process, record::Host};

/// In the box's own network.
const METRICS: &str = "127.0.0.1:21338";
/// Of the pods that are not in the box's network.
const SUBNET: &str = "10.99.0.0/16";
/// containerd starts in a second on an idle machine.
const START: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Node {
    /// Empty at the start.
    pub dir: PathBuf,
    pub cgroups: Cgroups,
    pub cri: Cri,
    /// With the tested containerd and runc before all else.
    pub path: OsString,
    containerd: Process,
}

impl Node {
    /// Starts containerd, and imports the images.
    pub async fn start() -> Result<Self> {
        let of_box = |name: &str| {
            env::var_os(name).with_context(|| format!("{name} is not set: run it in a box"))
        };
        let dir = PathBuf::from(of_box("SKEP_TEST_DIR")?);
        let images = PathBuf::from(of_box("SKEP_TEST_IMAGES")?);
        let prefix = of_box("SKEP_TEST_CGROUP")?;
        let prefix = prefix.to_str().context("SKEP_TEST_CGROUP is no text")?;
        let bin_dirs: Vec<_> = env::split_paths(&of_box("SKEP_TEST_BIN_DIRS")?).collect();
        let own = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(bin_dirs.into_iter().chain(env::split_paths(&own)))?;
        hide_shared_folders()?;
        for sub in ["containerd", "cni", "logs"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let (runc, bridge) = (find("runc", &path)?, find("bridge", &path)?);
        let config = dir.join("containerd.toml");
        fs::write(&config, compute_config(&dir, &runc, &bridge)?)?;
        let cgroups = Cgroups::make(prefix)?;
        let args = [OsString::from("--config"), config.into()];
        let containerd = Process::start(
            &find("containerd", &path)?,
            &args,
            &path,
            &cgroups.runtime,
            &dir.join("containerd.log"),
        )
        .await;
        let mut node = match containerd {
            Ok(containerd) => Self {
                cri: Cri::new(&socket(&dir)),
                dir,
                cgroups,
                path,
                containerd,
            },
            Err(error) => {
                cgroups.remove().await?;
                return Err(error);
            }
        };
        match node.ready(&images).await {
            Ok(()) => Ok(node),
            Err(error) => {
                node.stop().await?;
                Err(error)
            }
        }
    }

    async fn ready(&mut self, images: &Path) -> Result<()> {
        let deadline = Instant::now() + START;
        while let Err(error) = self.cri.version().await {
            self.containerd.check().context("containerd")?;
            if Instant::now() >= deadline {
                return Err(error).context("containerd does not answer");
            }
            sleep(Duration::from_millis(50)).await;
        }
        for image in ["pause.tar", "busybox.tar"] {
            let output = Command::new(find("ctr", &self.path)?)
                .arg("--address")
                .arg(socket(&self.dir))
                .args(["--namespace", "k8s.io", "images", "import"])
                .arg(images.join(image))
                .output()
                .await?;
            if !output.status.success() {
                bail!("ctr import: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        Ok(())
    }

    /// From now on pods may have a network of their own: a bridge, without a way to the outside.
    pub fn add_bridge(&self) -> Result<()> {
        let list = json!({
            "cniVersion": "1.0.0",
            "name": "bench",
            "plugins": [{
                "type": "bridge",
                "bridge": "bench",
                "isGateway": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": SUBNET}]]},
            }],
        });
        // containerd looks for files that end so.
        fs::write(self.dir.join("cni/bench.conflist"), list.to_string())?;
        Ok(())
    }

    /// For an agent's configuration.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", socket(&self.dir).display())
    }

    /// containerd's own pid.
    pub fn containerd_pid(&self) -> i32 {
        self.containerd.pid()
    }

    /// What containerd says of itself, in Prometheus' text form.
    pub async fn metrics(&self) -> Result<String> {
        let (status, text) = get(METRICS, "/v1/metrics").await?;
        if status != 200 {
            bail!("containerd's metrics: {status}");
        }
        Ok(text)
    }

    /// What a program of the node's prints about itself, first line.
    pub async fn version_of(&self, program: &str, args: &[&str]) -> Result<String> {
        let program = if program.contains('/') {
            PathBuf::from(program)
        } else {
            find(program, &self.path)?
        };
        let output = Command::new(&program).args(args).output().await;
        let output = output.with_context(|| program.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// The end of containerd's log, for messages.
    pub fn log_end(&self) -> String {
        end_of(&self.dir.join("containerd.log"))
    }

    /// Kills everything, and removes the cgroups. The folder is the box's to remove.
    pub async fn stop(mut self) -> Result<()> {
        // First, so that it starts nothing more.
        let killed = self.containerd.kill().await;
        self.cgroups.remove().await?;
        killed
    }
}

/// The last lines of a file.
pub fn end_of(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Upstream's kubelet uses these whatever its settings say; they are the box's own. Where the
/// machine has no such folder it gets none: what is above it is hidden instead.
fn hide_shared_folders() -> Result<()> {
    for dir in ["/var/log", "/var/lib/kubelet"].map(Path::new) {
        let mut above = dir.ancestors();
        let place = above.find(|above| above.is_dir()).unwrap_or(dir);
        mount("tmpfs", place, "tmpfs", MountFlags::empty(), c"mode=755")
            .with_context(|| format!("mounting over {}", place.display()))?;
        fs::create_dir_all(dir)?;
    }
    Ok(())
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("containerd.sock")
}

fn find(program: &str, path: &OsStr) -> Result<PathBuf> {
    env::split_paths(path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is in no folder of the box"))
}

/// containerd's configuration: its defaults, apart from folders and what this machine and the
/// counting of calls need. One default costs: containerd 2.4 reads each container's statistics every
/// second by itself, whoever drives it. That is in each subject's runtime CPU, and is what the
/// floor's consists of.
fn compute_config(dir: &Path, runc: &Path, bridge: &Path) -> Result<String> {
    let quote = |path: &Path| -> Result<String> {
        let text = path.to_str().context("a folder's name is no text")?;
        // JSON's strings are TOML's basic strings.
        Ok(serde_json::Value::from(text).to_string())
    };
    let (root, state) = (dir.join("containerd/root"), dir.join("containerd/state"));
    let (root, state, socket) = (quote(&root)?, quote(&state)?, quote(&socket(dir))?);
    let (runc, conf_dir) = (quote(runc)?, quote(&dir.join("cni"))?);
    let plugins = quote(bridge.parent().unwrap_or(bridge))?;
    let pause = serde_json::Value::from(pods::PAUSE_IMAGE);
    Ok(format!(
        r#"version = 3
root = {root}
state = {state}
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = {socket}

[metrics]
  address = "{METRICS}"
  # How long it works on each call.
  grpc_histogram = true

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = {pause}

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{plugins}]
    conf_dir = {conf_dir}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = {runc}
"#
    ))
}

/// Status and body of a page in the box's network.
pub async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.context("no HTTP status")?, body.to_owned()))
}

/// The machine as it is now.
pub fn host() -> Result<Host> {
    let kernel = rustix::system::uname();
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().and_then(|word| word.parse().ok());
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok());
    let pressure = fs::read_to_string("/proc/pressure/cpu").ok();
    Ok(Host {
        kernel: kernel.release().to_string_lossy().into_owned(),
        cgroup: crate::cgroup::version().to_owned(),
        cores: std::thread::available_parallelism()?.get().try_into()?,
        memory_mib: memory.context("/proc/meminfo has no MemTotal")? / 1024,
        load: load.context("/proc/loadavg cannot be read")?,
        psi: pressure.as_deref().and_then(parse_pressure),
    })
}

/// `some avg10` of a pressure file.
fn parse_pressure(text: &str) -> Option<f64> {
    let some = text
        .lines()
        .find_map(|line| line.strip_prefix("some avg10="))?;
    some.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_the_tasks_share_of_ten_seconds() {
        let text = "some avg10=1.25 avg60=0.50 avg300=0.10 total=1\nfull avg10=0.00\n";
        assert_eq!(parse_pressure(text), Some(1.25));
        assert_eq!(parse_pressure(""), None);
    }
}
