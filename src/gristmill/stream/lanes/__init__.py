"""What a stream reads and in which order: sources, lanes, mixtures, positions. Arithmetic, no rows."""
