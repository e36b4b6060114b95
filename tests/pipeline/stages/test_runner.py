"""Files of the work folder that disappear during a run are noticed, and never cost records."""

import uuid

import pytest

import gristmill as gm
from gristmill.core.errors import GristmillError
from gristmill.pipeline.planning import units
from gristmill.pipeline.stages import runner
from gristmill.pipeline.stages.unit_tasks import UnitTasks
from gristmill.steps import Limit, Read, Shuffle, Write
from gristmill.storage import sync_thread


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
        patched.setattr(sync_thread, "sync_files", list)  # which would find it out first
        with pytest.raises(GristmillError, match="disappeared during the run"):
            mill.run(recipe)
    assert not (mill.output / "manifest.json").exists()
    assert len(mill.run(recipe).dataset()) == 20


class LateSyncThread(sync_thread.SyncThread):
    """A disk that is so slow that no receipt is written before the stage has ended."""

    def add(self, item, paths):
        self._waiting.append((item, ()))

    def __exit__(self, *error):
        for item, _ in self._waiting:
            self._on_synced(item)


def test_files_on_a_store_are_known_before_their_receipts_are_written(tmp_path, monkeypatch):
    """A unit of several slices is put together when the last one ends, whatever the thread of receipts has done."""
    (tmp_path / "web.jsonl").write_text("".join(f'{{"text": "{letter * (5 << 20)}"}}\n' for letter in "abc"))
    monkeypatch.setattr(units, "CELL_BYTES", 1000)  # the least size of a slice of the second stage
    monkeypatch.setattr(units, "_FEED_BYTES", 0)
    monkeypatch.setattr(runner, "SyncThread", LateSyncThread)
    recipe = gm.Recipe(
        sources={"web": Read(read=f"{tmp_path}/web.jsonl")},
        steps=[Limit(max_records=3), Shuffle()],
        output=f"memory://{uuid.uuid4().hex}/out",
    )
    result = gm.run(recipe, backend="threads", workers=2, progress=False)
    assert result.books["web"][-1].records_out == 3
