"""Stores of complete objects behind one interface (`base`): object stores, fsspec's file systems, POSIX folders.

`open_store` finds the store of a URL, with the `credentials` and options of its bucket. Every request goes through
`retries`; `ranged_stream` reads an object with ranges fetched ahead, `uploads` writes one in parts.
"""
