"""Plan, stages, tasks, run, manifest: the only place where steps meet the engine.

`api.py` is what users import. `run.py` locks the output, makes the plan (`planning/`) and executes it (`execution.py`):
stages of tasks (`stages/`), the barriers between them (`barriers/`), and at the end the dataset (`publishing/`).
`work_folder.py` names what lies in an output folder while it is made. `monitoring/` shows a run while it works.
`jobs/` are other commands on datasets, `inspecting/` leads from a dataset back to its input, and `debug.py` and
`tune_settings.py` run a recipe to look at it.
"""
