"""The barrier of `deduplicate` for pieces of documents: three kinds of tasks between two stages.

hash (a unit: the pieces of its documents, scattered by hash) → copies (a partition: all but the first of equal pieces,
scattered by unit) → gather (a unit: what is removed from it). Each task leaves files and a receipt. What units or
partitions have left is merged first, where the next tasks would read small parts of it (`deduplicate/merge.py`). 24
bytes of disk for each piece; a worker holds one partition, and the parent nothing for each piece.
"""
