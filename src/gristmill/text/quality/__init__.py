"""Statistics of texts: the compiled passes that count, and the scores computed from the counts."""
