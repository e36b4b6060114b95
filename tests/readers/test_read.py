"""The step itself: strict, picklable, and told apart from nonsense."""

import pickle

import msgspec
import pytest

from gristmill.core.errors import UsageError
from gristmill.readers.read import Read


def test_survives_pickling_and_json():
    read = Read(read=["a", "b"], text="x.y", columns=["c"], separator=None)
    assert pickle.loads(pickle.dumps(read)) == read
    assert msgspec.json.decode(msgspec.json.encode(read), type=Read) == read
    assert read.name == "read"


@pytest.mark.parametrize(
    "fields",
    [
        {"read": ""},
        {"read": []},
        {"format": "jsnl"},
        {"text": ""},
        {"separator": ""},
        {"separator": "\n", "format": "jsonl"},
        {"max_record_bytes": 0},
        {"columns": ["a", "a"]},
        {"columns": ["origin"]},
        {"columns": ["text"]},
    ],
    ids=str,
)
def test_nonsense_is_refused(fields):
    with pytest.raises(UsageError):
        Read(**{"read": "x", **fields})


def test_one_string_is_a_path_however_it_reads():
    for name in ("my folder of data", "x" * 300):
        assert Read(read=name).read == name
