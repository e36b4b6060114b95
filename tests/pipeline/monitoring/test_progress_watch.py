"""What a run writes about itself, and how a run without progress is noticed."""

import json
import logging
import threading

import pytest
from gristmill_testing.watching import wait_until

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import DamagedDatasetError, StalledError, UsageError
from gristmill.pipeline.monitoring.progress_watch import ProgressWatch
from gristmill.pipeline.monitoring.run_status import describe_slowest, read_status
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.storage.locations import StorePath
from gristmill.storage.stores.fsspec_store import FsspecStore


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(50)))

    def hang(record):
        (tmp_path / "begun").touch()
        while not (tmp_path / "release").exists():
            threading.Event().wait(0.01)
        return record

    return Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Map(call=hang), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )


@pytest.fixture
def quick_looks(monkeypatch):
    monkeypatch.setattr("gristmill.pipeline.monitoring.progress_watch._SECONDS_BETWEEN", 0.05)


def test_a_run_that_hangs_tells_where_and_can_be_stopped(recipe, tmp_path, quick_looks, monkeypatch):
    monkeypatch.setattr("gristmill.pipeline.planning.plan.plan_source", _plan_without_trial(tmp_path))
    look = ProgressWatch.look

    def look_once_begun(watch, observer, workers):
        if (tmp_path / "begun").exists():  # however long the worker takes to start
            look(watch, observer, workers)

    monkeypatch.setattr(ProgressWatch, "look", look_once_begun)
    with pytest.raises(StalledError, match=r"no progress for \d+ s; running: .* on process \d+ for") as caught:
        gm.run(recipe, backend="processes", workers=1, progress=False, stall_timeout=0.5, stop_on_stall=True)
    assert "resumes" in str(caught.value)
    status = read_status(tmp_path / "out")
    assert (status.job, status.done, status.total, status.num_busy) == ("running", 0, 1, 1)
    assert "process" in status.slowest.name
    assert status.slowest.task.startswith(f"{tmp_path}/in.jsonl, byte ")
    monkeypatch.undo()
    (tmp_path / "release").touch()
    assert gm.run(recipe, backend="processes", workers=1, progress=False).manifest.dataset_hash
    assert read_status(tmp_path / "out") is None


def _plan_without_trial(tmp_path):
    """The plan runs the function on a sample, where it must not hang."""
    from gristmill.pipeline.planning import plan

    original = plan.plan_source

    def plan_source(*arguments, **named):
        (tmp_path / "release").touch()
        try:
            return original(*arguments, **named)
        finally:
            (tmp_path / "release").unlink(missing_ok=True)
            (tmp_path / "begun").unlink(missing_ok=True)

    return plan_source


class _Workers:
    num_busy = 0

    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())


class _Observer:
    desc, num_done, total, num_failed, num_deaths, reduction = "stage 1", 3, 9, 0, 0, ""
    num_bytes, seconds, seconds_since_ready, fraction = 0, 3.0, 0.0, None
    workers = ()

    def __init__(self):
        self.counts = {"records": 1}


def test_a_stall_is_told_once_and_again_after_progress(tmp_path, caplog):
    (tmp_path / ".gristmill").mkdir()
    watch = ProgressWatch(tmp_path, "abc", "serial", stall_timeout=0.02, stops=False)
    observer = _Observer()

    def count_warnings():
        watch.look(observer, _Workers())
        return sum("no progress" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.WARNING, "gristmill"):
        wait_until(lambda: count_warnings() == 1, "the first warning", 10)
        wait_until(lambda: read_status(tmp_path).seconds_without_progress > 0.1 or count_warnings() > 1, "time", 10)
        assert count_warnings() == 1
        observer.counts["records"] = 2
        assert count_warnings() == 1
        wait_until(lambda: count_warnings() == 2, "the second warning", 10)
    assert describe_slowest(read_status(tmp_path)) == "no task is running"


def test_a_slow_store_does_not_hold_up_the_scheduler(monkeypatch, quick_looks, caplog):
    """The status is written beside the run, one at a time, and none after the end of the job."""
    release, started, written = threading.Event(), threading.Semaphore(0), []

    def put(store, key, data, **options):
        started.release()
        assert release.wait(60)
        if not written:
            written.append(key)
            raise OSError("the store is busy")
        written.append(key)

    monkeypatch.setattr(FsspecStore, "put", put)
    watch = ProgressWatch(StorePath("memory://slow/out"), "00000001", "serial", stall_timeout=900, stops=False)
    with caplog.at_level(logging.WARNING, "gristmill"):
        watch.look(_Observer(), _Workers())
        assert started.acquire(timeout=60)
        for _ in range(3):
            watch._written = 0.0
            watch.look(_Observer(), _Workers())
        assert not started.acquire(blocking=False)
        release.set()
        watch.end_job(_Observer())
        assert written == ["/slow/out/.gristmill/status.json"]
        assert "status of the run could not be written: the store is busy" in caplog.text
    watch._written = 0.0
    watch.look(_Observer(), _Workers())
    watch.end_job(_Observer())
    assert len(written) == 2


def test_folders_without_a_status(tmp_path):
    with pytest.raises(UsageError, match="neither a run nor a dataset"):
        read_status(tmp_path)
    with pytest.raises(UsageError, match="neither a run nor a dataset"):
        read_status(tmp_path / "none")
    (tmp_path / ".gristmill").mkdir()
    with pytest.raises(UsageError, match=r"a run was started in .* no status yet") as raised:
        read_status(tmp_path)
    assert "the same command resumes" in raised.value.help
    with pytest.raises(UsageError, match="unfinished run") as raised:
        open_dataset(tmp_path)
    assert f"gristmill status {tmp_path}" in raised.value.help
    (tmp_path / ".gristmill/status.json").write_text('{"run": 3}')
    with pytest.raises(DamagedDatasetError, match=r"status\.json is damaged"):
        read_status(tmp_path)
    with pytest.raises(UsageError, match="stall_timeout"):
        RunOptions(stall_timeout=0)
