//! Cgroups of pods: made, limited, read and removed.
