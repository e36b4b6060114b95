"""Export formats: the files of each, their sizes, and how a shard is written into them."""
