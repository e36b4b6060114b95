"""Everything that is known before any work is done: sources, stages, schemas, units and the trial on a sample.

`plan.py` makes the plan: of each source a draft with its files (`source_draft.py`), united with the others
(`compatibility.py`), tried on a sample (`trials.py`), and then a `SourcePlan`. `units.py` cuts files into units and
slices, `fingerprint.py` names them, `placement.py` decides where the run takes place, `stores.py` checks where data
goes, and `outline.py` says what the run will do. `python_records.py` has sources that are Python objects.
"""
