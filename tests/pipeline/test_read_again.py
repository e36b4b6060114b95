"""Lines that are read again after `deduplicate`, in place of texts and records that were stored before it."""

import json
import random

import pytest

from gristmill.core.errors import SourceChangedError
from gristmill.pipeline.barriers.deduplicate.barrier import DeduplicateBarrier
from gristmill.pipeline.planning import units
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Length, Read, Shuffle, Write
from gristmill.steps.read.cells import CELL_BYTES


def make_lines(count, seed=1):
    """Lines with escapes, other keys and other letters; a third are copies, exact or with one word more."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        words = [
            rng.choice(["größe", "粉", 'a"b', "\t", "grist", "mill\\"]) + str(rng.randrange(3000)) for _ in range(40)
        ]
        new = " ".join(words)
        texts.append(new if number % 3 or not texts else rng.choice(texts) + rng.choice(["", " more"]))
    return [
        json.dumps({"id": number, "text": text, "meta": {"text": "no"}}, ensure_ascii=number % 2 == 0).encode()
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = make_lines(300)
    bad = [b"{bad", b"", b'{"n": 1}', b"\xff", b" "]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines[:90], *bad, *lines[90:100]]))
    (folder / "b.jsonl").write_bytes(b"\r\n".join([*lines[100:180], *bad]) + b"\r\n")
    (folder / "c.jsonl").write_bytes(b"\n".join([*bad, *lines[180:], *lines[:50]]) + b"\n")
    (folder / "d.jsonl").write_bytes(b"")
    return {"web": Read(read=f"{folder}/*.jsonl")}


def run_both_ways(mill, monkeypatch, recipe, **options):
    """Return the manifests of a run that reads lines again and of one that stores texts and records."""
    again = mill.run(recipe, overwrite=True, **options).manifest
    monkeypatch.setattr(Deduplicate, "reads_again", False)
    return again, mill.run(recipe, overwrite=True, **options).manifest


def check_same(again, stored):
    assert again.dataset_hash == stored.dataset_hash
    assert again.books == stored.books
    assert again.deduplicated[0].file.xxh3 == stored.deduplicated[0].file.xxh3
    tasks, other_tasks = ([shard.tasks for _, _, shard in manifest.shards()] for manifest in (again, stored))
    assert tasks == other_tasks


@pytest.mark.parametrize(
    "steps",
    [
        [Write(format="jsonl")],
        [Write(format="jsonl", compression="zstd")],
        [Length(min_chars=300), Write(format="jsonl")],
        [Shuffle(), Write(format="jsonl")],
    ],
    ids=["lines", "compressed", "texts", "shuffled"],
)
@pytest.mark.parametrize("is_cut", [True, False], ids=["slices", "clusters"])
def test_the_same_bytes_as_from_stored_records(mill, monkeypatch, source, steps, is_cut):
    if is_cut:
        monkeypatch.setattr(units, "UNIT_BYTES", 20_000)
    recipe = mill.recipe(source, [Deduplicate(), *steps], max_quarantine=0.5)
    again, stored = run_both_ways(mill, monkeypatch, recipe, backend="serial")
    check_same(again, stored)
    assert len(list(open_dataset(mill.output))) < 300


def test_cells_of_plain_lines(mill, monkeypatch, tmp_path):
    """More than a cell: the compiled reader reads the texts, and a unit has several batches."""
    monkeypatch.setattr(units, "UNIT_BYTES", CELL_BYTES)
    (tmp_path / "large.jsonl").write_bytes(b"\n".join(make_lines(22_000)) + b"\n")
    steps = [Deduplicate(kind="exact"), Length(min_chars=300), Write(format="jsonl")]
    recipe = mill.recipe({"web": Read(read=str(tmp_path / "large.jsonl"))}, steps)
    again, stored = run_both_ways(mill, monkeypatch, recipe, backend="serial")
    check_same(again, stored)


def test_no_content_is_stored(mill, source):
    mill.run(mill.recipe(source, [Deduplicate(), Write(format="jsonl")], max_quarantine=0.5), keep_work=True)
    stored = [path.read_bytes() for path in (mill.output / ".gristmill").rglob("*.arrow")]
    assert stored
    assert not [data for data in stored if b"grist" in data]


def test_another_barrier_does_not_take_streams_without_content(mill, source):
    mill.run(mill.recipe(source, [Deduplicate(), Write(format="jsonl")], max_quarantine=0.5), keep_work=True)
    recipe = mill.recipe(source, [Shuffle(), Write(format="jsonl")], max_quarantine=0.5)
    updated = mill.run(recipe, update=True).manifest
    assert updated.dataset_hash == mill.run(recipe, overwrite=True).manifest.dataset_hash


@pytest.mark.parametrize("change", ["appended", "rewritten", "removed"])
def test_a_file_that_changes_before_it_is_read_again(mill, monkeypatch, source, tmp_path, change):
    decide = DeduplicateBarrier.pass_sources
    path = tmp_path / "in/c.jsonl"

    def change_file(barrier, sources, run):
        outcome = decide(barrier, sources, run)
        content = path.read_bytes()
        path.unlink()
        if change != "removed":
            path.write_bytes(content + b"\n" if change == "appended" else content[::-1])
        return outcome

    monkeypatch.setattr(DeduplicateBarrier, "pass_sources", change_file)
    with pytest.raises(SourceChangedError, match=r"c\.jsonl has changed since the run was planned"):
        mill.run(mill.recipe(source, [Deduplicate(), Write(format="jsonl")], max_quarantine=0.5), backend="serial")
    assert not (mill.output / "manifest.json").exists()
