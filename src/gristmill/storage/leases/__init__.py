"""One run for each output: a `flock` on a local disk, a lease on everything that several machines share."""
