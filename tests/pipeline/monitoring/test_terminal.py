"""`gristmill run --monitor` on a real terminal: progress inside one large task, its file and byte, and the end."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from gristmill_testing.screens import run_gristmill
from gristmill_testing.scripts import interrupt
from gristmill_testing.watching import wait_until

from gristmill.cli.running.run import run_command
from gristmill.core.errors import UsageError
from gristmill.pipeline.monitoring.run_status import read_status

FUNCTIONS = """
import os, time

def hold(record):
    if record["text"].startswith("wait"):
        open("begun", "w").close()
        while not os.path.exists("release"):
            time.sleep(0.01)
    return record
"""
RECIPE = """
sources: {web: {read: "*.jsonl"}}
steps:
  - map: {call: functions.py:hold}
  - write: {format: jsonl}
output: out
slice_bytes: 64MiB
"""
CELL = 4 << 20


@pytest.fixture
def project(tmp_path):
    """One task of three cells; a record in the last one waits until the test has seen enough."""
    lines = [json.dumps({"text": f"text {number}"}) for number in range(200)]
    lines += [json.dumps({"text": "x" * (1 << 20)}) for _ in range(9)]
    (tmp_path / "large.jsonl").write_text("\n".join([*lines, json.dumps({"text": "wait"})]) + "\n")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def run_status(folder, *words):
    run_command = [sys.executable, "-m", "gristmill", "status", "out", *words]
    return subprocess.run(run_command, cwd=folder, capture_output=True, text=True, timeout=240)


def test_a_run_is_seen_while_one_task_runs(project):
    words = ("run", "--monitor", "recipe.yaml", "--backend", "processes", "--workers", "1", "--events", "log")
    with run_gristmill(*words, folder=project) as screen:
        screen.wait_for(
            "running", "0 of 1 tasks done", f"large.jsonl, byte {2 * CELL:,}", "why this speed:", "cpu ", "mem "
        )
        assert not screen.has_cursor
        assert "left" in screen.text
        share = int(next(line for line in screen.lines if "of 1 tasks" in line).split("%")[0].split()[-1])
        num_bytes = (project / "large.jsonl").stat().st_size
        assert share == round(100 * 2 * CELL / num_bytes)
        wait_until(lambda: read_status(project / "out").counts.get("bytes") == 2 * CELL, "a later status")
        elsewhere = json.loads(run_status(project, "--json").stdout)["status"]
        assert (elsewhere["done"], elsewhere["total"], elsewhere["num_busy"]) == (0, 1, 1)
        assert elsewhere["workers"][0]["memory_bytes"] > 1 << 20
        assert elsewhere["workers"][0]["name"] in screen.text
        (project / "release").touch()
        screen.read_to_end()
        assert screen.process.returncode == 0
        assert screen.has_cursor
        assert "100%  1 of 1 tasks done" in screen.text
        assert "210 records" in screen.text
        assert "train 210" in screen.text  # the books say the same
    assert "finished" in run_status(project).stdout
    shown = run_status(project, "--replay").stderr
    assert "not a log of events" in shown


def test_ctrl_c_restores_the_terminal(project):
    words = ("run", "recipe.yaml", "--monitor", "--backend", "processes", "--workers", "1")
    with run_gristmill(*words, folder=project, columns=60, rows=12) as screen:
        screen.wait_for("why this speed")
        assert max(map(len, screen.lines)) <= 60
        assert not screen.has_cursor
        interrupt(screen.process)
        screen.read_to_end()
        assert screen.process.returncode == 130
        assert screen.has_cursor
        assert "finished work is kept" in screen.text


@pytest.mark.parametrize(
    "words", [["--monitor=x"], ["--monitor", "--quiet"], ["--monitor", "web:70000"], ["--debug", "--monitor"]]
)
def test_wrong_use(words):
    error = CliRunner().invoke(run_command, ["recipe.yaml", *words], standalone_mode=False).exception
    assert isinstance(error, (UsageError, click.UsageError))
