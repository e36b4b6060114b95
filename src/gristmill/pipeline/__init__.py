"""Plan, stages, tasks, run, manifest: the only place where steps meet the engine."""
