//! The machine's kernels: a distribution's for clouds and virtual machines, which have what a node
//! needs built in or as modules. Their packages ([`packages`]) are unpacked into the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::packages::{Apt, Archive};
use crate::{
    cache::{self, Key},
    command,
    distribution::Distribution,
    setup,
};

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
/// A part of `nf_tables` since 5.18.
const COUNTER: &str = "nft_counter";
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
    /// That of the Ubuntu release which this machine runs.
    #[value(name = "ubuntu")]
    Ubuntu,
}

/// Where a kernel comes from.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    archive: Archive,
    /// The release's name in the archive.
    release: String,
    /// Depends on the newest kernel's package.
    package: &'static str,
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
    /// The one that a distribution's users run, and Debian's where it is not known which that is.
    pub(super) fn own_of(distribution: &Distribution) -> Self {
        match distribution {
            Distribution::Ubuntu { .. } => Self::Ubuntu,
            Distribution::Debian | Distribution::Other => Self::Debian12,
        }
    }

    pub(super) fn archive(self) -> Archive {
        match self {
            Self::Debian12 | Self::Debian11 => Archive::Debian,
            Self::Ubuntu => Archive::Ubuntu,
        }
    }

    /// Where a machine of that distribution gets it.
    fn source(self, on: &Distribution) -> Result<Source> {
        let (release, package) = match self {
            Self::Debian12 => ("bookworm", "linux-image-cloud-amd64"),
            Self::Debian11 => ("bullseye", "linux-image-cloud-amd64"),
            Self::Ubuntu => match on {
                Distribution::Ubuntu { release } => (release.as_str(), "linux-image-virtual"),
                Distribution::Debian | Distribution::Other => {
                    bail!("this machine runs no release of Ubuntu whose kernel could be taken")
                }
            },
        };
        Ok(Source {
            archive: self.archive(),
            release: release.to_owned(),
            package,
        })
    }

    fn modules(self) -> Vec<&'static str> {
        match self {
            Self::Debian12 => MODULES.to_vec(),
            Self::Debian11 | Self::Ubuntu => [MODULES, &[COUNTER]].concat(),
        }
    }

    /// Fetches it where it is not there yet.
    pub(super) fn ensure(self, on: &Distribution) -> Result<Unpacked> {
        let source = self.source(on)?;
        let mut key = Key::default();
        for part in [vec![LAYOUT, source.package], self.modules()].concat() {
            key.add(part.as_bytes());
        }
        let release = &source.release;
        let name = format!("{release}-{}", key.name());
        let folder = cache::ensure("kernel", &name, |folder| {
            println!("kernel: fetching that of {release} (some 50 MB)");
            source
                .fetch(&self.modules(), folder)
                .with_context(|| format!("fetching the kernel of {release}"))
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
}

impl Source {
    /// Of several, apt takes a package's newest version.
    fn suites(&self) -> Vec<String> {
        let release = &self.release;
        match self.archive {
            // A release's own part changes with each point release.
            Archive::Debian => vec![release.clone()],
            // It stays as it was on the day of the release.
            Archive::Ubuntu => vec![release.clone(), format!("{release}-updates")],
        }
    }

    /// The version and packages of the kernel on which a package with these fields depends.
    fn packages<'a>(&self, fields: &'a str) -> Option<(&'a str, Vec<String>)> {
        let depends = fields
            .lines()
            .find_map(|line| line.strip_prefix("Depends:"))?;
        let mut words = depends.split([',', ' ']);
        let version = words.find_map(|word| word.strip_prefix("linux-image-"))?;
        let mut packages = vec![format!("linux-image-{version}")];
        match self.archive {
            Archive::Debian => {}
            Archive::Ubuntu => packages.push(format!("linux-modules-{version}")),
        }
        Some((version, packages))
    }

    fn fetch(&self, modules: &[&str], folder: &Path) -> Result<()> {
        let work = tempfile::tempdir().context("making a folder to unpack in")?;
        let apt = Apt::new(work.path(), self.archive, &self.suites())?;
        let fields = apt.fields(self.package)?;
        let (version, packages) = self
            .packages(&fields)
            .with_context(|| format!("{} depends on no kernel: {fields}", self.package))?;
        let root = apt.unpack(&packages)?;

        let image = root.join(format!("boot/vmlinuz-{version}"));
        fs::copy(&image, folder.join("vmlinuz"))
            .with_context(|| format!("copying {}", image.display()))?;
        let to = folder.join("modules");
        fs::create_dir(&to).context("making the modules' folder")?;
        let found = Modules::below(&root)?;
        if found.are_compressed() {
            setup::ensure_zstd()?;
        }
        for (at, (name, module)) in found.in_order(modules)?.iter().enumerate() {
            // The names give the order.
            let file = to.join(format!("{at:02}-{name}.ko"));
            fs::write(&file, module).with_context(|| format!("writing {}", file.display()))?;
        }
        fs::write(folder.join("version"), version).context("writing the kernel's version")
    }
}

/// What a kernel has beside its image, and what is in that already.
#[derive(Default)]
struct Modules {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Modules {
    fn below(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        for entry in walkdir::WalkDir::new(root) {
            let path = entry
                .context("looking for the kernel's modules")?
                .into_path();
            if path.ends_with("modules.builtin") {
                let list = fs::read_to_string(&path).context("reading what is built in")?;
                let names = list.lines().filter_map(|line| module_name(Path::new(line)));
                modules.built_in.extend(names);
            } else if let Some(name) = module_name(&path) {
                modules.files.insert(name, path);
            }
        }
        Ok(modules)
    }

    /// The wanted modules and what they depend on, each after what it depends on.
    fn in_order(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut order: Vec<(String, Vec<u8>)> = Vec::new();
        let mut open: Vec<String> = wanted
            .iter()
            .rev()
            .filter(|name| !self.is_in_the_image(name))
            .map(|&name| name.to_owned())
            .collect();
        while let Some(name) = open.last().cloned() {
            let is_done = |name: &str| order.iter().any(|(done, _)| done == name);
            if is_done(&name) {
                open.pop();
                continue;
            }
            let Some(file) = self.files.get(&name) else {
                bail!("the package has no module {name}.ko");
            };
            let module = read_module(file)?;
            let missing: Vec<_> = dependencies(&module)
                .into_iter()
                .filter(|name| !is_done(name))
                .collect();
            if missing.is_empty() {
                open.pop();
                order.push((name, module));
            } else {
                open.extend(missing);
            }
        }
        Ok(order)
    }

    fn is_in_the_image(&self, name: &str) -> bool {
        self.built_in.contains(name) || (name == COUNTER && !self.files.contains_key(name))
    }

    fn are_compressed(&self) -> bool {
        let mut files = self.files.values();
        files.any(|file| file.extension().is_some_and(|end| end == "zst"))
    }
}

/// `nf_tables` of `kernel/net/netfilter/nf_tables.ko`, or of the same with `.zst`; none where it is
/// no module.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let name = name.strip_suffix(".zst").unwrap_or(name);
    Some(name.strip_suffix(".ko")?.replace('-', "_"))
}

/// As the machine's init hands it to the kernel, which is not compressed.
fn read_module(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|end| end != "zst") {
        return fs::read(file).with_context(|| format!("reading {}", file.display()));
    }
    let output = tempfile::NamedTempFile::new().context("making a file to unpack into")?;
    command::run(
        Command::new("zstd")
            .args(["--quiet", "--force", "--decompress", "-o"])
            .arg(output.path())
            .arg(file),
    )?;
    fs::read(output.path()).context("reading the unpacked module")
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

    fn noble() -> Distribution {
        let release = "noble".to_owned();
        Distribution::Ubuntu { release }
    }

    #[test]
    fn ubuntu_boots_its_own_kernel_and_all_others_debians() {
        let cases = [
            (Distribution::Debian, Kernel::Debian12),
            (Distribution::Other, Kernel::Debian12),
            (noble(), Kernel::Ubuntu),
        ];
        for (distribution, kernel) in cases {
            assert_eq!(Kernel::own_of(&distribution), kernel, "{distribution:?}");
        }
    }

    #[test]
    fn a_kernel_comes_from_its_own_release_or_from_the_machines() {
        for (kernel, suite) in [
            (Kernel::Debian12, "bookworm"),
            (Kernel::Debian11, "bullseye"),
        ] {
            for machine in [Distribution::Debian, noble()] {
                let source = kernel.source(&machine).expect("a source");
                assert_eq!(source.archive, Archive::Debian);
                assert_eq!(source.suites(), [suite]);
            }
        }
        let source = Kernel::Ubuntu.source(&noble()).expect("a source");
        assert_eq!(source.archive, Archive::Ubuntu);
        assert_eq!(source.suites(), ["noble", "noble-updates"]);
        Kernel::Ubuntu
            .source(&Distribution::Debian)
            .expect_err("it has no such release");
    }

    #[test]
    fn the_packages_of_the_newest_kernel_are_found() {
        let debian = Kernel::Debian11.source(&noble()).expect("a source");
        let fields = "Package: linux-image-cloud-amd64\nVersion: 5.10.223-1\n\
                      Depends: linux-image-5.10.0-32-cloud-amd64 (= 5.10.223-1)\n";
        let (version, packages) = debian.packages(fields).expect("a kernel");
        assert_eq!(version, "5.10.0-32-cloud-amd64");
        assert_eq!(packages, ["linux-image-5.10.0-32-cloud-amd64"]);
        assert_eq!(debian.packages("Package: x\n"), None);

        let ubuntu = Kernel::Ubuntu.source(&noble()).expect("a source");
        let fields = "Package: linux-image-virtual\nVersion: 6.8.0-151.151\n\
                      Depends: linux-image-6.8.0-151-generic\n";
        let (version, packages) = ubuntu.packages(fields).expect("a kernel");
        assert_eq!(version, "6.8.0-151-generic");
        assert_eq!(
            packages,
            [
                "linux-image-6.8.0-151-generic",
                "linux-modules-6.8.0-151-generic"
            ]
        );
    }

    #[test]
    fn a_module_is_known_by_its_files_name() {
        for (file, name) in [
            ("kernel/net/netfilter/xt_mark.ko", Some("xt_mark")),
            ("lib/modules/6.8/kernel/a-b.ko.zst", Some("a_b")),
            ("boot/vmlinuz-6.8", None),
            ("modules.dep", None),
            ("notes.zst", None),
        ] {
            assert_eq!(module_name(Path::new(file)).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for (name, depends) in [
            ("bridge", "stp,llc"),
            ("stp", "llc"),
            ("llc", ""),
            ("overlay", ""),
        ] {
            let text = format!("\u{7f}ELF\0depends={depends}\0name={name}\0");
            fs::write(root.join(format!("{name}.ko")), text).expect("written");
        }
        fs::write(
            root.join("modules.builtin"),
            "kernel/fs/ext4/ext4.ko\nkernel/net/netfilter/xt_mark.ko\n",
        )
        .expect("written");
        let found = Modules::below(root).expect("modules");
        assert!(!found.are_compressed());
        let in_order = |wanted: &[&str]| {
            let order = found.in_order(wanted)?;
            anyhow::Ok(order.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(
            in_order(&["xt_mark", "overlay", "bridge", "llc", COUNTER]).expect("an order"),
            ["overlay", "llc", "stp", "bridge"]
        );
        let error = in_order(&["veth"]).expect_err("no such module");
        assert_eq!(error.to_string(), "the package has no module veth.ko");
    }
}
