"""`TorchRows`: single rows by number, for trainers that do their own sampling."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores are meant here


def test_an_endless_stream_has_no_length_here_either(packed):
    for made in (TorchLoader(Stream(packed), 2), TorchDataset(Stream(packed), 2)):
        with pytest.raises(TypeError, match="endless"):
            len(made)
    with pytest.raises(TypeError, match="endless"):
        TorchRows(Stream(packed))


def test_rows_by_number(packed, oracle):
    rows = TorchRows(Stream(packed, seed=7, epochs=1))
    assert len(rows) == 53
    assert rows[5]["input_ids"].tolist() == oracle[5]
    assert rows[-1]["input_ids"].tolist() == oracle[52]
    assert [row["input_ids"].tolist() for row in rows.__getitems__([9, 2])] == [oracle[9], oracle[2]]
    with pytest.raises(IndexError):
        _ = rows[53]
    batches = list(DataLoader(rows, batch_size=10))
    assert np.concatenate([batch["input_ids"] for batch in batches]).tolist() == oracle[:53]
    assert set(batches[0]) == {"input_ids", "labels"}
    with pytest.raises(UsageError, match="cu_seqlens"):
        TorchRows(Stream(packed, epochs=1, collate=Collate(fields=("input_ids", "cu_seqlens"))))


def test_rows_of_different_lengths_come_without_padding(tmp_path):
    from gristmill_testing.token_datasets import write_tokens

    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2, 3], [4], [5, 6]]]})
    rows = TorchRows(Stream(folder, epochs=1, shuffle=False))
    assert [row["labels"].tolist() for row in rows.__getitems__([0, 1, 2])] == [[1, 2, 3], [4], [5, 6]]
