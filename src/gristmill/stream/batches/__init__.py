"""From rows in memory to the arrays of a batch."""
