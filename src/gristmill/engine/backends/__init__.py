"""The backends, one file each. They carry chunks to workers and report events; the scheduler decides."""
