"""The dataset on disk: its manifest, its shard formats, reading and verification."""
