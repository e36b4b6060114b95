"""From finished units to a dataset, all of it or nothing.

`publish.py` checks the books and makes the manifest, `file_placer.py` gives shards and `side_files.py` gives all others
their names, and `journal.py` puts everything in place, however often it is killed. `mixed_lane.py` interleaves sources
before that; `clean.py` locks the output and removes what a killed run left.
"""
