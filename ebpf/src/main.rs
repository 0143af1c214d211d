//! The kernel programs' binary. It builds for the kernel's machine only, by `cargo xtask
//! build-ebpf`; anywhere else it is an empty program.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod programs;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
