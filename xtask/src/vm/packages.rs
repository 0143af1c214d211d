//! Packages of a distribution's archive: fetched from the mirror that this machine's own apt uses,
//! with lists of their own, and unpacked; nothing is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{command, setup};

/// Whose packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Archive {
    Debian,
    Ubuntu,
}

impl Archive {
    /// As the archive calls itself.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Debian => "Debian",
            Self::Ubuntu => "Ubuntu",
        }
    }

    /// With it apt trusts this archive and no other; where it is missing, what apt trusts anyway.
    fn keyring(self) -> &'static str {
        match self {
            Self::Debian => "/usr/share/keyrings/debian-archive-keyring.gpg",
            Self::Ubuntu => "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
        }
    }

    /// Whether this machine gets packages from it at all.
    pub(super) fn is_a_source(self) -> Result<bool> {
        Ok(self.mirror()?.is_some())
    }

    /// Where this machine gets its packages; none where it does not.
    fn mirror(self) -> Result<Option<String>> {
        ensure!(
            command::find("apt-get").is_some(),
            "the kernel comes from {}'s packages, and this machine has no apt-get",
            self.label()
        );
        let listed = || {
            let mut apt = Command::new("apt-get");
            apt.args(["indextargets", "--format", "$(REPO_URI) $(LABEL)"]);
            command::read(apt.arg("Created-By: Packages"))
        };
        let mut list = listed()?;
        if list.is_empty() {
            // A machine on which nothing had to be installed may have no package lists at all.
            setup::update_lists()?;
            list = listed()?;
        }
        Ok(self.mirror_in(&list))
    }

    /// From lines like `http://mirror.example/debian/ Debian`.
    fn mirror_in(self, listed: &str) -> Option<String> {
        let mut lines = listed.lines().filter_map(|line| line.split_once(' '));
        let (mirror, _) = lines.find(|(_, label)| label.trim() == self.label())?;
        Some(mirror.to_owned())
    }
}

/// apt with one archive, and lists of its own.
pub(super) struct Apt<'a> {
    work: &'a Path,
}

impl<'a> Apt<'a> {
    /// Everything lies below `work`.
    pub(super) fn new(work: &'a Path, archive: Archive, suites: &[String]) -> Result<Self> {
        let mirror = archive.mirror()?.with_context(|| {
            let label = archive.label();
            format!(
                "the kernel is {label}'s, and none of this machine's package sources is {label}'s"
            )
        })?;
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.join(folder)).context("making apt's folders")?;
        }
        fs::write(work.join("status"), "").context("writing apt's status")?;
        let keyring = archive.keyring();
        let signed_by = if Path::new(keyring).is_file() {
            format!("[signed-by={keyring}] ")
        } else {
            String::new()
        };
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb {signed_by}{mirror} {suite} main\n"))
            .collect();
        fs::write(work.join("sources.list"), sources).context("writing apt's sources")?;
        let apt = Self { work };
        command::run(&mut apt.command("apt-get", &["update", "-q"]))?;
        Ok(apt)
    }

    /// The fields of the package that would be installed.
    pub(super) fn fields(&self, package: &str) -> Result<String> {
        command::read(&mut self.command("apt-cache", &["show", "--no-all-versions", package]))
    }

    /// Fetches the packages and unpacks them into one folder, which this names.
    pub(super) fn unpack(&self, packages: &[String]) -> Result<PathBuf> {
        let names: Vec<_> = packages.iter().map(String::as_str).collect();
        let args = [&["download", "-q"], names.as_slice()].concat();
        command::run(&mut self.command("apt-get", &args))?;
        let files: Vec<_> = fs::read_dir(self.work)
            .context("listing what was fetched")?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "deb"))
            .collect();
        ensure!(
            files.len() == packages.len(),
            "apt fetched {} packages instead of {}",
            files.len(),
            names.join(", ")
        );
        let root = self.work.join("root");
        for file in &files {
            command::run(Command::new("dpkg-deb").arg("-x").arg(file).arg(&root))?;
        }
        Ok(root)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        let work = self.work.display();
        for (name, value) in [
            ("Dir::State", format!("{work}")),
            ("Dir::State::lists", format!("{work}/lists")),
            ("Dir::State::status", format!("{work}/status")),
            ("Dir::Cache", format!("{work}/cache")),
            ("Dir::Etc::sourcelist", format!("{work}/sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
            // The download's own user could not write here.
            ("APT::Sandbox::User", "root".to_owned()),
            ("APT::Architecture", "amd64".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            // An old release is not signed anew.
            ("Acquire::Check-Valid-Until", "false".to_owned()),
            (
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
                "false".to_owned(),
            ),
        ] {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        command.args(args).current_dir(self.work);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_first_of_the_archives_own() {
        let listed = "http://mirror.example/backports/ Debian Backports\n\
                      http://ppa.example/ubuntu/ Ubuntu of Somebody\n\
                      http://mirror.example/ubuntu/ Ubuntu\n\
                      http://security.example/ubuntu/ Ubuntu\n";
        assert_eq!(
            Archive::Ubuntu.mirror_in(listed).as_deref(),
            Some("http://mirror.example/ubuntu/")
        );
        assert_eq!(Archive::Debian.mirror_in(listed), None);
        assert_eq!(
            Archive::Debian.mirror_in("http://mirror.example/debian/ Debian"),
            Some("http://mirror.example/debian/".to_owned())
        );
    }
}
