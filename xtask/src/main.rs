//! The project's own tasks: `cargo xtask up`, `test`, `accept`, `vm`, `bench`, `profile`,
//! `build-ebpf` and what they stand on.
#![expect(
    clippy::disallowed_methods,
    reason = "the bans are for the agent: these tasks have no runtime that a sleep could block, \
              and nothing in them pauses time"
)]

mod accept;
mod bench;
mod boxed;
mod build_ebpf;
mod cache;
mod command;
mod distribution;
mod images;
mod profile;
mod setup;
mod test;
mod up;
mod upstream;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Skep's own tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the example pods on this machine and show how they fare.
    Up(up::Options),
    /// Run every check and every test. Root is needed for some; sudo is called for those.
    Test,
    /// Run the long acceptance runs: the named ones, or all.
    Accept { runs: Vec<accept::Run> },
    /// Run tests on an emulated machine whose cgroups are all v2.
    Vm(vm::Options),
    /// Measure Skep beside upstream's kubelet and beside the bare runtime.
    Bench(bench::Options),
    /// Show where the idle agent's CPU time and memory go: flame graphs and a table.
    Profile(profile::Options),
    /// The part of `profile` that runs in a box.
    #[command(hide = true)]
    ProfileBoxed(profile::Boxed),
    /// Build the tested versions of containerd, runc, the CNI plugins, crictl and the kubelet, and
    /// say where they are.
    Upstream {
        /// Only these; those that tests need where none is named.
        parts: Vec<upstream::Part>,
    },
    /// Build the kernel programs and write their object to `ebpf/object`.
    BuildEbpf(build_ebpf::Args),
    /// Make the images that examples and tests use, and say where they are.
    Images,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Up(options) => return up::run(&options),
        Task::Test => return test::run(),
        Task::Accept { runs } => return accept::run(&runs),
        Task::Vm(options) => return vm::run(&options),
        Task::Bench(options) => return bench::run(&options),
        Task::Profile(options) => profile::run(&options)?,
        Task::ProfileBoxed(boxed) => profile::run_boxed(&boxed)?,
        Task::Upstream { parts } => {
            setup::ensure_test()?;
            let parts = if parts.is_empty() {
                upstream::TESTED.to_vec()
            } else {
                parts
            };
            for (_, dir) in upstream::ensure(&parts)?.iter() {
                println!("{}", dir.display());
            }
        }
        Task::BuildEbpf(args) => build_ebpf::run(&args)?,
        Task::Images => {
            setup::ensure_run()?;
            println!("{}", images::ensure()?.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
