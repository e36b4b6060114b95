"""The formats of shards: the encoder and the reader of each side by side. `shard_format` chooses between them."""
