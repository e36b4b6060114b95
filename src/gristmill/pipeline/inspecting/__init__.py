"""From a dataset back to its input: trace a row, explain a record, look up a duplicate."""
