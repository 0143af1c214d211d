//! Generates clients and servers from the interface files in `proto/`, without a `protoc`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("proto");
    let files = [root.join("cri/v1.proto")];
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [root])?;
    tonic_prost_build::configure()
        // Holds passwords; `lib.rs` writes its Debug.
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(descriptors)?;
    Ok(())
}
