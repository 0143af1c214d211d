//! The programs that tests and benches run against, each at one version: built from the Go modules that
//! `bench/upstream/*/go.mod` pins, and kept in the cache by module file, sum file, Go and flags.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cache::{self, Key},
    command,
};

/// What belongs together: one module file, one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Containerd,
    Runc,
    Cni,
    Cri,
    Kubelet,
}

/// What tests need. The kubelet is for benches only, which measure beside it.
pub(crate) const TESTED: [Part; 4] = [Part::Containerd, Part::Runc, Part::Cni, Part::Cri];

struct Recipe {
    /// The folder below `bench/upstream`.
    dir: &'static str,
    /// The module whose version names the part.
    module: &'static str,
    packages: &'static [&'static str],
    /// The variables that the linker sets, each to a part of the version.
    stamps: &'static [(&'static str, Stamp)],
    cgo: bool,
    tags: &'static str,
}

/// What of a version like `v1.2.3` a variable is set to.
#[derive(Clone, Copy)]
enum Stamp {
    /// `v1.2.3`
    Whole,
    /// `1`
    Major,
    /// `2`
    Minor,
}

impl Stamp {
    fn of(self, version: &str) -> Option<&str> {
        let mut numbers = version.strip_prefix('v')?.split('.');
        match self {
            Self::Whole => Some(version),
            Self::Major => numbers.next(),
            Self::Minor => numbers.nth(1),
        }
    }
}

impl Part {
    fn recipe(self) -> Recipe {
        match self {
            Self::Containerd => Recipe {
                dir: "containerd",
                module: "github.com/containerd/containerd/v2",
                packages: &[
                    "github.com/containerd/containerd/v2/cmd/containerd",
                    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                    "github.com/containerd/containerd/v2/cmd/ctr",
                ],
                stamps: &[(
                    "github.com/containerd/containerd/v2/version.Version",
                    Stamp::Whole,
                )],
                cgo: false,
                tags: "",
            },
            // Without the tag every container fails: the default profile needs seccomp.
            Self::Runc => Recipe {
                dir: "runc",
                module: "github.com/opencontainers/runc",
                packages: &["github.com/opencontainers/runc"],
                stamps: &[],
                cgo: true,
                tags: "seccomp",
            },
            Self::Cni => Recipe {
                dir: "cni",
                module: "github.com/containernetworking/plugins",
                packages: &[
                    "github.com/containernetworking/plugins/plugins/ipam/host-local",
                    "github.com/containernetworking/plugins/plugins/main/bridge",
                    "github.com/containernetworking/plugins/plugins/main/loopback",
                    "github.com/containernetworking/plugins/plugins/meta/portmap",
                ],
                stamps: &[],
                cgo: false,
                tags: "",
            },
            Self::Cri => Recipe {
                dir: "cri",
                module: "sigs.k8s.io/cri-tools",
                packages: &["sigs.k8s.io/cri-tools/cmd/crictl"],
                stamps: &[("sigs.k8s.io/cri-tools/pkg/version.Version", Stamp::Whole)],
                cgo: false,
                tags: "",
            },
            // Without the stamps it says v0.0.0, and feature gates go by the version.
            Self::Kubelet => Recipe {
                dir: "kubernetes",
                module: "k8s.io/kubernetes",
                packages: &["k8s.io/kubernetes/cmd/kubelet"],
                stamps: &[
                    ("k8s.io/component-base/version.gitVersion", Stamp::Whole),
                    ("k8s.io/component-base/version.gitMajor", Stamp::Major),
                    ("k8s.io/component-base/version.gitMinor", Stamp::Minor),
                ],
                cgo: false,
                tags: "",
            },
        }
    }
}

/// Where each part's programs are.
#[derive(Debug)]
pub(crate) struct Paths(Vec<(Part, PathBuf)>);

impl Paths {
    /// The folder with the part's programs; none if it was not asked for.
    pub(crate) fn dir(&self, part: Part) -> Option<&Path> {
        self.0
            .iter()
            .find(|(it, _)| *it == part)
            .map(|(_, dir)| dir.as_path())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Part, &Path)> {
        self.0.iter().map(|(part, dir)| (*part, dir.as_path()))
    }
}

/// Builds what is missing of the parts, one after the other (each build uses all processors).
pub(crate) fn ensure(parts: &[Part]) -> Result<Paths> {
    let go = command::find("go").context(
        "Go is needed to build containerd, runc, the CNI plugins, crictl and the kubelet at the \
         tested versions: install Go 1.26 or newer",
    )?;
    parts
        .iter()
        .map(|part| {
            let recipe = part.recipe();
            build(&go, &recipe)
                .map(|dir| (*part, dir))
                .with_context(|| format!("building {} from bench/upstream", recipe.dir))
        })
        .collect::<Result<_>>()
        .map(Paths)
}

fn build(go: &Path, recipe: &Recipe) -> Result<PathBuf> {
    let module = command::workspace().join("bench/upstream").join(recipe.dir);
    let read = |name: &str| {
        let file = module.join(name);
        fs::read(&file).with_context(|| format!("reading {}", file.display()))
    };
    let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
    let version = version_in(&String::from_utf8_lossy(&go_mod), recipe.module)
        .with_context(|| format!("go.mod does not pin {}", recipe.module))?
        .to_owned();
    let mut ldflags = "-s -w".to_owned();
    for (variable, stamp) in recipe.stamps {
        let value = stamp
            .of(&version)
            .with_context(|| format!("{version} is not of the form v1.2.3"))?;
        ldflags.push_str(&format!(" -X {variable}={value}"));
    }
    let flags = [
        "build",
        "-trimpath",
        "-mod=readonly",
        "-buildvcs=false",
        "-tags",
        recipe.tags,
        "-ldflags",
        &ldflags,
    ];
    let cgo = if recipe.cgo { "1" } else { "0" };
    let go_here = || {
        let mut command = Command::new(go);
        // The user's own flags and workspace are about the user's own code.
        command
            .current_dir(&module)
            .env("GOFLAGS", "")
            .env("GOWORK", "off")
            .env("CGO_ENABLED", cgo);
        command
    };
    let target = command::read(go_here().args(["env", "GOVERSION", "GOOS", "GOARCH"]))?;

    let mut key = Key::default();
    key.add(&go_mod)
        .add(&go_sum)
        .add(target.as_bytes())
        .add(cgo.as_bytes());
    for input in flags.iter().chain(recipe.packages) {
        key.add(input.as_bytes());
    }
    let name = format!("{}-{version}-{}", recipe.dir, key.name());
    cache::ensure("upstream", &name, |dir| {
        let started = Instant::now();
        println!("upstream: building {} {version} ...", recipe.dir);
        let mut out = dir.as_os_str().to_owned();
        // A folder, to Go, ends so.
        out.push("/");
        command::run(
            go_here()
                .args(flags)
                .arg("-o")
                .arg(out)
                .args(recipe.packages),
        )?;
        for package in recipe.packages {
            let program = package.rsplit('/').next().unwrap_or(package);
            if !dir.join(program).is_file() {
                bail!("go built no program {program}");
            }
        }
        println!(
            "upstream: {} {version} built in {:.0} s",
            recipe.dir,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    })
}

/// The version that a `require` line gives the module.
fn version_in<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "require");
        (words.next() == Some(module)).then(|| words.next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_pinned_at_the_version_that_is_tested() {
        let parts = <Part as clap::ValueEnum>::value_variants();
        let pinned = parts.iter().map(|part| {
            let recipe = part.recipe();
            let file = command::workspace()
                .join("bench/upstream")
                .join(recipe.dir)
                .join("go.mod");
            let text = fs::read_to_string(file).expect("a module file");
            version_in(&text, recipe.module)
                .expect("a version")
                .to_owned()
        });
        assert_eq!(
            pinned.collect::<Vec<_>>(),
            ["v2.4.2", "v1.4.3", "v1.9.1", "v1.37.0", "v1.37.2"]
        );
    }

    #[test]
    fn a_version_is_stamped_whole_or_by_its_numbers() {
        assert_eq!(Stamp::Whole.of("v1.37.2"), Some("v1.37.2"));
        assert_eq!(Stamp::Major.of("v1.37.2"), Some("1"));
        assert_eq!(Stamp::Minor.of("v1.37.2"), Some("37"));
        assert_eq!(Stamp::Minor.of("v1"), None);
    }

    #[test]
    fn a_version_is_found_in_both_forms_of_require() {
        let text = "module m\nrequire a.b/c v1.2.3\nrequire (\n\td.e/f v0.1.0 // indirect\n)\n";
        assert_eq!(version_in(text, "a.b/c"), Some("v1.2.3"));
        assert_eq!(version_in(text, "d.e/f"), Some("v0.1.0"));
        assert_eq!(version_in(text, "d.e"), None);
    }
}
