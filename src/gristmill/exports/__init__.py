"""Datasets in other formats: what files there will be, how large they are, and how a shard is written into them."""
