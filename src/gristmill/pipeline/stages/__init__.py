"""One pass over the records: tasks, the workers' side of them, and the files they leave."""

WORKER_MODULE = "gristmill.pipeline.stages.unit_task_run"
"""What the workers of a run import first. Named here, so that they can be started before this process imports it."""
