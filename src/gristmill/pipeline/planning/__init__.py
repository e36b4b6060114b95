"""Everything that is known before any work is done: sources, stages, schemas, units and the trial on a sample."""
