//! Volumes of pods: set up before containers start, mounted into them, removed after the pod.
