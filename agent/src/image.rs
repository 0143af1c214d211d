//! Images: policies, pulls one at a time, back-off.
