//! Running other programs: what they are asked, whether they did it, and as whom.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use anyhow::{Context as _, Result, bail};

/// Where programs of the system lie that a user's PATH often lacks.
const SYSTEM: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/go/bin"];

/// The program's full path, from PATH and the system's own folders.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM.iter().map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Runs it with this terminal's output; anything but success is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {}", line(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(())
}

/// Runs it and gives what it printed, without the line end.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", line(command)))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}: {}",
            line(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed something that is not text", line(command)))?;
    Ok(text.trim_end().to_owned())
}

/// Runs it and gives what it printed; what it says of its work and its errors goes to this terminal.
pub(crate) fn read_with_errors(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", line(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", line(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Cargo in the workspace's folder, as a person would run it there: without what cargo told this
/// program of its own package. Some build scripts watch those variables, and all that depends on
/// their packages would be built anew whenever cargo is run from here after it was run by hand.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    for (name, _) in env::vars_os() {
        if is_of_package(&name) {
            command.env_remove(name);
        }
    }
    command
}

fn is_of_package(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// A command with root's rights: as it is for root, through sudo for others. The variables in
/// `keep` reach it either way (sudo drops the environment).
pub(crate) fn as_root(program: impl AsRef<OsStr>, keep: &[(&str, &OsStr)]) -> Command {
    if is_root() {
        let mut command = Command::new(program);
        command.envs(keep.iter().copied());
        return command;
    }
    let mut command = Command::new("sudo");
    command.arg("env");
    for (name, value) in keep {
        let mut pair = std::ffi::OsString::from(name);
        pair.push("=");
        pair.push(value);
        command.arg(pair);
    }
    command.arg(program);
    command
}

/// The command as a person would type it.
pub(crate) fn line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// The folder of the workspace: as cargo tells it to what it runs, since a target folder that
/// clones share may hold a program that was built in another one.
pub(crate) fn workspace() -> &'static Path {
    static PACKAGE: LazyLock<PathBuf> = LazyLock::new(|| {
        let told = env::var_os("CARGO_MANIFEST_DIR");
        told.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
    });
    PACKAGE
        .parent()
        .expect("the package lies in the workspace's folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_of_this_package_and_keeps_what_the_user_set() {
        for name in ["CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(is_of_package(OsStr::new(name)), "{name}");
        }
        for name in ["CARGO_TARGET_DIR", "CARGO_HOME", "CARGO", "PATH"] {
            assert!(!is_of_package(OsStr::new(name)), "{name}");
        }
        // Cargo runs this test too.
        let removed = cargo();
        let mut removed = removed.get_envs();
        assert!(removed.any(|(name, value)| name == "CARGO_MANIFEST_DIR" && value.is_none()));
    }
}
