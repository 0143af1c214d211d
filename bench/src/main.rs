//! The bench's program, which `cargo xtask bench` calls: `turn` measures one subject for one round,
//! inside a box; `report` makes tables and plots of what all turns wrote.

pub mod record;
pub mod stats;

fn main() {}
