"""Files of the work folder that disappear during a run are noticed, and never cost records."""

import gzip
import os
import uuid

import pytest

import gristmill as gm
from gristmill.core.errors import GristmillError
from gristmill.engine.tasks import Context, Task
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages import runner
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.slice_reader import SliceReader
from gristmill.pipeline.stages.slice_run import run_measured
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.stages.unit_tasks import UnitTasks
from gristmill.pipeline.stages.unpack import UnpackResult
from gristmill.steps import Limit, Read, Shuffle, Write
from gristmill.storage import commit
from gristmill.storage.locations import parse_location


def test_a_slice_whose_files_are_gone_before_it_is_joined(mill, tmp_path, monkeypatch):
    (tmp_path / "web.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(20)))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/web.jsonl")}, [Write(format="parquet")])
    finish_task = UnitTasks.finish_task

    def lose_blocks(tasks, task, result):
        finish_task(tasks, task, result)
        for path in (mill.output / ".gristmill/work").glob("*.parquet"):
            path.unlink()

    with monkeypatch.context() as patched:
        patched.setattr(UnitTasks, "finish_task", lose_blocks)
        patched.setattr(commit, "sync_files", list)  # which would find it out first
        with pytest.raises(GristmillError, match="disappeared during the run"):
            mill.run(recipe)
    assert not (mill.output / "manifest.json").exists()
    assert len(mill.run(recipe).dataset()) == 20


def test_unpacked_pieces_are_checked_by_each_slice(mill, tmp_path, monkeypatch):
    """Also where one process reads several of them, and the disk has damaged the piece meanwhile."""
    texts = [f"document {number} " + "x" * (1 << 20) for number in range(10)]
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    (tmp_path / "web.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    mill.layout = UnitLayout(unpack_bytes=1000)
    finish, damaged = SliceReader.finish, []

    def damage_after_first_slice(reader):
        finish(reader)
        if not damaged:
            [piece] = (mill.output / ".gristmill/stored").glob("*.piece")
            before, content = piece.stat(), bytearray(piece.read_bytes())
            content[-100] ^= 1
            piece.write_bytes(content)
            os.utime(piece, ns=(before.st_atime_ns, before.st_mtime_ns))
            damaged.append(piece)

    monkeypatch.setattr(SliceReader, "finish", damage_after_first_slice)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/web.jsonl.gz")}, [Write(format="jsonl")], slice_bytes=1)
    assert [record["text"] for record in mill.run(recipe).dataset()] == texts
    assert damaged


def test_unpacked_pieces_on_a_store_may_be_copied(tmp_path, monkeypatch):
    """As by who moves a bucket between two runs: their versions are others, and their bytes are the same."""
    (tmp_path / "web.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a document"}\n' * 1000))
    output, add, copied = f"memory://{uuid.uuid4().hex}/out", Receipts.add, []

    def copy(receipts, fingerprint, result):
        add(receipts, fingerprint, result)
        for file in result.files() if isinstance(result, UnpackResult) else ():
            store, key = (parse_location(output) / file.path).open_store()
            before = store.head(key).version
            store.put(key, store.read(key))
            copied.append(store.head(key).version != before)

    monkeypatch.setattr(Receipts, "add", copy)
    recipe = gm.Recipe(sources={"web": Read(read=f"{tmp_path}/web.jsonl.gz")}, steps=[], output=output)
    options = RunOptions(backend="serial", progress=False, layout=UnitLayout(unpack_bytes=100))
    assert len(run_recipe(recipe, options).dataset()) == 1000
    assert copied == [True]


class LateSyncThread(commit.SyncThread):
    """A disk that is so slow that no receipt is written before the stage has ended."""

    def add(self, item, paths):
        self._waiting.append((item, ()))

    def __exit__(self, *error):
        for item, _ in self._waiting:
            self._on_synced(item)


def test_files_on_a_store_are_known_before_their_receipts_are_written(tmp_path, monkeypatch):
    """A unit of several slices is put together when the last one ends, whatever the thread of receipts has done."""
    (tmp_path / "web.jsonl").write_text("".join(f'{{"text": "{letter * 5000}"}}\n' for letter in "abc"))
    monkeypatch.setattr(runner, "SyncThread", LateSyncThread)
    recipe = gm.Recipe(
        sources={"web": Read(read=f"{tmp_path}/web.jsonl")},
        steps=[Limit(max_records=3), Shuffle()],
        output=f"memory://{uuid.uuid4().hex}/out",
    )
    layout = UnitLayout(cell_bytes=1000, feed_bytes=0)
    result = run_recipe(recipe, RunOptions(backend="threads", workers=2, progress=False, layout=layout))
    assert result.books["web"][-1].records_out == 3


@pytest.mark.parametrize("waited", [0.0, 2.0])
def test_only_tasks_that_waited_for_a_store_are_counted(waited, monkeypatch):
    """However long local tasks take to see that there is nothing to wait for."""
    clock = iter(range(10**6))
    monkeypatch.setattr("gristmill.storage.stores.retries.perf_counter", lambda: float(next(clock)))
    counted = []
    context = Context(counted.append, wait_for_last=lambda: waited)
    for number in range(3):
        run_measured(lambda task, _: task.payload, Task(str(number), number), context)
    context.flush()
    assert sum(counts.get("store:wait_ms", 0) for counts in counted) == 3 * 1000 * waited
    assert bool(counted) == bool(waited)
