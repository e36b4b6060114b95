"""The barrier of `deduplicate`, over a corpus of any size: its first work is done in the stage before it.

sign (a stream, as it is written) → copies (a partition of digests) → candidates (a partition of band keys) → compare
(a partition of pairs) → survivors (pairs that the bands missed) → decide, in the parent. Each task leaves files and a
receipt, so that a run that was killed resumes. A worker holds one partition at a time; the parent holds about 100 bytes
for each document that is similar to another one.
"""
