"""`gristmill status`: what a run is doing, from its work folder alone."""

import json
import time

import msgspec
from click.testing import CliRunner

from gristmill.cli.status import command
from gristmill.pipeline.stages.run_status import RunningTask, RunStatus


def write_status(folder, written):
    task = RunningTask(task="web/0007 slice 3", worker="actor 5 (host7, process 88)", node="f" * 56, seconds=120.5)
    status = RunStatus(
        run="00000002",
        host="head",
        pid=17,
        backend="ray",
        written=written,
        job="stage 2 of 3",
        done=1200,
        total=5000,
        failed=0,
        deaths=2,
        workers=64,
        busy=63,
        counts={"records": 123456},
        seconds_without_progress=90.0,
        slowest=[task],
    )
    (folder / ".gristmill").mkdir()
    (folder / ".gristmill/status.json").write_bytes(msgspec.json.encode(status))


def test_a_run_that_is_under_way(tmp_path):
    write_status(tmp_path, time.time())
    text = CliRunner().invoke(command, [str(tmp_path)]).output
    for words in ("stage 2 of 3", "1,200 of 5,000 tasks", "123,456 records", "63 busy, 2 died", "no progress for 90 s"):
        assert words in " ".join(text.split()), text
    assert "120 s: web/0007 slice 3 on actor 5" in " ".join(text.split())
    assert "probably ended" not in text
    data = json.loads(CliRunner().invoke(command, [str(tmp_path), "--json"]).output)
    assert data["status"]["slowest"][0]["node"] == "f" * 56


def test_a_run_that_has_died(tmp_path):
    write_status(tmp_path, time.time() - 3600)
    assert "probably ended" in " ".join(CliRunner().invoke(command, [str(tmp_path)]).output.split())
