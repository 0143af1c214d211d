//! The C library's heap. It keeps what was freed for later; an agent at rest should hold little.

/// One heap for all threads: each further one keeps free memory of its own. To be called before
/// there are threads.
pub fn share() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "no safe crate in use has this call")]
        // SAFETY: it sets a number of the allocator's; nothing is handed over. What it answers does
        // not matter: it is a hint.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

/// Gives what is free back to the kernel: after a burst of work.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "no safe crate in use has this call")]
        // SAFETY: only memory that the allocator itself holds free is given back.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
