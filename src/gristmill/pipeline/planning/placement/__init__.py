"""Where a run takes place: in this process or in worker processes."""
