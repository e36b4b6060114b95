import gzip
import sys
from dataclasses import replace

from gristmill.core.quantities import format_bytes
from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.expected_memory import ExpectedMemory
from gristmill.pipeline.planning.outline import Outline
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.sources.source_plan import UNPACK_BYTES
from gristmill.steps.length import Length
from gristmill.steps.limit import Limit
from gristmill.steps.read import Read
from gristmill.steps.shuffle import Shuffle
from gristmill.steps.write import Write

MEMORY = ExpectedMemory(num_workers=2, limited_by="cores", worker_bytes=100 << 20, parent_bytes=50 << 20)
LINE = '{"text": "a document of some words"}\n'


def _outline(folder, *steps, read="*.jsonl", **keys):
    recipe = Recipe(sources={"web": Read(read=read)}, steps=steps, output="out", folder=str(folder), **keys)
    return make_plan(recipe).outline()


def test_notes_that_all_sources_have_are_printed_once(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path)
    [source] = outline.sources
    sources = [replace(source, name=name, notes=("for all", f"only {name}")) for name in ("web", "books")]
    lines = str(replace(outline, sources=sources)).splitlines()
    notes = [line.partition("note: ")[2] for line in lines if "note: " in line]
    assert notes == ["only web", "only books", "for all"]
    assert str(replace(outline, sources=sources[:1])).count("for all") == 1


def test_stages_end_at_steps_that_need_all_records(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path, Length(), Shuffle(), Limit(max_records=3), Write(format="jsonl"))
    assert outline.sources[0].stages == [["read", "length", "shuffle"], ["limit"], ["write"]]


def test_a_large_file_has_several_units_and_smaller_slices_more_tasks(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * ((130 << 20) // len(LINE)))
    whole, cut = (_outline(tmp_path, slice_bytes=size).sources[0] for size in (64 << 20, 16 << 20))
    assert (whole.num_units, whole.num_tasks) == (3, 3)
    assert cut.num_units == 3
    assert 8 <= cut.num_tasks <= 10


def test_the_memory_of_workers_and_what_limits_them(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * ((20 << 20) // len(LINE)))
    outline = _outline(tmp_path, Write(format="jsonl"))
    memory = outline.memory
    assert memory.total_bytes == memory.num_workers * memory.worker_bytes + memory.parent_bytes
    assert f"limited by {memory.limited_by}" in str(outline)
    assert _outline(tmp_path, Write(format="parquet")).memory.worker_bytes > memory.worker_bytes


def test_a_small_job_needs_only_the_memory_of_this_process(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path, Write(format="jsonl"))
    assert (outline.memory.num_workers, outline.memory.worker_bytes) == (0, 0)
    assert "all in this process" in str(outline)


def test_every_copy_on_disk_is_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * 1000)
    plain = _outline(tmp_path, Write(format="jsonl")).needed_bytes
    packed = _outline(tmp_path, Write(format="jsonl", compression="zstd")).needed_bytes
    shuffled = _outline(tmp_path, Shuffle(), Write(format="jsonl")).needed_bytes
    assert packed < plain == (tmp_path / "a.jsonl").stat().st_size < shuffled


def test_a_large_compressed_file_is_unpacked_first(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINE.encode() * 1000))
    assert _outline(tmp_path, read="a.jsonl.gz").sources[0].num_unpacked_files == 0
    assert UNPACK_BYTES > 1
    monkeypatch.setattr("gristmill.pipeline.planning.sources.source_plan.UNPACK_BYTES", 1)
    [source] = _outline(tmp_path, read="a.jsonl.gz").sources
    assert source.num_unpacked_files == 1
    assert source.pieces_bytes >= (tmp_path / "a.jsonl.gz").stat().st_size


def test_a_disk_that_is_too_small_is_pointed_out():
    small = Outline(output="out", format="jsonl", sources=[], needed_bytes=10**9, free_bytes=10**6, memory=MEMORY)
    large = Outline(output="out", format="jsonl", sources=[], needed_bytes=10**6, free_bytes=10**9, memory=MEMORY)
    assert "1.0 GB free" in str(large)
    assert "free" not in str(replace(large, free_bytes=sys.maxsize))  # as on a store
    assert not small.fits
    assert "MAY NOT FIT" in str(small)
    assert large.fits
    assert "MAY NOT FIT" not in str(large)


def test_amounts():
    assert [format_bytes(n) for n in (0, 999, 1000, 999_949, 999_950, 10**15)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "1.0 PB",
    ]
