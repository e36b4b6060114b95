"""The barrier of `deduplicate`, over a corpus of any size: its first work is done in the stage before it.

Streams are signed as they are written (`sign.py`). `deduplication.py` has the table of all stages, which are pure
functions in `pair_tasks.py`, `cluster_tasks.py` and `removals.py`; the exchange runs them. `documents.py` numbers all
documents, and `decision.py` makes of the removals what the next stage and the manifest need. A worker holds one
partition at a time, and a byte for each document while it looks for candidates; the parent nothing for each document.
"""
