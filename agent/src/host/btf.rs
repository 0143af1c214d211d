//! Reads field offsets from the kernel's BTF.
