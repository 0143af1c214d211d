//! Mounts: binds, tmpfs, and subpaths that no link can lead astray.
