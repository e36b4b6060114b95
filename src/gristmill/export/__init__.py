"""Datasets in other formats, as range tasks over shards."""
