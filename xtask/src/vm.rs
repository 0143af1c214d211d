//! `cargo xtask vm`: a small machine whose cgroups are all v2, emulated in software, with the built
//! agent and the tested containerd, runs the tests that make sense there. It is made of a
//! distribution's kernel ([`kernel`]) and a RAM image ([`image`]); results come over its serial line
//! ([`machine`]). KVM is not used: what works here works on any machine.

mod image;
mod kernel;
mod machine;
mod packages;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::{
    image::Image,
    kernel::Kernel,
    machine::{Job, Run},
};
use crate::{
    boxed::Boxes,
    command,
    distribution::Distribution,
    setup,
    test::{self, Count, Program, Report},
};

/// The program with the tests that only run in the machine.
pub(crate) const VM: &str = "vm";
/// The program that tests the kernel programs themselves.
const KERNEL: &str = "kernel";
/// How much longer the tests' time limits are in the machine. Everything takes some twenty times as
/// long as outside, of limits that are generous there.
const SLOWNESS: &str = "5";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only the short form, which `cargo xtask test` runs too.
    #[arg(long)]
    short: bool,
    /// Only with this kernel; else with the distribution's own, and in the long form with the old
    /// one too.
    #[arg(long)]
    kernel: Option<Kernel>,
}

/// One boot and what runs in it.
struct Boot {
    name: &'static str,
    limit: Duration,
    jobs: &'static [Tests],
}

/// Tests of one program.
struct Tests {
    program: &'static str,
    args: &'static [&'static str],
}

const NODE_TESTS: &[&str] = &["--ignored", "--nocapture", "--test-threads=1"];

const SHORT: Boot = Boot {
    name: "vm",
    limit: Duration::from_secs(10 * 60),
    jobs: &[Tests {
        program: VM,
        args: &["--ignored", "--nocapture", "--test-threads=1", "short::"],
    }],
};

const LONG: Boot = Boot {
    name: "vm",
    limit: Duration::from_secs(40 * 60),
    jobs: &[
        Tests {
            program: KERNEL,
            args: &["--test-threads=1"],
        },
        Tests {
            program: VM,
            args: NODE_TESTS,
        },
    ],
};

/// A memory kill is told there by a pid, not a task.
const OLD: Boot = Boot {
    name: "vm with an old kernel",
    limit: Duration::from_secs(15 * 60),
    jobs: &[
        Tests {
            program: KERNEL,
            args: &["--test-threads=1"],
        },
        Tests {
            program: VM,
            args: &["--ignored", "--nocapture", "--test-threads=1", "short::"],
        },
    ],
};

/// What is booted, and with which kernel.
fn plan(options: &Options, own: Kernel) -> Vec<(&'static Boot, Kernel)> {
    match (options.short, options.kernel) {
        (true, kernel) => vec![(&SHORT, kernel.unwrap_or(own))],
        (false, Some(Kernel::Debian11)) => vec![(&OLD, Kernel::Debian11)],
        (false, Some(kernel @ (Kernel::Debian12 | Kernel::Ubuntu))) => vec![(&LONG, kernel)],
        (false, None) => vec![(&LONG, own), (&OLD, Kernel::Debian11)],
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let machine = Distribution::of_this_machine();
    let own = Kernel::own_of(&machine);
    let boxes = Boxes::prepare()?;
    let programs = [VM, KERNEL]
        .into_iter()
        .map(test::test_programs)
        .collect::<Result<Vec<_>>>()?
        .concat();
    let mut report = Report::default();
    for (boot, kernel) in plan(options, own) {
        let archive = kernel.archive();
        // A machine need not have another distribution's packages; only a kernel that the user
        // names must be there.
        let is_foreign = archive != own.archive() && options.kernel.is_none();
        if is_foreign && !archive.is_a_source()? {
            let (name, label) = (boot.name, archive.label());
            println!(
                "== {name}: not run, its kernel is {label}'s, and none of this machine's package \
                 sources is {label}'s"
            );
            continue;
        }
        boot.run(kernel, &machine, &boxes, &programs, &mut report)?;
    }
    Ok(report.finish())
}

/// The part of `cargo xtask test`.
pub(crate) fn short(boxes: &Boxes, programs: &[Program], report: &mut Report) -> Result<()> {
    let machine = Distribution::of_this_machine();
    SHORT.run(Kernel::own_of(&machine), &machine, boxes, programs, report)
}

impl Boot {
    fn run(
        &self,
        kernel: Kernel,
        on: &Distribution,
        boxes: &Boxes,
        programs: &[Program],
        report: &mut Report,
    ) -> Result<()> {
        if !cfg!(target_arch = "x86_64") {
            bail!("the emulated machine is an x86-64 one, as the programs in it must be");
        }
        setup::ensure_vm()?;
        let kernel = kernel.ensure(on)?;
        let mut image = Image::new()?;
        let jobs = self
            .jobs
            .iter()
            .map(|tests| tests.put_into(&mut image, programs))
            .collect::<Result<Vec<_>>>()?;
        let variables = boxes.put_into(&mut image)?;
        let file = image.finish(&kernel, &variables, &jobs)?;
        println!("== {}: booting Linux {} ...", self.name, kernel.version);
        let ended = machine::run(&kernel, file, self.limit, |line| println!("   {line}"))?;
        for job in &jobs {
            let name = format!("{}/{}", self.name, job.name);
            let run = ended.of(&job.name);
            let count = run.map_or(Count::of_tests("", false), |run| {
                Count::of_tests(&run.output, run.ended_well)
            });
            let output = run.map_or(&ended.output, |run| &run.output);
            test::keep(&name.replace(['/', ' '], "-"), output, count)?;
            report.add(&name, count, run.map_or(ended.time, |run: &Run| run.time));
        }
        Ok(())
    }
}

impl Tests {
    fn put_into(&self, image: &mut Image, programs: &[Program]) -> Result<Job> {
        let program = programs
            .iter()
            .find(|program| program.name == self.program)
            .with_context(|| format!("cargo built no test program {}", self.program))?;
        let path = format!("/tests/{}", self.program);
        image.program_as(&program.file, &path)?;
        // The tests know it by where cargo built it.
        image.program(&built_agent(&program.file)?)?;
        Ok(Job {
            name: self.program.to_owned(),
            command: [&[path.as_str()], self.args].concat().join(" "),
        })
    }
}

/// `target/debug/skep` of `target/debug/deps/vm-0123456789abcdef`.
fn built_agent(test: &Path) -> Result<PathBuf> {
    let folder = test.ancestors().nth(2).context("where tests are built")?;
    let agent = folder.join("skep");
    if !agent.is_file() {
        bail!("cargo built no {}", agent.display());
    }
    Ok(agent)
}

impl Boxes {
    /// Gives the machine what a box has; the variables that tell its tests.
    fn put_into(&self, image: &mut Image) -> Result<Vec<(&'static str, String)>> {
        let mut bin_dirs = Vec::new();
        for dir in std::env::split_paths(self.bin_dirs()) {
            image.folder_of_programs(&dir)?;
            let dir = dir.display().to_string();
            if Path::new(&dir).join("bridge").is_file() {
                // Where distributions and the agent look for plugins.
                image.link("/opt/cni/bin", &dir);
            }
            bin_dirs.push(dir);
        }
        // Tests use them; busybox has its own, which do less.
        for program in ["sh", "setpriv"] {
            let file = command::find(program).with_context(|| format!("there is no {program}"))?;
            image.program_as(&file, &format!("/bin/{program}"))?;
        }
        image.iptables()?;
        image.folder(self.images(), "/images")?;
        Ok(vec![
            ("SKEP_TEST_DIR", "/skep-test".to_owned()),
            ("SKEP_TEST_IMAGES", "/images".to_owned()),
            ("SKEP_TEST_BIN_DIRS", bin_dirs.join(":")),
            ("SKEP_TEST_CGROUP", "skep-test".to_owned()),
            ("SKEP_TEST_SLOWNESS", SLOWNESS.to_owned()),
            ("RUST_BACKTRACE", "0".to_owned()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_its_kernels() {
        use Kernel::{Debian11, Debian12, Ubuntu};
        for (short, kernel, own, expected) in [
            (true, None, Debian12, vec![("vm", Debian12)]),
            (true, None, Ubuntu, vec![("vm", Ubuntu)]),
            (true, Some(Debian11), Ubuntu, vec![("vm", Debian11)]),
            (
                false,
                None,
                Ubuntu,
                vec![("vm", Ubuntu), (OLD.name, Debian11)],
            ),
            (false, Some(Debian11), Ubuntu, vec![(OLD.name, Debian11)]),
            (false, Some(Debian12), Ubuntu, vec![("vm", Debian12)]),
        ] {
            let boots = plan(&Options { short, kernel }, own);
            let named: Vec<_> = boots
                .iter()
                .map(|(boot, kernel)| (boot.name, *kernel))
                .collect();
            assert_eq!(named, expected, "{short} {kernel:?} {own:?}");
        }
    }
}
