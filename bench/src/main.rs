//! The bench's program, which `cargo xtask bench` calls: `turn` measures one subject for one round,
//! inside a box; `report` makes tables and plots of what all turns wrote.

pub mod benches;
pub mod cgroup;
pub mod clock;
pub mod cost;
pub mod cri;
pub mod log;
pub mod node;
pub mod pods;
pub mod process;
pub mod record;
mod report;
pub mod stats;
pub mod subject;
pub mod told;
pub mod turn;
pub mod watch;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "skep-bench", about)]
enum Command {
    /// Measure one subject for one round, in a box.
    Turn(turn::Args),
    /// Make tables and plots of what all turns wrote.
    Report(report::Args),
}

// One thread: the bench shares the machine with what it measures.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Turn(args) => Box::pin(turn::run(args)).await,
        Command::Report(args) => report::run(&args),
    }
}
