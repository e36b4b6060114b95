"""Export formats: the files of each, their sizes, and how a shard is written into them.

`formats` is the table of all formats, `layout` the protocol that they follow: a format checks the dataset, then makes a
layout of each split, and workers fill the files of a layout shard by shard. `training` makes the columns that trainers
expect of token rows, and `dataset_card` the README.md for the Hub. Every other module has the formats of one kind.
"""
