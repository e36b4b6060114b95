"""How the records of a unit become files: one strategy for each kind of output (`unit_output.py`).

A sink (`sinks.py`) takes the records of a task and writes blocks to files by split (`split_files.py`).
Observers (`observers.py`) watch the records on their way: `quarantine.py`, `dropped.py` and `score_writer.py` keep what
does not go into shards.
"""
