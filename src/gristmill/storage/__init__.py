"""Files, local and remote: finding and reading them, compression, checksums, locks, and commits that are atomic."""
