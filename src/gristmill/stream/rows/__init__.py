"""The rows of a stream: from the index of a row in its lanes to the row itself, in memory.

`row_reader` makes batches of rows of tokens, `sample_rows` of samples. Each has a table of all stored rows: `row_table`
maps local shards, `block_reader` fetches blocks of remote ones into a cache, and `sample_shards` reads samples from
both. `row_details` finds sources, images and documents of rows; `tokenized` makes rows of tokens from samples.
"""
