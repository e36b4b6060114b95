import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.records import (
    ORIGIN_TYPE,
    SPLIT,
    RuleValues,
    SourceFile,
    count_values,
    is_for_training,
    make_origins,
)
from gristmill.core.sample_batches import documents

FILE = SourceFile(path="/data/a.jsonl", relative="a.jsonl", num_bytes=3, version="1", id=5)


def test_origins_of_one_file_and_of_many():
    positions = pa.array([3, 4])
    assert make_origins(7, positions).type == ORIGIN_TYPE
    assert make_origins(7, positions).to_pylist()[1] == {"file": 7, "position": 4, "part": 0}
    origins = make_origins(pa.array([1, 2], pa.uint64()), positions, pa.array([0, 9], pa.uint32()))
    assert origins.to_pylist()[1] == {"file": 2, "position": 4, "part": 9}


def test_records_without_splits_are_for_training():
    assert is_for_training(documents(["a", "b"])).tolist() == [True, True]
    assert is_for_training(documents(["a", "b"], **{SPLIT: ["train", "test"]})).tolist() == [True, False]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_bytes_of_texts_are_counted_in_slices_too(kind):
    column = pa.array(["ab", None, "", "äb"], kind)
    assert [count_values(column), count_values(column[1:]), count_values(column[:0])] == [5, 3, 0]


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.uint16())])
def test_values_of_lists_are_counted(kind):
    column = pa.array([[1, 2], [], [3]], kind)
    assert [count_values(column), count_values(column[1:])] == [3, 1]


def test_thresholds_for_each_row_and_for_all():
    by_row = RuleValues(np.array([1.5, 2.5]), np.array([2.0, 2.25]))
    assert [by_row.at(0), by_row.at(1)] == [(1.5, 2), (2.5, 2.25)]
    assert RuleValues(pa.array(["de", "en"]), "en").at(0) == ("de", "en")


def test_identity_of_a_file_is_its_version_or_its_content():
    changed = SourceFile(path="/data/a.jsonl", relative="a.jsonl", num_bytes=3, version="2", id=5)
    moved = SourceFile(path="/other/a.jsonl", relative="a.jsonl", num_bytes=3, version="1", id=5)
    assert FILE.identity != changed.identity
    assert FILE.identity == moved.identity


@pytest.mark.parametrize(("split", "is_held_out"), [("", False), ("train", False), ("test", True)])
def test_files_of_other_splits_are_held_out(split, is_held_out):
    file = SourceFile(path="a", relative="a", num_bytes=1, version="1", id=1, split=split)
    assert file.is_held_out is is_held_out
