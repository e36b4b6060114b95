"""What a plan has learnt from a sample of the records, remembered as long as the files stay as they are.

The columns of a source and the trial of its steps decide bytes, so their key is everything that they depend on: all
files by their identities and first 64 KiB, every field of every step, and the code
(see `storage/user_cache/plan_cache.py`).
"""
