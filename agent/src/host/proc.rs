//! The machine: memory, CPUs, host name, addresses, the agent's own process.
