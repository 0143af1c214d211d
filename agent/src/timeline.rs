//! What happened to the pods, kept on disk within a bound, through restarts.
