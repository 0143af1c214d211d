//! The host's resolver file.
