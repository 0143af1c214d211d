//! What a machine needs before anything is built or run: the distribution's packages, of which only
//! the missing ones are installed. Nothing is removed, no service is started or stopped.

use std::{ffi::OsStr, path::Path};

use anyhow::{Result, bail};

use crate::command;

/// One thing that must be there, and the package that brings it.
struct Need {
    package: &'static str,
    what: What,
}

enum What {
    Program(&'static str),
    /// Any of these files.
    File(&'static [&'static str]),
}

/// What `skep up` needs to run the examples.
const RUN: &[Need] = &[
    Need {
        package: "containerd",
        what: What::Program("containerd"),
    },
    Need {
        package: "runc",
        what: What::Program("runc"),
    },
    Need {
        package: "containernetworking-plugins",
        what: What::File(&["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"]),
    },
    Need {
        package: "iptables",
        what: What::Program("iptables"),
    },
    Need {
        package: "iproute2",
        what: What::Program("ip"),
    },
    Need {
        package: "busybox-static",
        what: What::Program("busybox"),
    },
    Need {
        package: "gcc",
        what: What::Program("gcc"),
    },
    Need {
        package: "libc6-dev",
        what: What::File(&[
            "/usr/lib64/libc.a",
            "/usr/lib/x86_64-linux-gnu/libc.a",
            "/usr/lib/aarch64-linux-gnu/libc.a",
        ]),
    },
];

/// What the tests need on top: runc is built from source, with seccomp; boxes are made of namespaces.
const TEST: &[Need] = &[
    Need {
        package: "libseccomp-dev",
        what: What::File(&["/usr/include/seccomp.h"]),
    },
    Need {
        package: "pkg-config",
        what: What::Program("pkg-config"),
    },
    Need {
        package: "util-linux",
        what: What::Program("unshare"),
    },
];

/// What `profile` measures with.
const PROFILE: &[Need] = &[
    Need {
        package: "linux-perf",
        what: What::Program("perf"),
    },
    Need {
        package: "heaptrack",
        what: What::Program("heaptrack"),
    },
    Need {
        package: "strace",
        what: What::Program("strace"),
    },
];

/// What the emulated machine needs on top.
const VM: &[Need] = &[
    Need {
        package: "qemu-system-x86",
        what: What::Program("qemu-system-x86_64"),
    },
    Need {
        package: "binutils",
        what: What::Program("strip"),
    },
    Need {
        package: "util-linux",
        what: What::Program("setpriv"),
    },
];

/// What Ubuntu's kernel modules are compressed with.
const ZSTD: &[Need] = &[Need {
    package: "zstd",
    what: What::Program("zstd"),
}];

/// Everything that the examples need is there afterwards.
pub(crate) fn ensure_run() -> Result<()> {
    ensure(RUN.iter())
}

/// Everything that the tests need is there afterwards, Go aside.
pub(crate) fn ensure_test() -> Result<()> {
    ensure(RUN.iter().chain(TEST))
}

/// The tools of `profile` are there afterwards.
pub(crate) fn ensure_profile() -> Result<()> {
    ensure(PROFILE.iter())
}

/// Everything that the emulated machine needs is there afterwards.
pub(crate) fn ensure_vm() -> Result<()> {
    ensure(VM.iter())
}

/// `zstd` is there afterwards.
pub(crate) fn ensure_zstd() -> Result<()> {
    ensure(ZSTD.iter())
}

fn ensure<'a>(needs: impl Iterator<Item = &'a Need>) -> Result<()> {
    let missing: Vec<_> = needs
        .filter(|need| !is_there(&need.what))
        .map(|need| need.package)
        .collect();
    if missing.is_empty() {
        println!("setup: everything is installed");
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        bail!(
            "this machine has no apt-get: install these, as its own packages name them, and run \
             again: {}",
            missing.join(", ")
        );
    }
    println!("setup: installing {} with apt-get", missing.join(", "));
    install(&missing)
}

fn install(packages: &[&'static str]) -> Result<()> {
    let keep = [
        ("DEBIAN_FRONTEND", OsStr::new("noninteractive")),
        // The package brings a service; whether it runs is for the user to say, and Skep starts a
        // containerd of its own.
        ("SYSTEMD_OFFLINE", OsStr::new("1")),
    ];
    let install = || {
        let mut args = vec![
            "install",
            "-y",
            "-q",
            "--no-remove",
            "--no-install-recommends",
        ];
        args.extend(packages);
        command::run(command::as_root("apt-get", &keep).args(&args))
    };
    // Lists that were fetched long ago may name packages that are gone.
    if install().is_ok() {
        return Ok(());
    }
    update_lists()?;
    install()
}

/// Fetches the package lists anew.
pub(crate) fn update_lists() -> Result<()> {
    command::run(command::as_root("apt-get", &[]).args(["update", "-q"]))
}

fn is_there(what: &What) -> bool {
    match what {
        What::Program(name) => command::find(name).is_some(),
        What::File(files) => files.iter().any(|file| Path::new(file).is_file()),
    }
}
