"""The formats of shards: for each one module with its encoder and its reader, which follow the protocols in `base`.

`shard_format` is the table that chooses between them; `tar_members` maps columns to the members of samples in tars.
"""
