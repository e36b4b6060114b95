"""What happens between two stages: one module for each global step, and `deduplicate/` for its many stages.

`base.py` is the protocol, with the table that says which barrier belongs to which step. A barrier works through
`exchange.py`: it names what its stages read and write, and the stages are functions of arrays. `merge.py` joins pieces
that would be too small, and `record_files.py` is how arrays lie in files.
"""
