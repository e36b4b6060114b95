"""From finished units to a dataset, all of it or nothing."""
