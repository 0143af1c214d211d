//! Where pods come from: merges every source into one ordered stream of updates.
