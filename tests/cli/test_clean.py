import json
import shutil

import pytest

from gristmill.storage.lock import FolderLock


def _content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_dead_run_left_goes(gristmill, project):
    (project / "data.jsonl").write_text('{"text": "good document"}\nbad\n' * 20)
    gristmill("run", project / "recipe.yaml", "--backend", "serial", fails=1)
    out = project / "out"
    (out / ".gristmill-abc-0123456789abcdef.tmp").write_text("half a file")
    said = gristmill("clean", out).out
    assert ".gristmill-abc-0123456789abcdef.tmp" in said
    assert list(out.iterdir()) == []


def test_a_finished_dataset_stays_whole_and_can_be_updated(gristmill, dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    before = _content(copy)
    (copy / ".gristmill/work/dead.piece").write_text("left by a dead run")
    found = json.loads(gristmill("clean", copy, "--json").out)
    assert found["files"] == [".gristmill/work/dead.piece"]
    assert found["is_dataset"] is True
    assert _content(copy) == before
    gristmill("verify", copy)


@pytest.mark.slow
def test_work_that_was_kept_goes(gristmill, project):
    gristmill("run", project / "recipe.yaml", "--backend", "serial", "--keep-work")
    gristmill("clean", project / "out")
    assert not (project / "out/.gristmill/receipts.jsonl").exists()
    gristmill("verify", project / "out")
    assert "up to date" in gristmill("run", project / "recipe.yaml").out


def test_a_running_run_is_left_alone(gristmill, project):
    out = project / "out"
    (out / ".gristmill/work").mkdir(parents=True)
    (out / ".gristmill/work/piece").write_text("in use")
    with FolderLock(out):
        assert "in use by process" in gristmill("clean", out, fails=1).err
    assert (out / ".gristmill/work/piece").exists()


def test_a_folder_of_someone_else_is_refused(gristmill, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    gristmill("clean", tmp_path, fails=2)
    gristmill("clean", tmp_path / "nowhere", fails=2)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
