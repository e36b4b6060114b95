"""From a dataset back to its input.

`trace.py` finds the record that a row came from, `explain.py` runs the steps on one record again, `tune.py` counts what
other thresholds would keep, and `viewing.py` opens datasets and raw files for the viewer (`report/view`).
"""
