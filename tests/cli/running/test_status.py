"""`gristmill status`: what a run is doing, from its work folder alone."""

import json
import shutil
import socket
import subprocess
import sys
import time

import msgspec
import pytest
from click.testing import CliRunner

from gristmill.cli.running.status import status_command
from gristmill.pipeline.monitoring.run_status import RunStatus, WorkerStatus
from gristmill.pipeline.monitoring.status_maker import find_bottleneck
from gristmill.storage.lock import FolderLock


def write_status(folder, written):
    worker = WorkerStatus(
        name="actor 5 (host7, process 88)",
        node="f" * 56,
        state="busy",
        seconds=120.5,
        task="web/0007.jsonl, byte 3,000",
        memory_bytes=312_000_000,
        cpu_share=0.97,
    )
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
        num_workers=64,
        num_busy=63,
        counts={"records": 123456},
        seconds_without_progress=90.0,
        workers=[worker],
    )
    status = msgspec.structs.replace(status, bottleneck=find_bottleneck(status))
    (folder / ".gristmill").mkdir()
    (folder / ".gristmill/status.json").write_bytes(msgspec.json.encode(status))


def test_a_run_that_is_under_way(tmp_path):
    write_status(tmp_path, time.time())
    text = CliRunner().invoke(status_command, [str(tmp_path)]).output
    for words in ("stage 2 of 3", "1,200 of 5,000 tasks", "123,456 records", "63 busy, 2 died", "no progress for 90 s"):
        assert words in " ".join(text.split()), text
    worker = "actor 5 (host7, process 88) busy cpu 97% mem 312.0 MB 120 s: web/0007.jsonl, byte 3,000 (node ffffffff)"
    assert worker in " ".join(text.split())
    assert "why this speed: stalled: no progress for 90 s: web/0007.jsonl, byte 3,000" in " ".join(text.split())
    assert " ".join(text.split()).startswith(f"{tmp_path}: running")
    data = json.loads(CliRunner().invoke(status_command, [str(tmp_path), "--json"]).output)
    assert data["status"]["workers"][0]["node"] == "f" * 56
    assert data["status"]["bottleneck"]["cause"] == "stalled"


def test_a_run_that_has_died(tmp_path):
    write_status(tmp_path, time.time() - 3600)
    said = " ".join(CliRunner().invoke(status_command, [str(tmp_path)]).output.split())
    assert said.startswith(f"{tmp_path}: probably stopped")


def test_a_killed_run_of_this_machine_is_known_to_be_dead(tmp_path):
    write_status(tmp_path, time.time())
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    path = tmp_path / ".gristmill/status.json"
    status = msgspec.json.decode(path.read_bytes(), type=RunStatus)
    status = msgspec.structs.replace(status, host=socket.gethostname(), pid=process.pid)
    path.write_bytes(msgspec.json.encode(status))
    words = f"stopped, process {process.pid} is gone"
    assert words in " ".join(CliRunner().invoke(status_command, [str(tmp_path)]).output.split())
    assert "1,200" in CliRunner().invoke(status_command, [str(tmp_path), "--follow"]).output
    with FolderLock(tmp_path):  # its process is in a container, and cannot be seen from here
        assert words not in " ".join(CliRunner().invoke(status_command, [str(tmp_path)]).output.split())
    assert not FolderLock(tmp_path).is_held()


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
    gristmill("run", project / "recipe.yaml", "--backend", "serial", "--set", "run.keep_work=true")
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
