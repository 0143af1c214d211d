//! The command line: what each command does, and how it prints.

pub mod check;
pub(crate) mod client;
