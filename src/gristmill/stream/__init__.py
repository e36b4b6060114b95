"""Training time: rows, batches, resume. Needs only shards and order."""
