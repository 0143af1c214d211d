//! A containerd of the agent's own, for machines that bring none.
