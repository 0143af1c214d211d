//! Container log files in the CRI format: read, follow, rotate.
