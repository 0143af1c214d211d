//! How a node behaves on a machine whose cgroups are all v2. Run by `cargo xtask vm` in an emulated
//! machine, the module `short` by `cargo xtask test` as well.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

#[expect(dead_code, reason = "the tests of `it` use the rest")]
#[path = "../node/mod.rs"]
mod node;

mod files;
mod long;
mod short;
