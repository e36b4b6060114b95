import errno
import os

import pytest

import gristmill as gm
from gristmill import steps
from gristmill.storage.lock import FolderLock


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    return gm.Recipe(sources={"web": steps.Read(read="a.jsonl")}, output="out", folder=str(tmp_path))


def _run(recipe, **options):
    return gm.run(recipe, backend="serial", progress=False, **options)


def test_planning_writes_nothing(recipe, tmp_path):
    gm.plan(recipe)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_quick_look_is_not_the_dataset(recipe):
    assert len(_run(recipe, limit=1).dataset()) == 1
    with pytest.raises(gm.errors.GristmillError, match="changed"):
        _run(recipe)
    whole = _run(recipe, update=True)
    assert len(whole.dataset()) == 2
    assert _run(recipe).was_up_to_date


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ftp://127.0.0.1:1/out", "not written safely"),
        ("s3://bucket", "is a whole bucket"),
        ("s3://bucket/", "is a whole bucket"),
        ("s3://", "names no bucket"),
    ],
)
def test_an_output_that_cannot_be_written_safely_is_refused(recipe, output, message):
    with pytest.raises(gm.errors.UsageError, match=message):
        gm.run(gm.Recipe(sources=recipe.sources, output=output, folder=recipe.folder), progress=False)


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"backend": "procesess"}, {"timeout": 3}, {"update": True, "overwrite": True}]
)
def test_wrong_options_are_refused_before_anything_is_made(recipe, tmp_path, options):
    with pytest.raises(gm.errors.UsageError):
        gm.run(recipe, **{"backend": "serial", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("identity", "is_changed"), [("mtime", True), ("content", False)])
def test_a_touched_file_is_another_one_unless_content_decides(recipe, tmp_path, identity, is_changed):
    recipe = gm.Recipe(sources=recipe.sources, output="out", folder=recipe.folder, identity=identity)
    _run(recipe)
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    assert _run(recipe, update=True).was_up_to_date is not is_changed
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "2wo"}\n')
    assert not _run(recipe, update=True).was_up_to_date


def test_a_finished_dataset_on_a_read_only_disk_is_up_to_date(recipe, tmp_path, monkeypatch):
    made = _run(recipe)
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # Root may write wherever the mount allows it, so the mount is played: `access` says no, and so does the lock.
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    monkeypatch.setattr(FolderLock, "__enter__", refuse)
    again = _run(recipe)
    assert again.was_up_to_date
    assert again.manifest == made.manifest
    with pytest.raises(gm.errors.UsageError, match="cannot be written"):
        _run(recipe, overwrite=True)
    (tmp_path / "a.jsonl").write_text('{"text": "another"}\n')
    for output in ("out", "other"):
        with pytest.raises(gm.errors.UsageError, match="cannot be written"):
            _run(gm.Recipe(sources=recipe.sources, output=output, folder=str(tmp_path)))
    assert sorted(tmp_path.rglob("*")) == before
