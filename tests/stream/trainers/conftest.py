"""A dataset with a vocabulary for tiny models."""

import pytest
import torch
from gristmill_testing.streams import all_rows, slow_order, write_packed


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Keeps torch from using all cores for matrices of a few numbers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """Two sources in three shards, 53 rows with ids below 500."""
    return write_packed(tmp_path_factory.mktemp("trained") / "out", {"web": [7, 23], "code": [23]}, vocab_size=500)


@pytest.fixture(scope="session")
def oracle(packed):
    """The first 160 rows without weights, worked out slowly."""
    return slow_order({"": all_rows(packed)}, 160, seed=7)
