"""The datasets of a mix: checked against each other, and measured row by row."""

import pytest
from gristmill_testing.streams import all_rows, with_manifest, write_packed
from gristmill_testing.token_datasets import write_tokens
from tests.pipeline.jobs.test_mix_datasets import sources_of

from gristmill.core.books import Account
from gristmill.core.errors import UsageError
from gristmill.pipeline.jobs.mix_datasets import mix
from gristmill.shards.dataset import open_dataset
from gristmill.shards.stored_files import MixedShare
from gristmill.shards.verify import verify


@pytest.fixture
def inputs(tmp_path):
    web = write_packed(tmp_path / "web", {"web": [40, 60]})
    code = write_packed(tmp_path / "code", {"a": [10], "b": [20]}, seed=1)
    return {"web": web, "code": code}


def test_files_that_are_called_alike_are_told_apart(tmp_path):
    given = {name: (write_packed(tmp_path / name, {"data": [20]}, seed=n), 1) for n, name in enumerate(("a", "b"))}
    expected = {name: set(map(tuple, all_rows(folder))) for name, (folder, _) in given.items()}
    mix(given, tmp_path / "out", size=40, by="rows")
    for row, source in zip(all_rows(tmp_path / "out"), sources_of(tmp_path / "out"), strict=True):
        assert tuple(row) in expected[source]
    assert verify(tmp_path / "out")


def test_shares_that_are_not_those_of_the_rows_are_noticed(inputs, tmp_path):
    out = tmp_path / "out"
    mix({"web": (inputs["web"], 1), "code": (inputs["code"], 1)}, out, size=40, by="rows")
    manifest = open_dataset(out).manifest
    shares = {"web": MixedShare(rows=19, tokens=1), "code": MixedShare(rows=21, tokens=1)}
    books = {name: [Account("mix", records_in=share.rows, records_out=share.rows)] for name, share in shares.items()}
    with_manifest(out, mixed={"train": shares}, books=books)
    assert "books" in {problem.kind for problem in verify(out).problems}
    with_manifest(out, mixed=manifest.mixed, books=manifest.books)
    assert verify(out)


def test_what_is_not_there_is_refused_with_what_would_work(inputs, tmp_path):
    given = {"web": (inputs["web"], 1), "code": (inputs["code"], 1)}
    with pytest.raises(UsageError, match=r"code: 50 rows are needed, but it has 30 in 1 epoch, 20 short") as error:
        mix(given, tmp_path / "out", size=100, by="rows")
    assert "at most 60" in error.value.help
    assert not (tmp_path / "out").exists()
    mix(given, tmp_path / "out", size=60, by="rows")


def test_what_does_not_go_together_is_refused(inputs, tmp_path):
    ragged = write_tokens(tmp_path / "ragged", {("train", "web"): [[[1, 2]]]})
    with pytest.raises(UsageError, match="different columns"):
        mix({"web": (inputs["web"], 1), "ragged": (ragged, 1)}, tmp_path / "out", size=2, by="rows")
    for options in ({"size": 0}, {"size": 5, "by": "bytes"}, {"size": 5, "split": "trian"}):
        with pytest.raises(UsageError):
            mix({"web": (inputs["web"], 1)}, tmp_path / "out", **options)
    with pytest.raises(UsageError, match="name of the lane"):
        mix({"mixed": (inputs["web"], 1)}, tmp_path / "out", size=5, by="rows")
    with pytest.raises(UsageError, match="above 0"):
        mix({"web": (inputs["web"], 0)}, tmp_path / "out", size=5)


def test_a_source_of_which_nothing_would_be_taken_is_refused(inputs, tmp_path):
    with pytest.raises(UsageError, match="less than one row of it"):
        mix({"web": (inputs["web"], 1)}, tmp_path / "out", size=1, by="tokens")
    assert not (tmp_path / "out").exists()
