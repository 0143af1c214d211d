//! The machine's kernels: Debian's for clouds, which are small and have what a node needs built in.
//! The package is fetched from the mirror that this machine's own apt uses, with lists of its own,
//! and unpacked into the cache; nothing is installed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    cache::{self, Key},
    command, setup,
};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const PACKAGE: &str = "linux-image-cloud-amd64";
/// What a node needs and these kernels have as modules: containers' layers, pods' network, and the
/// rules that its plugins and iptables make.
const MODULES: &[&str] = &[
    "overlay",
    "veth",
    "bridge",
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_tcpudp",
];
/// Part of the key: raise it when what is kept of a package changes.
const LAYOUT: &str = "1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernel {
    /// 6.1: the tracepoint of memory kills hands over a task.
    #[value(name = "debian12")]
    Debian12,
    /// 5.10: it hands over a pid.
    #[value(name = "debian11")]
    Debian11,
}

/// An unpacked kernel.
pub(super) struct Unpacked {
    /// As the kernel itself tells it.
    pub(super) version: String,
    pub(super) image: PathBuf,
    /// In the order in which they must be loaded.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    fn suite(self) -> &'static str {
        match self {
            Self::Debian12 => "bookworm",
            Self::Debian11 => "bullseye",
        }
    }

    fn modules(self) -> Vec<&'static str> {
        match self {
            Self::Debian12 => MODULES.to_vec(),
            // Later a part of another.
            Self::Debian11 => [MODULES, &["nft_counter"]].concat(),
        }
    }

    /// Fetches it where it is not there yet.
    pub(super) fn ensure(self) -> Result<Unpacked> {
        let mut key = Key::default();
        for part in [vec![LAYOUT, PACKAGE], self.modules()].concat() {
            key.add(part.as_bytes());
        }
        let name = format!("{}-{}", self.suite(), key.name());
        let folder = cache::ensure("kernel", &name, |folder| {
            println!("kernel: fetching that of {} (some 40 MB)", self.suite());
            self.fetch(folder)
                .with_context(|| format!("fetching the kernel of {}", self.suite()))
        })?;
        let mut modules = fs::read_dir(folder.join("modules"))
            .and_then(|entries| {
                entries
                    .map(|entry| Ok(entry?.path()))
                    .collect::<Result<Vec<_>, _>>()
            })
            .context("listing the kernel's modules")?;
        modules.sort();
        Ok(Unpacked {
            version: fs::read_to_string(folder.join("version"))
                .context("reading the kernel's version")?,
            image: folder.join("vmlinuz"),
            modules,
        })
    }

    fn fetch(self, folder: &Path) -> Result<()> {
        ensure!(
            command::find("apt-get").is_some(),
            "the kernel comes from a Debian package, and this machine has no apt-get"
        );
        let work = tempfile::tempdir().context("making a folder to unpack in")?;
        let apt = Apt::new(work.path(), self.suite())?;
        apt.run("apt-get", &["update", "-q"])?;
        let depends = apt.read("apt-cache", &["show", "--no-all-versions", PACKAGE])?;
        let package = image_package(&depends)
            .with_context(|| format!("{PACKAGE} depends on no kernel: {depends}"))?;
        apt.run("apt-get", &["download", "-q", package])?;
        let root = work.path().join("root");
        let file = fs::read_dir(work.path())
            .context("listing what was fetched")?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|end| end == "deb"))
            .with_context(|| format!("apt fetched no {package}"))?;
        command::run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&root))?;

        let version = package.trim_start_matches("linux-image-");
        let copy = |from: &Path, to: &Path| {
            fs::copy(from, to).with_context(|| format!("copying {}", from.display()))
        };
        copy(
            &root.join(format!("boot/vmlinuz-{version}")),
            &folder.join("vmlinuz"),
        )?;
        let modules = folder.join("modules");
        fs::create_dir(&modules).context("making the modules' folder")?;
        let found = modules_below(&root)?;
        for (at, name) in load_order(&self.modules(), &found)?.iter().enumerate() {
            // The names give the order.
            copy(&found[name], &modules.join(format!("{at:02}-{name}.ko")))?;
        }
        fs::write(folder.join("version"), version).context("writing the kernel's version")
    }
}

/// apt with one source, and lists of its own.
struct Apt<'a> {
    work: &'a Path,
}

impl<'a> Apt<'a> {
    fn new(work: &'a Path, suite: &str) -> Result<Self> {
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.join(folder)).context("making apt's folders")?;
        }
        fs::write(work.join("status"), "").context("writing apt's status")?;
        let signed_by = if Path::new(KEYRING).is_file() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        let source = format!("deb {signed_by}{} {suite} main\n", mirror()?);
        fs::write(work.join("sources.list"), source).context("writing apt's source")?;
        Ok(Self { work })
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

    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        command::run(&mut self.command(program, args))
    }

    fn read(&self, program: &str, args: &[&str]) -> Result<String> {
        command::read(&mut self.command(program, args))
    }
}

/// Where this machine gets Debian's packages.
fn mirror() -> Result<String> {
    let listed = || {
        let mut apt = Command::new("apt-get");
        apt.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)"]);
        command::read(apt.arg("Created-By: Packages"))
    };
    let of_debian = |list: &str| {
        let mut lines = list.lines();
        let found = lines.find_map(|line| line.strip_prefix("Debian "))?;
        Some(found.trim().to_owned())
    };
    if let Some(mirror) = of_debian(&listed()?) {
        return Ok(mirror);
    }
    // A machine on which nothing had to be installed may have no package lists at all.
    setup::update_lists()?;
    of_debian(&listed()?)
        .context("the kernels are Debian's, and none of this machine's package sources is Debian's")
}

/// The kernel's package, from the fields of the one that names the newest.
fn image_package(fields: &str) -> Option<&str> {
    let depends = fields
        .lines()
        .find_map(|line| line.strip_prefix("Depends:"))?;
    depends
        .split([',', ' '])
        .find(|word| word.starts_with("linux-image-"))
}

/// By name.
fn modules_below(root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root) {
        let path = entry
            .context("looking for the kernel's modules")?
            .into_path();
        if path.extension().is_some_and(|end| end == "ko")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(found)
}

/// The wanted modules and what they depend on, each after what it depends on.
fn load_order(wanted: &[&str], found: &BTreeMap<String, PathBuf>) -> Result<Vec<String>> {
    let mut order = Vec::new();
    let mut open: Vec<String> = wanted.iter().rev().map(|&name| name.to_owned()).collect();
    while let Some(name) = open.last().cloned() {
        let Some(file) = found.get(&name) else {
            bail!("the package has no module {name}.ko");
        };
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let missing: Vec<_> = dependencies(&bytes)
            .into_iter()
            .filter(|name| !order.contains(name))
            .collect();
        if missing.is_empty() {
            open.pop();
            if !order.contains(&name) {
                order.push(name);
            }
        } else {
            open.extend(missing);
        }
    }
    Ok(order)
}

/// A module says so itself, in a text `depends=a,b` that ends with a zero byte.
fn dependencies(module: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(WORD.len()).position(|part| part == WORD) else {
        return Vec::new();
    };
    let rest = &module[at + WORD.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_the_newest_kernel_is_found() {
        let fields = "Package: linux-image-cloud-amd64\nVersion: 5.10.223-1\n\
                      Depends: linux-image-5.10.0-32-cloud-amd64 (= 5.10.223-1)\n";
        assert_eq!(
            image_package(fields),
            Some("linux-image-5.10.0-32-cloud-amd64")
        );
        assert_eq!(image_package("Package: x\n"), None);
    }

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut found = BTreeMap::new();
        for (name, depends) in [
            ("bridge", "stp,llc"),
            ("stp", "llc"),
            ("llc", ""),
            ("overlay", ""),
        ] {
            let path = folder.path().join(name);
            fs::write(
                &path,
                format!("\u{7f}ELF\0depends={depends}\0name={name}\0"),
            )
            .expect("written");
            found.insert(name.to_owned(), path);
        }
        assert_eq!(
            load_order(&["overlay", "bridge"], &found).expect("an order"),
            ["overlay", "llc", "stp", "bridge"]
        );
        let error = load_order(&["veth"], &found).expect_err("no such module");
        assert_eq!(error.to_string(), "the package has no module veth.ko");
    }
}
