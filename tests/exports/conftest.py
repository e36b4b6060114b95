"""Small datasets of tokens, and an export of them that the test sees step by step."""

import numpy as np
import pytest
from gristmill_testing.token_datasets import LENGTH, write_tokens

from gristmill.pipeline.jobs.export import export

DOCUMENTS = {
    ("train", "web"): [[[5, 6, 7], [8], [9, 10]], [[11, 12]]],
    ("train", "books"): [[[20], [21, 22, 23, 24, 25]]],
    ("validation", "web"): [[[30, 31]]],
}


@pytest.fixture
def documents(tmp_path):
    return write_tokens(tmp_path / "out", DOCUMENTS)


@pytest.fixture
def run(tmp_path):
    """Exports a dataset to `tmp_path / "bin/corpus"`."""

    def start(dataset, to, **options):
        options = {"backend": "serial", "progress": False} | options
        return export(dataset, to=to, path=tmp_path / "bin/corpus", **options)

    return start


@pytest.fixture
def many(tmp_path):
    """A larger dataset, and all its training documents in order."""
    generator = np.random.default_rng(3)
    shards = [
        [generator.integers(0, 60_000, generator.integers(0, 50)) for _ in range(generator.integers(1, 30))]
        for _ in range(9)
    ]
    write_tokens(tmp_path / "out", {("train", "web"): shards[:5], ("train", "a"): shards[5:]}, rows_a_batch=7)
    return tmp_path / "out", [document for shard in shards for document in shard]


TRAIN = ("train", "web"), ("train", "books")


def make_rows(rng, num_rows):
    rows = []
    for _ in range(num_rows):
        lengths = [int(rng.integers(1, 5))]
        while sum(lengths) < LENGTH - 2:
            lengths.append(int(rng.integers(1, LENGTH - sum(lengths) + 1)))
        rows.append([rng.integers(1, 60_000, length).tolist() for length in lengths])
    return rows


@pytest.fixture
def packed(tmp_path, request):
    """A packed dataset and its training rows, each a list of documents."""
    rng = np.random.default_rng(5)
    shards = {TRAIN[0]: [make_rows(rng, 7), make_rows(rng, 4)], TRAIN[1]: [make_rows(rng, 6)]}
    shards[("validation", "web")] = [make_rows(rng, 2)]
    write_tokens(tmp_path / "out", shards, row_length=LENGTH, **getattr(request, "param", {}))
    return tmp_path / "out", [row for key in TRAIN for shard in shards[key] for row in shard]
