"""From finished units to a dataset that is there as a whole or not at all."""
