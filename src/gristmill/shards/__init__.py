"""The dataset on disk: its manifest, its shard formats, reading and verification.

`dataset` opens a finished dataset and reads records. `manifest` says what it holds, `stored_files` which files it has,
and `manifest_file` writes and loads the JSON. `canonical` makes equal records equal bytes, `token_rows` are the columns
of training rows, and `formats` encodes and reads shards. `block_index`, `score_file`, `kept_signatures` and
`derived_files` are the files next to the shards; `verify` checks all of them.
"""
