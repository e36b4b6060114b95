"""Files of the work folder that disappear during a run are noticed, and never cost records."""

import pytest

from gristmill.core.errors import GristmillError
from gristmill.pipeline.stages.runner import StageRunner
from gristmill.pipeline.stages.slice_run import run_slice
from gristmill.steps import Read, Write


def test_a_slice_whose_files_are_gone_before_it_is_joined(mill, tmp_path, monkeypatch):
    (tmp_path / "web.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(20)))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/web.jsonl")}, [Write(format="parquet")])
    run_tasks = StageRunner.run_tasks

    def lose_blocks(runner, function, *arguments, **options):
        run_tasks(runner, function, *arguments, **options)
        if function is run_slice:
            for path in (mill.output / ".gristmill/work").glob("*.parquet"):
                path.unlink()

    with monkeypatch.context() as patched:
        patched.setattr(StageRunner, "run_tasks", lose_blocks)
        with pytest.raises(GristmillError, match="disappeared during the run"):
            mill.run(recipe)
    assert not (mill.output / "manifest.json").exists()
    assert len(mill.run(recipe).dataset()) == 20
