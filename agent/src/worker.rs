//! One worker per pod: it brings what runs to what is wanted, and takes it down in the end.
//!
//! A worker is a task with an inbox ([`Mailbox`]: the last wish counts). It waits until the PLEG's
//! cache is newer than what it did last, plans the next step ([`plan`], pure), carries it out
//! ([`steps`], [`kill`]), publishes the pod's status, and reports to the sync loop when it wants to
//! be called again. It owns its pod's phase ([`machine`]), restart back-off and waiting reasons.
//!
//! | file | holds |
//! | --- | --- |
//! | `mailbox`, `machine`, `plan` | pure: wishes merged, the life cycle, the next step |
//! | `task` | the loop of one worker |
//! | `steps`, `kill` | effects: starts, and stops with their grace |
//! | `sandbox`, `container`, `env`, `security`, `dns`, `hosts` | the runtime's configurations (pure) |
//! | `context` | what all workers share |

pub(crate) mod config_error;
mod container;
pub mod context;
mod dns;
mod env;
pub mod facts;
mod hostname;
mod hosts;
mod kill;
mod linux_resources;
pub mod machine;
pub mod mailbox;
mod mounts;
mod plan;
mod sandbox;
mod security;
mod steps;
mod task;
#[cfg(test)]
mod testing;

pub use self::{
    context::Context,
    kill::kill_orphan,
    mailbox::{Desired, Kick, Mailbox, Stop},
    task::{Report, Worker},
};
