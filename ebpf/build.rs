//! Says which object the library carries: the committed one, or the one that `SKEP_EBPF_OBJECT`
//! names (`cargo xtask build-ebpf --check` sets it where the machine has another compiler).

use std::{env, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=SKEP_EBPF_OBJECT");
    let folder = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let path = env::var_os("SKEP_EBPF_OBJECT").map_or_else(
        || PathBuf::from(folder).join("object/skep.o"),
        PathBuf::from,
    );
    println!("cargo::rerun-if-changed={}", path.display());
    println!("cargo::rustc-env=SKEP_EBPF_OBJECT_PATH={}", path.display());
}
