//! `cargo xtask build-ebpf`: builds the kernel programs, which need a compiler that may use unstable
//! features, the sources of `core`, and `bpf-linker`.
//!
//! The user's nightly is taken where it has `rust-src` and where `bpf-linker` is installed.
//! On Debian a private tool chain is else fetched into the cache folder: Debian's rustc with its
//! library sources, and a `bpf-linker` built for it; nothing is installed in the system or in rustup.
//! Elsewhere the programs can't be built, and only a change of their sources is seen.
//!
//! The object is committed with the fingerprint of the tool chain that made it. Under the same tool
//! chain the bytes are the same wherever the folder lies, so that they can be compared; under
//! another one the fresh object is what gets tested.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::{cache, command, distribution::Distribution, setup};

const LINKER_VERSION: &str = "0.13.0";
const DEBIAN_COMPILER: &str = "rustc-web";
const TARGET: &str = "bpfel-unknown-none";
/// Where there is no private tool chain.
const INSTEAD: &str = "build with a nightly instead: `rustup toolchain install nightly \
                       --component rust-src` and `cargo install bpf-linker`";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing: compare what the sources give with what is committed.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.check {
        return match check()? {
            Checked::Compared => Ok(()),
            Checked::NotCompared(missing) => bail!(missing),
        };
    }
    let chain = match ToolChain::find()? {
        Ok(chain) => chain,
        Err(missing) => bail!(missing),
    };
    let built = build(&chain)?;
    let committed = Committed::place();
    fs::copy(&built, &committed.object)
        .with_context(|| format!("writing {}", committed.object.display()))?;
    let text = format!("{}{}\n", sources_line()?, chain.fingerprint);
    fs::write(&committed.fingerprint, text)
        .with_context(|| format!("writing {}", committed.fingerprint.display()))?;
    println!("wrote {}", committed.object.display());
    Ok(())
}

/// The object to test instead of the committed one, once [`check`] has found another tool chain.
static FRESH: OnceLock<PathBuf> = OnceLock::new();

/// What `cargo` must be told so that the library carries the fresh object.
pub(crate) fn object_to_test() -> Option<(&'static str, &'static Path)> {
    FRESH.get().map(|path| ("SKEP_EBPF_OBJECT", path.as_path()))
}

/// What a check came to that found nothing wrong.
pub(crate) enum Checked {
    /// The sources were built.
    Compared,
    /// The sources are those of which the committed object was made, as was noted then. They can't
    /// be built here, for this reason.
    NotCompared(String),
}

/// Fails where the committed object is not what the sources give.
pub(crate) fn check() -> Result<Checked> {
    let committed = Committed::place();
    let recorded = fs::read_to_string(&committed.fingerprint)
        .with_context(|| format!("reading {}", committed.fingerprint.display()))?;
    let again = "run `cargo xtask build-ebpf` and commit what it writes";
    let Some(recorded) = recorded.strip_prefix(&sources_line()?) else {
        bail!("the kernel programs' sources have changed since their object was built: {again}");
    };
    let chain = match ToolChain::find()? {
        Ok(chain) => chain,
        Err(missing) => return Ok(Checked::NotCompared(missing)),
    };
    let built = build(&chain)?;
    if recorded.trim_end() == chain.fingerprint {
        let fresh = fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
        let old = fs::read(&committed.object)
            .with_context(|| format!("reading {}", committed.object.display()))?;
        ensure!(
            fresh == old,
            "the committed kernel programs are not what their sources give: {again}"
        );
        println!("the committed kernel programs are what their sources give, byte for byte");
        return Ok(Checked::Compared);
    }
    let kept = built.with_file_name("fresh.o");
    fs::copy(&built, &kept).with_context(|| format!("writing {}", kept.display()))?;
    println!(
        "the committed kernel programs come from another tool chain, so bytes cannot be compared; \
         tests with SKEP_EBPF_OBJECT={} use the fresh ones",
        kept.display()
    );
    FRESH.get_or_init(|| kept);
    Ok(Checked::Compared)
}

struct Committed {
    object: PathBuf,
    fingerprint: PathBuf,
}

impl Committed {
    fn place() -> Self {
        let folder = command::workspace().join("ebpf/object");
        Self {
            object: folder.join("skep.o"),
            fingerprint: folder.join("FINGERPRINT"),
        }
    }
}

/// The first line of the fingerprint file: tells changed sources on a machine with any tool chain.
fn sources_line() -> Result<String> {
    let package = command::workspace().join("ebpf");
    let mut files = vec![package.join("Cargo.toml")];
    for entry in walkdir::WalkDir::new(package.join("src")).sort_by_file_name() {
        let entry = entry.context("listing the kernel programs' sources")?;
        if entry.file_type().is_file() {
            files.push(entry.into_path());
        }
    }
    let mut key = cache::Key::default();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        key.add(&text);
    }
    Ok(format!("sources: {}\n", key.name()))
}

/// A compiler for the kernel's machine and what belongs to it.
struct ToolChain {
    cargo: PathBuf,
    rustc: PathBuf,
    sysroot: PathBuf,
    /// The folder of `bpf-linker`.
    linker: PathBuf,
    /// Shared libraries that neither finds by itself.
    libraries: Option<PathBuf>,
    /// Versions of compiler, LLVM and linker.
    fingerprint: String,
}

impl ToolChain {
    /// The inner error is what to do on a machine that can have none by itself.
    fn find() -> Result<Result<Self, String>> {
        let missing = match Self::of_the_user()? {
            Ok(chain) => {
                println!("using the nightly of rustup and {}", chain.linker.display());
                return Ok(Ok(chain));
            }
            Err(missing) => missing,
        };
        match Distribution::of_this_machine() {
            Distribution::Debian => {
                println!("using a private tool chain, since there is no {missing}");
                Self::private()
            }
            // Ubuntu's compilers have their LLVM inside, where no linker can use it.
            Distribution::Ubuntu { .. } | Distribution::Other => Ok(Err(format!(
                "there is no {missing}, and a private tool chain is made of Debian's packages; \
                 {INSTEAD}"
            ))),
        }
    }

    /// The inner error is what is missing.
    fn of_the_user() -> Result<Result<Self, &'static str>> {
        let which = |tool| {
            let mut which = Command::new("rustup");
            command::read(which.args(["which", "--toolchain", "nightly", tool])).map(PathBuf::from)
        };
        let Ok(rustc) = which("rustc") else {
            return Ok(Err("nightly"));
        };
        let Ok(cargo) = which("cargo") else {
            return Ok(Err("cargo in the nightly"));
        };
        let sysroot = command::read(Command::new(&rustc).args(["--print", "sysroot"]))?;
        let sysroot = PathBuf::from(sysroot);
        if !sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
            return Ok(Err("rust-src in the nightly"));
        }
        let Some(linker) = command::find("bpf-linker") else {
            return Ok(Err("bpf-linker"));
        };
        let linker = linker.parent().context("a file has a folder")?.to_owned();
        Self::new(cargo, rustc, sysroot, linker, None).map(Ok)
    }

    /// The inner error is why there can be none.
    fn private() -> Result<Result<Self, String>> {
        if command::find("apt-get").is_none() {
            return Ok(Err(format!(
                "a private tool chain is made of Debian's packages, and there is no apt-get; \
                 {INSTEAD}"
            )));
        }
        let policy = || command::read(Command::new("apt-cache").args(["policy", DEBIAN_COMPILER]));
        let mut listed = policy()?;
        if candidate(&listed).is_none() {
            // A machine on which nothing had to be installed may have no package lists at all.
            setup::update_lists()?;
            listed = policy()?;
        }
        let Some(version) = candidate(&listed) else {
            return Ok(Err(format!(
                "this distribution has no package {DEBIAN_COMPILER}; {INSTEAD}"
            )));
        };
        let name = format!("{version}-{LINKER_VERSION}");
        let folder = cache::ensure("bpf-toolchain", &name, |folder| {
            println!("fetching and building it: some 150 MB, one or two minutes");
            let started = Instant::now();
            fetch(version, folder)?;
            println!("done in {:.0} s", started.elapsed().as_secs_f64());
            Ok(())
        })?;
        let root = folder.join("root");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self::new(
            cargo.into(),
            root.join("usr/bin/rustc"),
            root.clone(),
            folder.join("linker/bin"),
            Some(library_folder(&root)?),
        )
        .map(Ok)
    }

    fn new(
        cargo: PathBuf,
        rustc: PathBuf,
        sysroot: PathBuf,
        linker: PathBuf,
        libraries: Option<PathBuf>,
    ) -> Result<Self> {
        let mut chain = Self {
            cargo,
            rustc,
            sysroot,
            linker,
            libraries,
            fingerprint: String::new(),
        };
        let compiler = command::read(chain.command(&chain.rustc).arg("-vV"))?;
        let linker = chain.linker.join("bpf-linker");
        let linker = command::read(chain.command(&linker).arg("--version"))?;
        chain.fingerprint = format!("{compiler}\n{linker}");
        Ok(chain)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

/// The version that apt would install, from what `apt-cache policy` prints.
fn candidate(policy: &str) -> Option<&str> {
    policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))
        .map(str::trim)
        .filter(|version| *version != "(none)")
}

/// `1.96.0` and `1.96` of `1.96.0+dfsg1-1~deb12u2`.
fn release_of(version: &str) -> Option<(&str, &str)> {
    let release = version.split(['+', '-', '~']).next()?;
    Some((release, release.rsplit_once('.')?.0))
}

/// `22` of a `Depends:` that names `libllvm22 (>= 1:22~)`.
fn llvm_of(depends: &str) -> Option<&str> {
    let rest = depends.split("libllvm").nth(1)?;
    let end = rest.find(|one: char| !one.is_ascii_digit());
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|number| !number.is_empty())
}

/// Makes the private tool chain in `folder`.
fn fetch(version: &str, folder: &Path) -> Result<()> {
    let (release, minor) = release_of(version)
        .with_context(|| format!("the version {version} of {DEBIAN_COMPILER} is not understood"))?;
    let packages = folder.join("packages");
    let root = folder.join("root");
    fs::create_dir_all(&packages).with_context(|| format!("making {}", packages.display()))?;
    let download = |names: &[String]| {
        let mut apt = Command::new("apt-get");
        // The download's own user could not write here.
        apt.args(["--quiet", "-o", "APT::Sandbox::User=root", "download"]);
        command::run(apt.args(names).current_dir(&packages))
    };
    let library = format!("libstd-rust-web-{minor}");
    download(&[
        format!("{DEBIAN_COMPILER}={version}"),
        format!("libstd-rust-web-dev={version}"),
        format!("{library}={version}"),
        format!("rust-web-src={version}"),
    ])?;
    let found = package_file(&packages, &library)?;
    let depends = command::read(Command::new("dpkg-deb").arg("-f").arg(found).arg("Depends"))?;
    let llvm = llvm_of(&depends)
        .with_context(|| format!("{library} depends on no libllvm: {depends}"))?
        .to_owned();
    download(&[format!("libllvm{llvm}"), "libz3-4".to_owned()])?;

    for entry in fs::read_dir(&packages).context("listing what was fetched")? {
        let file = entry.context("listing what was fetched")?.path();
        command::run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&root))?;
    }
    // The sources of the compiler itself are most of the package; only the libraries' are needed.
    let sources = root.join(format!("usr/src/rustc-{release}"));
    for entry in fs::read_dir(&sources).with_context(|| format!("reading {}", sources.display()))? {
        let path = entry.context("listing the sources")?.path();
        if path.file_name().is_some_and(|name| name == "library") {
            continue;
        }
        let removed = if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    build_linker(folder, &library_folder(&root)?, &llvm)?;
    fs::remove_dir_all(&packages).context("removing the fetched packages")
}

fn package_file(packages: &Path, name: &str) -> Result<PathBuf> {
    let before = format!("{name}_");
    for entry in fs::read_dir(packages).context("listing what was fetched")? {
        let path = entry.context("listing what was fetched")?.path();
        let file = path.file_name().and_then(|file| file.to_str());
        if file.is_some_and(|file| file.starts_with(&before)) {
            return Ok(path);
        }
    }
    bail!("apt fetched no {name}")
}

/// The folder of LLVM's shared library, whose name has the machine's triple.
fn library_folder(root: &Path) -> Result<PathBuf> {
    for entry in walkdir::WalkDir::new(root.join("usr/lib")).max_depth(2) {
        let entry = entry.context("looking for LLVM's library")?;
        if entry.file_name().to_string_lossy().starts_with("libLLVM")
            && let Some(folder) = entry.path().parent()
        {
            return Ok(folder.to_owned());
        }
    }
    bail!("no LLVM library below {}", root.display())
}

/// `bpf-linker` against the compiler's own LLVM: it must read the bitcode of that version.
fn build_linker(folder: &Path, libraries: &Path, llvm: &str) -> Result<()> {
    let real = fs::read_dir(libraries)
        .with_context(|| format!("reading {}", libraries.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("libLLVM") && name.contains(".so"))
        })
        .find(|path| !path.is_symlink())
        .context("LLVM's package has no library")?;
    // All that the build wants of an LLVM: no development package.
    let prefix = folder.join("llvm");
    fs::create_dir_all(prefix.join("lib")).context("making the folder for LLVM's library")?;
    std::os::unix::fs::symlink(&real, prefix.join("lib/libLLVM.so"))
        .context("linking LLVM's library")?;
    let target = folder.join("linker-target");
    let mut install = command::cargo();
    install
        .args([
            "install",
            "bpf-linker",
            "--version",
            LINKER_VERSION,
            "--locked",
            "--quiet",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{llvm}"),
        ])
        .args([
            "--profile",
            "dev",
            "--config",
            "profile.dev.debug=0",
            "--root",
        ])
        .arg(folder.join("linker"))
        .env("LD_LIBRARY_PATH", libraries)
        .env("LLVM_PREFIX", &prefix)
        .env("CARGO_TARGET_DIR", &target)
        // A folder with neither this workspace nor its settings above it.
        .current_dir(folder);
    command::run(&mut install)?;
    fs::remove_dir_all(&target).context("removing the linker's build")
}

/// Builds the programs; where their object is.
fn build(chain: &ToolChain) -> Result<PathBuf> {
    let workspace = command::workspace();
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), |dir| workspace.join(dir))
        .join("kernel-programs");
    let mut path = chain.linker.clone().into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    let mut cargo = chain.command(&chain.cargo);
    cargo
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "ebpf",
            "--bin",
            "skep-ebpf",
        ])
        .args([
            "--features",
            "programs",
            "--profile",
            "ebpf",
            "--target",
            TARGET,
        ])
        .args(["-Z", "build-std=core", "--target-dir"])
        .arg(&target)
        .current_dir(workspace)
        .env("PATH", path)
        .env("RUSTC", &chain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(workspace, &chain.sysroot)?.join("\x1f"),
        );
    // The outer cargo's choices are not this build's.
    for name in [
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        cargo.env_remove(name);
    }
    command::run(&mut cargo).context("building the kernel programs")?;
    let object = target.join(TARGET).join("ebpf/skep-ebpf");
    let bytes = fs::read(&object).with_context(|| format!("reading {}", object.display()))?;
    println!(
        "built {} bytes, sha256 {}",
        bytes.len(),
        cache::hex(&Sha256::digest(&bytes))
    );
    Ok(object)
}

/// Folders are named in the object (for the verifier's messages): each gets the same name
/// everywhere.
fn flags(workspace: &Path, sysroot: &Path) -> Result<Vec<String>> {
    let home = match (env::var_os("CARGO_HOME"), env::var_os("HOME")) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(home)) => PathBuf::from(home).join(".cargo"),
        (None, None) => bail!("neither CARGO_HOME nor HOME is set"),
    };
    let mut flags = vec!["-C".to_owned(), "link-arg=--btf".to_owned()];
    let mut rename = |from: &Path, to: &str| {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    };
    rename(workspace, "/src");
    rename(sysroot, "/rust");
    // The linked sources of the private tool chain resolve to themselves.
    if let Ok(real) = sysroot.canonicalize() {
        rename(&real, "/rust");
    }
    // One folder for each registry, named after its address.
    for entry in fs::read_dir(home.join("registry/src"))
        .into_iter()
        .flatten()
    {
        let path = entry.context("listing the registries")?.path();
        rename(&path, "/registry");
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_apt_says() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n";
        assert_eq!(candidate(policy), Some("1.96.0+dfsg1-1~deb12u2"));
        assert_eq!(candidate("rustc-web:\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
        assert_eq!(
            release_of("1.96.0+dfsg1-1~deb12u2"),
            Some(("1.96.0", "1.96"))
        );
        assert_eq!(release_of("x"), None);
        assert_eq!(
            llvm_of("libc6 (>= 2.36), libllvm22 (>= 1:22~), zlib1g"),
            Some("22")
        );
        assert_eq!(llvm_of("libc6, zlib1g"), None);
    }
}
