"""Where work runs: one scheduler over thin backends. Knows tasks, not datasets."""
