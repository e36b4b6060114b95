"""What can be looked at: datasets, their dropped records, raw files, and the differences of two datasets."""
