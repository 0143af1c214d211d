//! The exact words that users and controllers match on, all in one place.
