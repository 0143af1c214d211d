//! Plain data of the whole agent: no I/O, no async, nothing of ours imported.

pub mod backoff;
pub mod clock;
pub mod duration;
pub mod expand;
pub mod id;
pub mod kernel;
pub mod pod;
pub mod quantity;
pub mod reason;
pub mod resources;
pub mod runtime;
pub mod timeline;
