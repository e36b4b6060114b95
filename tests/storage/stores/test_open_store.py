"""The store of a URL, and the key in it."""

import pytest

from gristmill.storage.stores.open_store import forget_stores, open_store


def test_a_store_of_the_process_has_what_was_put():
    store, key = open_store("memory://shelf/a/b.txt")
    store.put(key, b"content")
    same_store, same_key = open_store("memory://shelf/a/b.txt")
    assert same_store.read(same_key) == b"content"
    store.delete([key])


def test_the_store_of_a_bucket_is_kept_until_it_is_forgotten():
    pytest.importorskip("obstore")
    first, key = open_store("s3://corpus/web/x.jsonl")
    second, other = open_store("s3://corpus/y.jsonl")
    assert first is second
    assert (key, other) == ("web/x.jsonl", "y.jsonl")
    forget_stores()
    assert open_store("s3://corpus/y.jsonl")[0] is not first
    forget_stores()
