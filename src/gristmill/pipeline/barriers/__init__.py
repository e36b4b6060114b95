"""What happens between two stages: one module for each global step, and `deduplicate/` for its many tasks.

`base.py` is the protocol, and `table.py` says which barrier belongs to which step.
"""
