//! The pod lifecycle event generator: hints from the kernel and the runtime in, pod events out.
