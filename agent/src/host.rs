//! Everything that touches the kernel, so that the rest of the agent does not.

pub mod beneath;
pub mod bpf;
pub mod btf;
pub mod cgroup;
pub mod heap;
pub mod hierarchy;
pub mod mount;
pub mod priority;
pub mod proc;
pub mod remove;
pub mod resolv;
