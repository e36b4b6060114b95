"""Datasets of very many shards: the same manifest, with the list of shards in a file of its own."""

import json

import msgspec
import pytest

import gristmill as gm
from gristmill.core.errors import DamagedDatasetError
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.manifest_file import dump_manifest, encode_shard_list, load_manifest
from gristmill.shards.stored_files import MANIFEST
from gristmill.shards.verify import verify
from gristmill.steps import Read, Split, Write
from gristmill.storage.files import compute_file_checksum


def make(folder, *, name="out", format="jsonl", max_listed_shards=3, **options):
    records = [{"text": f"text number {n}"} for n in range(60)]
    sources = {"web": Read(read=records), "more": Read(read=records[:20])}
    steps = [Split(validation=0.3), Write(format=format, max_shard_bytes=400)]
    recipe = gm.Recipe(sources=sources, steps=steps, output=str(folder / name), **options)
    layout = UnitLayout(max_listed_shards=max_listed_shards)
    return run_recipe(recipe, RunOptions(backend="serial", progress=False, update=True, layout=layout)).manifest


def encode(shards):
    lines = [{"split": "train", "source": "web", **msgspec.to_builtins(shard)} for shard in shards]
    return b"".join(map(bytes, encode_shard_list(lines)))


@pytest.mark.parametrize("format", ["jsonl", "arrow"])
def test_a_list_of_its_own_changes_nothing_else(tmp_path, format):
    inline = make(tmp_path, name="inline", max_listed_shards=10_000, format=format)
    listed = make(tmp_path, format=format)
    stored = json.loads((tmp_path / "out" / MANIFEST).read_bytes())
    assert stored["splits"] == {}
    assert stored["shard_list"]["path"] == "index/shards.arrow"
    assert (listed.dataset_hash, listed.splits) == (inline.dataset_hash, inline.splits)
    assert load_manifest(tmp_path / "out") == listed
    assert verify(tmp_path / "out")
    assert list(gm.open_dataset(tmp_path / "out")) == list(gm.open_dataset(tmp_path / "inline"))
    again = gm.Recipe(sources={"a": Read(read=str(tmp_path / "out"))}, output=str(tmp_path / "again"))
    assert sum(s.rows for _, _, s in gm.run(again, backend="serial", progress=False).manifest.shards()) == 80
    updated = make(tmp_path, format=format, mixture={"web": 2.0, "more": 1.0})
    assert updated.splits == listed.splits


def test_a_damaged_or_hostile_list_is_refused(tmp_path):
    manifest = make(tmp_path)
    path = tmp_path / "out" / "index" / "shards.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(DamagedDatasetError, match=r"index/shards\.arrow"):
        load_manifest(tmp_path / "out")
    shard = msgspec.structs.replace(manifest.splits["train"]["web"][0], path="../secret")
    path.write_bytes(encode([shard]))
    forged = msgspec.structs.replace(manifest.shard_list, bytes=path.stat().st_size, xxh3=compute_file_checksum(path))
    resealed = msgspec.structs.replace(manifest, shard_list=forged).seal()
    (tmp_path / "out" / MANIFEST).write_bytes(b"".join(dump_manifest(resealed)))
    with pytest.raises(DamagedDatasetError, match=r"index/shards\.arrow"):
        load_manifest(tmp_path / "out")


def test_an_exchanged_list_breaks_the_seal(tmp_path):
    manifest = make(tmp_path)
    path = tmp_path / "out" / "index" / "shards.arrow"
    path.write_bytes(encode(manifest.splits["train"]["web"][:1]))
    forged = msgspec.structs.replace(manifest.shard_list, bytes=path.stat().st_size, xxh3=compute_file_checksum(path))
    changed = msgspec.structs.replace(manifest, shard_list=forged)
    (tmp_path / "out" / MANIFEST).write_bytes(b"".join(dump_manifest(changed)))
    assert "edited" in {problem.kind for problem in verify(tmp_path / "out").problems}
