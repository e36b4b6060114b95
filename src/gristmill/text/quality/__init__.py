"""Statistics of texts: the compiled passes that count, and the scores that are made of the counts."""
