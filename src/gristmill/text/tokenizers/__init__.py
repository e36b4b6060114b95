"""Tokenizers: finding their files, two engines that run them, the proof that both give the same ids, and training.

`tokenizers` is the reference, `fastokens` the fast one (50 to 100 times). Both are imported when an engine is loaded.
"""
