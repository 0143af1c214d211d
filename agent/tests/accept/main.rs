//! The long runs of `cargo xtask accept`: one module a run, as root, in a box of namespaces. Each
//! prints its figures, one a line.
#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

#[expect(dead_code, reason = "the tests of `it` use the rest")]
#[path = "../node/mod.rs"]
mod node;

mod agent_kills;
mod figures;
mod kills;
mod look;
mod modes;
mod oom;
mod pause;
mod proxy;
mod reboot;
mod runtime_stop;
mod storm;
mod without_bpf;

mod part {
    #[test]
    #[ignore = "a part that other tests have this binary play"]
    fn becomes_a_program_without_bpf() {
        super::without_bpf::become_program();
    }
}
