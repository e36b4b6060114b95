"""Stored rows: where each is, in mapped shards or behind a cache of blocks."""
