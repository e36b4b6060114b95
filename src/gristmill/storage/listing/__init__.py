"""Which files there are: patterns, local folders, remote ones."""
