//! The programs that a containerd of our own is made of, and how short-lived ones are called.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::time::timeout;

use super::{Error, Settings, plan::Version, text};

/// What CRI calls its containers' namespace.
pub(super) const NAMESPACE: &str = "k8s.io";
/// A call that hangs is a failed one.
const LIMIT: Duration = Duration::from_secs(10);
/// Every plugin that our network uses.
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// The programs and the version of containerd.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) containerd: PathBuf,
    ctr: PathBuf,
    pub(super) runc: PathBuf,
    pub(super) plugins: PathBuf,
    /// The PATH that containerd gets: its shim from where it is itself.
    pub(super) path: String,
    pub(super) version: Version,
}

impl Programs {
    /// A short call of `ctr`: what it printed.
    pub(super) async fn ctr(&self, settings: &Settings, args: &[&str]) -> Result<String, Error> {
        self.ctr_within(settings, args, LIMIT).await
    }

    pub(super) async fn ctr_within(
        &self,
        settings: &Settings,
        args: &[&str],
        limit: Duration,
    ) -> Result<String, Error> {
        let socket = text(&settings.file("containerd.sock"))?;
        let args: Vec<_> = ["--address", &socket, "--namespace", NAMESPACE]
            .iter()
            .chain(args)
            .copied()
            .collect();
        command_within(&text(&self.ctr)?, &args, limit).await
    }
}

/// A service's PATH, or a user's, often lacks the folders of system programs.
fn program_dirs(settings: &Settings) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    settings
        .bin_dirs
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path).filter(|dir| dir.is_absolute()))
        .chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"].map(PathBuf::from))
        .collect()
}

pub(super) async fn find(settings: &Settings) -> Result<Programs, Error> {
    let dirs = program_dirs(settings);
    let find_one = |program: &'static str, package: &'static str| {
        dirs.iter()
            .map(|dir| dir.join(program))
            .find(|file| file.is_file())
            .ok_or_else(|| Error::NotInstalled {
                program,
                package,
                places: list(&dirs),
            })
    };
    let containerd = find_one("containerd", "containerd")?;
    let ctr = find_one("ctr", "containerd")?;
    find_one("containerd-shim-runc-v2", "containerd")?;
    let runc = find_one("runc", "runc")?;
    // Bridge and host ports are made by them.
    find_one("iptables", "iptables")?;
    find_one("ip", "iproute2")?;
    let plugin_dirs: Vec<_> = settings
        .bin_dirs
        .iter()
        .cloned()
        .chain(["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"].map(PathBuf::from))
        .collect();
    let plugins = plugin_dirs
        .iter()
        .find(|dir| PLUGINS.iter().all(|name| dir.join(name).is_file()))
        .ok_or_else(|| Error::NoPlugins {
            missing: PLUGINS.join(", "),
            places: list(&plugin_dirs),
        })?
        .clone();

    let program = text(&containerd)?;
    let printed = command(&program, &["--version"]).await?;
    let version = Version::parse(&printed).ok_or(Error::NoVersion { program, printed })?;
    if version < Version::OLDEST {
        return Err(Error::TooOld { found: version });
    }
    let own_dir = containerd.parent().map(Path::to_path_buf);
    let path = std::env::join_paths(own_dir.iter().chain(&dirs))
        .ok()
        .and_then(|path| path.into_string().ok())
        .ok_or_else(|| Error::BadFolder { dir: list(&dirs) })?;
    Ok(Programs {
        containerd,
        ctr,
        runc,
        plugins,
        path,
        version,
    })
}

fn list(dirs: &[PathBuf]) -> String {
    let mut names: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    names.dedup();
    names.join(", ")
}

/// A short call: what it printed.
pub(super) async fn command(program: &str, args: &[&str]) -> Result<String, Error> {
    command_within(program, args, LIMIT).await
}

/// Runs it to its end, at most `limit`; what it printed.
async fn command_within(program: &str, args: &[&str], limit: Duration) -> Result<String, Error> {
    let failed = |said: String| Error::Command {
        command: format!("{program} {}", args.join(" ")),
        said,
    };
    let output = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(limit, output)
        .await
        .map_err(|_elapsed| failed(format!("no end after {} s", limit.as_secs())))?
        .map_err(|source| Error::Start {
            program: program.to_owned(),
            source,
        })?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
