//! The agent's HTTP: health and metrics on TCP, the commands on a local socket.
