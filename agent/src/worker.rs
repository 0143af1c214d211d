//! One task per pod, which brings what runs to what is wanted.
