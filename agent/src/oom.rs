//! Memory kills: whose limit was hit, and what is said about it.
