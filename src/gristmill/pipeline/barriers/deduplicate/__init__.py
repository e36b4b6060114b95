"""The barrier of `deduplicate`, over a corpus of any size: its first work is done in the stage before it.

`deduplication.py` has the table of all kinds of tasks: sign (a stream, as it is written) → merge (streams, if their
pieces would be small) → copies (a partition of digests) → candidates (a partition of band keys) → compare (a range of
documents) → link, scatter and choose (clusters) → decide, in the parent. Each task leaves files (`record_files.py`) and
a receipt, so that a run that was killed resumes. A worker holds one partition at a time, and the parent nothing for
each document.
"""
