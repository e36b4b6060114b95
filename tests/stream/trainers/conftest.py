"""A dataset with a vocabulary for tiny models."""

import numpy as np
import pytest
from gristmill_testing.streams import ROW_LENGTH, all_rows, packed_rows, slow_order
from gristmill_testing.token_datasets import write_tokens


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """Two sources in three shards, 53 rows with ids below 500."""
    rng = np.random.default_rng(5)
    content = {
        ("train", source): [
            [[[token % 499 + 1 for token in document] for document in row] for row in packed_rows(rng, num_rows)]
            for num_rows in sizes
        ]
        for source, sizes in {"web": [7, 23], "code": [23]}.items()
    }
    folder = tmp_path_factory.mktemp("trained") / "out"
    write_tokens(folder, content, row_length=ROW_LENGTH)
    return folder


@pytest.fixture(scope="session")
def oracle(packed):
    """The first 160 rows without weights, worked out slowly."""
    return slow_order({"": all_rows(packed)}, 160, seed=7)
