"""`unit_bytes`: larger shards with the same records in the same order, however units are cut into slices."""

import gzip
import json

import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Read, Write

MIB = 1 << 20


@pytest.fixture
def files(mill, tmp_path):
    """A file that is unpacked into pieces, one that is cut, and small ones."""
    mill.layout = UnitLayout(unpack_bytes=1000, cells_per_unit=1, unit_bytes=4 * MIB)
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {n} " + "x" * 9000}) + "\n" for n in range(1000)]
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), 1, mtime=0))
    (folder / "b.jsonl").write_text("".join(lines[:500]))
    for number in range(5):
        (folder / f"c{number}.jsonl").write_text("".join(lines[number : number + 3]))
    return folder


def texts(mill):
    return [record["text"] for record in open_dataset(mill.output)]


def run(mill, files, **settings):
    recipe = mill.recipe({"web": Read(read=f"{files}/*")}, [Write(format="jsonl")], **settings)
    return mill.run(recipe, overwrite=True).manifest


def test_fewer_shards_with_the_same_records(mill, files):
    usual = run(mill, files)
    expected = texts(mill)
    larger = run(mill, files, unit_bytes="128MiB")
    assert texts(mill) == expected
    assert len(usual.splits["train"]["web"]) > len(larger.splits["train"]["web"]) > 1
    assert larger.fingerprint != usual.fingerprint
    assert larger.recipe["unit_bytes"] == 128 * MIB
    cut = run(mill, files, unit_bytes="128MiB", slice_bytes=1)
    assert cut.dataset_hash == larger.dataset_hash
    assert run(mill, files, unit_bytes="64MiB").fingerprint == usual.fingerprint


@pytest.mark.parametrize("size", [0, 1, 63 * MIB, 65 * MIB])
def test_other_sizes_are_refused(mill, size):
    with pytest.raises(UsageError, match="multiple of 64 MiB"):
        mill.recipe({"web": Read(read="a.jsonl")}, [], unit_bytes=size)
