//! The command line: what each command does, and how it prints.

pub(crate) mod client;
