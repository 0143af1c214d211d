//! One task per pod, which brings what runs to what is wanted.

mod config_error;
mod env;
pub mod facts;
mod hostname;
mod hosts;
#[cfg(test)]
mod testing;
