//! The machine's RAM image: busybox, the programs under test with the libraries that they need, and
//! an init that mounts what a node has, runs the jobs and tells their ends. It is an archive that
//! the kernel unpacks into memory (`cpio`, form "newc"), in a file without a name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufWriter, Seek as _, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{kernel::Unpacked, machine::Job};
use crate::{cache, command};

/// runc can't leave the kernel's first root (`pivot_root`), but a bind mount of it. containerd's
/// layers want an upper folder on a file system with attributes, so the work folder is a tmpfs.
const INIT: &str = include_str!("init.sh");

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Folder,
    Link(String),
    Bytes(Vec<u8>),
    File(PathBuf),
    /// A program without its debug information, which is most of it.
    Stripped(PathBuf),
}

/// Where iptables looks for its extensions.
const XTABLES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/xtables",
    "/usr/lib64/xtables",
    "/usr/lib/xtables",
];

/// Paths without the leading "/", in order: a folder comes before what is in it.
pub(super) struct Image(BTreeMap<String, Node>);

impl Image {
    /// With busybox and its applets.
    pub(super) fn new() -> Result<Self> {
        let mut image = Self(BTreeMap::new());
        for folder in [
            "dev",
            "proc",
            "sys",
            "tmp",
            "run",
            "root",
            "new",
            "skep-test",
        ] {
            image.put(folder, Node::Folder);
        }
        let busybox = command::find("busybox").context("busybox-static is not installed")?;
        let applets = command::read(Command::new(&busybox).arg("--list"))?;
        image.put("bin/busybox", Node::File(busybox));
        for applet in applets.lines().map(str::trim) {
            if applet != "busybox" {
                image.put(&format!("bin/{applet}"), Node::Link("busybox".to_owned()));
            }
        }
        image.put("sbin", Node::Link("bin".to_owned()));
        image.put(
            "etc/passwd",
            Node::Bytes(b"root:x:0:0:root:/root:/bin/sh\n".to_vec()),
        );
        image.put("etc/group", Node::Bytes(b"root:x:0:\n".to_vec()));
        image.put(
            "etc/hosts",
            Node::Bytes(b"127.0.0.1 localhost vm\n".to_vec()),
        );
        image.put("etc/resolv.conf", Node::Bytes(Vec::new()));
        Ok(image)
    }

    fn put(&mut self, path: &str, node: Node) {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Node::Folder);
        }
        self.0.insert(path.to_owned(), node);
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.put(path, Node::Link(target.to_owned()));
    }

    /// Where it is on this machine.
    pub(super) fn program(&mut self, file: &Path) -> Result<()> {
        self.program_as(file, &text(file)?)
    }

    pub(super) fn program_as(&mut self, file: &Path, path: &str) -> Result<()> {
        for library in libraries(file)? {
            self.put(&text(&library)?, Node::File(library.clone()));
        }
        self.put(path, Node::Stripped(file.to_owned()));
        Ok(())
    }

    /// One program with many names, and extensions that it loads.
    pub(super) fn iptables(&mut self) -> Result<()> {
        let found = command::find("iptables").context("iptables is not installed")?;
        let program = found.canonicalize().context("looking for iptables")?;
        self.program_as(&program, "/bin/iptables")?;
        for name in ["iptables-save", "iptables-restore", "ip6tables"] {
            self.put(&format!("bin/{name}"), Node::Link("iptables".to_owned()));
        }
        for folder in XTABLES.map(Path::new) {
            if folder.is_dir() {
                self.folder(folder, &text(folder)?)?;
            }
        }
        Ok(())
    }

    /// All files of the folder, where they are on this machine.
    pub(super) fn folder_of_programs(&mut self, folder: &Path) -> Result<()> {
        for file in files_in(folder)? {
            self.program(&file)?;
        }
        Ok(())
    }

    pub(super) fn folder(&mut self, folder: &Path, path: &str) -> Result<()> {
        for file in files_in(folder)? {
            let name = file.file_name().context("a file has a name")?;
            self.put(
                &format!("{path}/{}", name.to_string_lossy()),
                Node::File(file.clone()),
            );
        }
        Ok(())
    }

    /// The archive, ready to be read. The jobs are run in this order.
    pub(super) fn finish(
        mut self,
        kernel: &Unpacked,
        variables: &[(&str, String)],
        jobs: &[Job],
    ) -> Result<File> {
        for module in &kernel.modules {
            let name = module.file_name().context("a file has a name")?;
            self.put(
                &format!("modules/{}", name.to_string_lossy()),
                Node::File(module.clone()),
            );
        }
        self.put("init", Node::Bytes(INIT.as_bytes().to_vec()));
        self.put("jobs", Node::Bytes(script(variables, jobs).into_bytes()));
        let file = tempfile::tempfile_in(cache::dir()?).context("making a file for the image")?;
        let mut archive = Archive {
            to: BufWriter::new(file),
            number: 0,
        };
        for (path, node) in &self.0 {
            archive
                .add(path, node)
                .with_context(|| format!("putting {path} into the image"))?;
        }
        archive.finish().context("ending the image")
    }
}

/// What the init runs when the machine is set up.
fn script(variables: &[(&str, String)], jobs: &[Job]) -> String {
    let mut script = String::new();
    for (name, value) in variables {
        script.push_str(&format!("export {name}='{value}'\n"));
    }
    for Job { name, command } in jobs {
        // The serial line has one stream.
        script.push_str(&format!(
            "echo '{}'\n{command} </dev/null 2>&1\necho '{}'$?\n",
            super::machine::begin(name),
            super::machine::end(name),
        ));
    }
    script
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str();
    let text = text.with_context(|| format!("{} is not text", path.display()))?;
    Ok(text.to_owned())
}

fn files_in(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let reading = || format!("reading {}", folder.display());
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(reading)? {
        files.insert(entry.with_context(reading)?.path());
    }
    Ok(files)
}

/// What the loader would load, itself included; none for a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("starting ldd")?;
    Ok(libraries_in(&String::from_utf8_lossy(&output.stdout)))
}

/// Of lines like `libc.so.6 => /lib/libc.so.6 (0x7f)` and `/lib64/ld.so (0x7f)`.
fn libraries_in(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .filter(|word| !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

fn stripped(program: &Path) -> Result<Vec<u8>> {
    let output = tempfile::NamedTempFile::new().context("making a file to strip into")?;
    command::run(
        Command::new("strip")
            .arg("-o")
            .arg(output.path())
            .arg(program),
    )?;
    fs::read(output.path()).context("reading the stripped program")
}

struct Archive<W: Write> {
    to: BufWriter<W>,
    number: u32,
}

impl Archive<File> {
    fn add(&mut self, path: &str, node: &Node) -> Result<()> {
        const FOLDER: u32 = 0o040_755;
        const LINK: u32 = 0o120_777;
        const FILE: u32 = 0o100_000;
        match node {
            Node::Folder => self.entry(path, FOLDER, &[])?,
            Node::Link(target) => self.entry(path, LINK, target.as_bytes())?,
            Node::Bytes(bytes) => self.entry(path, FILE | 0o755, bytes)?,
            Node::File(file) => {
                let mode = fs::metadata(file).context("looking at it")?.permissions();
                let bytes = fs::read(file).context("reading it")?;
                self.entry(path, FILE | (mode.mode() & 0o777), &bytes)?;
            }
            Node::Stripped(program) => self.entry(path, FILE | 0o755, &stripped(program)?)?,
        }
        Ok(())
    }

    fn finish(mut self) -> Result<File> {
        self.entry("TRAILER!!!", 0, &[])?;
        let mut file = self.to.into_inner().map_err(|error| error.into_error())?;
        file.rewind()?;
        Ok(file)
    }
}

impl<W: Write> Archive<W> {
    /// A header of 13 hexadecimal numbers, the name, the contents; both padded to four bytes.
    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.number += 1;
        let size = u32::try_from(contents.len()).context("it is too large for the archive")?;
        let name_size = u32::try_from(path.len() + 1).context("its name is too long")?;
        let numbers = [
            self.number, // Index.
            mode,
            0, // User.
            0, // Group.
            1, // Links.
            0, // Time.
            size,
            0, // Device of the file, and of what it stands for.
            0,
            0,
            0,
            name_size,
            0, // Check sum.
        ];
        let mut header = String::from("070701");
        for number in numbers {
            header.push_str(&format!("{number:08x}"));
        }
        header.push_str(path);
        self.padded(&[header.as_bytes(), b"\0"].concat())?;
        self.padded(contents)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes)?;
        let missing = bytes.len().next_multiple_of(4) - bytes.len();
        self.to.write_all(&[0; 4][..missing])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_read_from_what_ldd_says() {
        let said = "\tlinux-vdso.so.1 (0x00007fe9b3d49000)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fe9b0a1e000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007fe9b3d4b000)\n";
        assert_eq!(
            libraries_in(said),
            [
                Path::new("/lib/x86_64-linux-gnu/libc.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(libraries_in("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn an_archive_has_padded_names_and_contents() {
        let mut archive = Archive {
            to: BufWriter::new(Vec::new()),
            number: 0,
        };
        archive.entry("ab", 0o100_644, b"12345").expect("written");
        let bytes = archive.to.into_inner().expect("in memory");
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text.len(), 116 + 8);
        assert!(text.starts_with("07070100000001000081a4"), "{text}");
        assert_eq!(&text[54..62], "00000005");
        assert_eq!(&text[110..116], "ab\0\0\0\0");
        assert_eq!(&text[116..], "12345\0\0\0");
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut image = Image(BTreeMap::new());
        image.put("/a/b/c", Node::Bytes(Vec::new()));
        image.put("a/b-d", Node::Bytes(Vec::new()));
        let paths: Vec<_> = image.0.keys().map(String::as_str).collect();
        assert_eq!(paths, ["a", "a/b", "a/b-d", "a/b/c"]);
    }
}
