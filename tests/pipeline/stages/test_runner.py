"""Files of the work folder that disappear during a run are noticed, and never cost records."""

import pytest

from gristmill.core.errors import GristmillError
from gristmill.pipeline.stages.unit_tasks import UnitTasks
from gristmill.steps import Read, Write
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
