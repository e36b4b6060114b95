import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.pipeline.jobs.export import export

ROW_LENGTH = 7
ROW = st.lists(st.integers(1, ROW_LENGTH), min_size=1, max_size=ROW_LENGTH).map(
    lambda sizes: [size for end, size in zip(np.cumsum(sizes), sizes, strict=True) if end <= ROW_LENGTH]
)


def slow(rows, *, loss_masks):
    """What should come out, token by token."""
    inputs, targets, masks = [], [], []
    for documents in rows:
        ids = [token for document in documents for token in document]
        owners = [number for number, document in enumerate(documents) for _ in document]
        padding = ROW_LENGTH - len(ids)
        ids, owners = ids + [0] * padding, owners + [None] * padding
        inputs.append(ids[:-1])
        targets.append(ids[1:])
        masks.append(
            [
                owners[place] is not None and owners[place] == owners[place - 1] and (place % 2 == 1 or not loss_masks)
                for place in range(1, ROW_LENGTH)
            ]
        )
    return inputs, targets, masks


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    shards=st.lists(st.lists(ROW, min_size=1, max_size=5), min_size=1, max_size=3),
    id_type=st.sampled_from(["uint16", "uint32"]),
    loss_masks=st.booleans(),
)
def test_arrays_are_those_of_slow_python(tmp_path_factory, shards, id_type, loss_masks):
    tmp_path = tmp_path_factory.mktemp("arrays")
    counter = iter(range(1, 10_000))
    filled = [[[[next(counter) for _ in range(size)] for size in row] for row in shard] for shard in shards]
    folder = write_tokens(
        tmp_path / "out", {("train", "web"): filled}, id_type=id_type, row_length=ROW_LENGTH, loss_masks=loss_masks
    )
    export(folder, to="numpy", path=tmp_path / "rows", backend="serial", progress=False)
    arrays = [np.load(tmp_path / f"rows_train_{name}.npy", mmap_mode="r") for name in ("input", "target", "mask")]
    assert [str(array.dtype) for array in arrays] == [id_type, id_type, "bool"]
    expected = slow([row for shard in filled for row in shard], loss_masks=loss_masks)
    assert [array.tolist() for array in arrays] == list(expected)


def test_all_workers_fill_the_same_files(tmp_path, run):
    shards = [[[[number] * 3, [100 + number] * 3]] * 20 for number in range(1, 8)]
    folder = write_tokens(tmp_path / "out", {("train", "web"): shards}, row_length=8)
    run(folder, "numpy", backend="processes", workers=3)
    inputs = np.load(tmp_path / "bin/corpus_train_input.npy", mmap_mode="r")
    assert inputs.shape == (140, 7)
    assert inputs[:, 0].tolist() == np.repeat(np.arange(1, 8), 20).tolist()


def test_unpacked_rows_are_refused(documents, run):
    with pytest.raises(UsageError, match="not packed"):
        run(documents, "numpy")
