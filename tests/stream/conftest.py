"""Datasets that several tests stream."""

import sys
import weakref

import pytest
from gristmill_testing.streams import all_rows, slow_order, stored_rows, write_packed

MIXTURE = {"code": 0.3, "web": 0.7}


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """Two sources in five shards, 53 rows; one of its shards is empty."""
    return write_packed(tmp_path_factory.mktemp("packed") / "out", {"web": [7, 12, 0, 11], "code": [23]})


@pytest.fixture(scope="session")
def oracle(packed):
    """The first 160 rows of `packed` without weights, worked out slowly."""
    return slow_order({"": all_rows(packed)}, 160, seed=7)


@pytest.fixture(scope="session")
def mixed_oracle(packed):
    """The same with weights."""
    return slow_order(stored_rows(packed), 160, mixture=MIXTURE, seed=7)


@pytest.fixture(autouse=True)
def end_loader_workers(monkeypatch):
    """End the workers of a DataLoader with its test.

    An error keeps the loader in a cycle of frames. The garbage collector closes its queues before it ends the workers,
    which then do not hear of it, and torch waits 5 seconds for each.
    """
    torch_loaders = sys.modules.get("torch.utils.data.dataloader")
    if torch_loaders is None:
        yield
        return
    iterators, kind = weakref.WeakSet(), torch_loaders._MultiProcessingDataLoaderIter
    begin = kind.__init__

    def begin_and_note(self, loader):
        begin(self, loader)
        iterators.add(self)

    monkeypatch.setattr(kind, "__init__", begin_and_note)
    yield
    for iterator in list(iterators):
        iterator._shutdown_workers()
