"""Files anywhere: atomic commit, compression, hashing."""
