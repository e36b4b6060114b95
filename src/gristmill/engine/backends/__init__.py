"""Places to run tasks, one file each."""
