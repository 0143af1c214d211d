//! One task per pod, which brings what runs to what is wanted.

mod config_error;
mod container;
mod dns;
mod env;
pub mod facts;
mod hostname;
mod hosts;
mod linux_resources;
mod mounts;
mod sandbox;
mod security;
#[cfg(test)]
mod testing;
