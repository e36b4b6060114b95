"""Templates that are run once for each kind of conversation, and replaced by a generated function for all others."""
