//! Container log files in the CRI format: read, follow, rotate.
//!
//! The runtime writes a container's output to one live file. [`open`] turns it into the bytes that
//! `kubectl logs` shows, and follows it through rotations; [`rotate`] keeps its size within bounds.
//! Neither owns state that others see: the files are the state.

mod follow;
pub mod format;
mod lines;
mod read;
pub mod rotate;
mod tail;
mod writer;

pub use read::{Error, LogOptions, open};
