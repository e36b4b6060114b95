"""Files that are not what their names say: the help tells what they are."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.plan import make_plan
from gristmill.steps import Read
from gristmill.steps.read.foreign_files import advise_on_file


def whole_parquet(folder):
    pq.write_table(pa.table({"text": ["one"]}), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 7\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><title>Sign in</title>", "web page"),
        (b'{"text": "one"}\n', "format: jsonl"),
        (gzip.compress(b"x" * 99, mtime=0), "gzip"),
        (b"", "empty"),
        (bytes(4096), "zeros"),
        (b"MZ something else", "MZ"),
    ],
)
def test_the_help_names_what_it_is(tmp_path, suffix, content, told):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        make_plan(Recipe(sources={"web": Read(read=str(path))}, output=str(tmp_path / "out")))
    if content:  # of an empty file other messages may come first
        assert told in raised.value.help
    assert told in advise_on_file(str(path), suffix)
    assert "again" not in (raised.value.help or "")


def test_a_parquet_file_that_ends_too_early(tmp_path):
    content = whole_parquet(tmp_path)
    path = tmp_path / "a.parquet"
    path.write_bytes(content[:-20])
    with pytest.raises(UsageError) as raised:
        make_plan(Recipe(sources={"web": Read(read=str(path))}, output=str(tmp_path / "out")))
    assert "ends too early" in raised.value.help
    path.rename(tmp_path / "a.arrow")
    path.write_bytes(content)
    assert "stopped" not in advise_on_file(str(tmp_path / "nothing.arrow"), "arrow")
