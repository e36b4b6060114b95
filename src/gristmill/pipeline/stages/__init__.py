"""One pass over the records: tasks, the workers' side of them, and the files they leave.

`runner.py` runs the units that have no receipt (`receipts.py`): `unpack.py` makes those of files, `unit_tasks.py` cuts
units into slices and `poison.py` finds records that kill. In a worker `slice_run.py` reads cells (`slice_reader.py`)
and runs the steps with its `stage_context.py`; `outputs/` writes, and `join.py` joins the slices of a unit.
"""

WORKER_MODULE = "gristmill.pipeline.stages.slice_run"
"""What the workers of a run import first. Named here, so that they can be started before this process imports it."""
