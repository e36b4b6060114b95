"""What every layer shares: data and pure functions. Nothing here does I/O, which a contract and a test check.

`recipe` is a job as data, `step` what a step declares and its kernel does, `records` the batches between them, and
`splits`, `scores`, `media` and `json_values` say what the columns of a batch mean. `books` counts what became of each
record. `seeds` is the only source of randomness. `errors` and `checks` are how anything is refused, with the nearest
valid name; `quantities` is how numbers read in messages, and `cache_folders` where a user's caches are.
"""
