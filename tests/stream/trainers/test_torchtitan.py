"""`StreamDataLoader` as torchtitan's trainer uses it: built by its Config, folded batches, one state for all ranks."""

import dataclasses
import inspect
import json

import numpy as np
import pytest
import torch
from gristmill_testing.streams import ROW_LENGTH
from gristmill_testing.titan_interface import install_titan_interface
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Cache, Stream

install_titan_interface()

from gristmill.stream.trainers.torchtitan import BaseDataLoader, StreamDataLoader  # noqa: E402


def build(data, *, rank=0, world_size=1, batch_rows=4, max_context_length=ROW_LENGTH, **options):
    config = StreamDataLoader.Config(data=str(data), seed=7, **options)
    return config.build(
        dp_world_size=world_size,
        dp_rank=rank,
        tokenizer=None,
        max_context_length=max_context_length,
        num_tokens_per_batch=batch_rows * ROW_LENGTH,
    )


def rows_of(batch):
    return batch[0]["input"].reshape(-1, ROW_LENGTH).tolist()


def test_batches_are_folded_and_labels_shifted_within_documents(packed):
    loader = build(packed, epochs=1)
    assert isinstance(loader, BaseDataLoader)
    stream = Stream(packed, seed=7, epochs=1)
    lengths = {
        tuple(record["input_ids"].tolist()): record["lengths"].tolist()
        for record in map(open_dataset(packed).__getitem__, range(53))
    }
    [inputs, labels] = next(iter(loader))
    assert [tensor.shape for tensor in (inputs["input"], inputs["positions"], labels)] == [(4 * ROW_LENGTH,)] * 3
    assert labels.dtype == inputs["positions"].dtype == torch.int64
    expected_labels, expected_positions = [], []
    for row in stream.rows(0, 4)["input_ids"].tolist():
        begin = 0
        for length in [*lengths[tuple(row)], 0]:  # worked out document by document; then the padding
            end = begin + length if length else ROW_LENGTH
            next_ids = [*row[begin + 1 : end], -100] if length else [-100] * (end - begin)
            expected_labels += next_ids
            expected_positions += range(end - begin)
            begin = end
    assert labels.tolist() == expected_labels
    assert inputs["positions"].tolist() == expected_positions
    loader.close()


@pytest.mark.full
@pytest.mark.parametrize("balance", [False, True])
def test_another_number_of_ranks_resumes_the_state_of_one(packed, oracle, balance):
    """Two epochs: five steps of two ranks, then three ranks with other batches to the end."""
    found, state = [], None
    for rank in range(2):
        loader = build(packed, rank=rank, world_size=2, epochs=2, balance=balance)
        batches = iter(loader)
        found += [row for _ in range(5) for row in rows_of(next(batches))]
        state = state or loader.state_dict()
        assert loader.state_dict() == state
        loader.close()
    for rank in range(3):
        loader = build(packed, rank=rank, world_size=3, batch_rows=5, epochs=2, balance=balance)
        loader.load_state_dict(json.loads(json.dumps(state)))
        found += [row for batch in loader for row in rows_of(batch) if any(row)]
        assert loader.state_dict()["row"] == 106
    assert sorted(found) == sorted(oracle[:106])


@pytest.mark.full
def test_a_first_run_has_no_state(packed, oracle):
    loader = build(packed, epochs=1)
    loader.load_state_dict({})
    batches = iter(loader)
    assert rows_of(next(batches)) == oracle[:4]
    assert rows_of(next(iter(loader))) == oracle[4:8]  # iterated again: it continues
    loader.close()
    loader.close()


@pytest.mark.full
def test_sizes_that_do_not_fit_are_refused(packed, tmp_path):
    with pytest.raises(UsageError, match="max_context_length is 4"):
        build(packed, max_context_length=4)
    config = StreamDataLoader.Config(data=str(packed))
    sizes = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, "max_context_length": 99}
    with pytest.raises(UsageError, match="not a whole number of rows"):
        config.build(num_tokens_per_batch=2 * ROW_LENGTH + 1, **sizes)
    ragged = write_tokens(tmp_path / "out", {("train", "web"): [[np.arange(1, 5)]]})
    with pytest.raises(UsageError, match="rows of one length"):
        StreamDataLoader.Config(data=str(ragged)).build(num_tokens_per_batch=24, **sizes)


@pytest.mark.full
def test_the_config_has_every_argument_of_a_stream_that_fits(packed, tmp_path):
    """All but those for samples, images and rows that differ in length, and `collate`, which the trainer decides."""
    others = {"collate", "samples"}
    arguments = inspect.signature(Stream).parameters
    names = {field.name for field in dataclasses.fields(StreamDataLoader.Config)}
    assert set(arguments) - others - {"batch_tokens"} <= names
    options = {"sources": ["web"], "shuffle": {"blocks": 2}, "rows": 40, "rows_per_epoch": 10, "drop_last": True}
    loader = build(packed, cache=Cache(tmp_path, max_bytes=1 << 20), **options)
    stream = Stream(packed, seed=7, **options)
    expected = [row for _ in range(4) for batch in stream_pass(stream) for row in batch]
    assert [row for batch in loader for row in rows_of(batch)] == expected


def stream_pass(stream):
    """Two batches of 4 rows, and the 2 rows of the epoch that are left out."""
    begin = stream.next_row
    stream.position.move_to(begin + 10)
    return [
        stream.rows(begin, begin + 4)["input_ids"].tolist(),
        stream.rows(begin + 4, begin + 8)["input_ids"].tolist(),
    ]
