"""A receipt is written only after the files that it names, and the names themselves, are on the disk.

Once seen from outside, by the system calls of the parent and its workers (Linux with strace), once from inside.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import msgspec
import pytest

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.stage_context import RunOptions, SliceResult
from gristmill.steps import Length, Read, Write
from gristmill.storage import commit

SCRIPT = """
import sys
from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import Length, Read, Write

steps = [Length(min_chars=1), Write(format="jsonl", compression="zstd")]
recipe = Recipe(sources={"web": Read(read=sys.argv[1] + "/*.jsonl")}, steps=steps, output=sys.argv[2])
options = {"workers": 2, "keep_work": True, "layout": UnitLayout(unit_bytes=1, min_group_bytes=1)}
run_recipe(recipe, RunOptions(backend="processes", progress=False, **options))
"""
CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)[( ]")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        lines = "".join(json.dumps({"text": f"{number} {line} grist"}) + "\n" for line in range(50))
        (folder / f"{number}.jsonl").write_text(lines + "{bad\n")
    return folder


def is_traceable():
    strace = shutil.which("strace")
    if strace is None:
        return False
    return subprocess.run([strace, "-y", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not is_traceable(), reason="needs strace, and the right to use it")
def test_the_system_calls_of_a_run(data, tmp_path):
    log, output = tmp_path / "calls", tmp_path / "out"
    traced = "trace=fsync,fdatasync,write,rename,renameat,renameat2"
    command = ["strace", "-f", "-y", "-s", "100000", "-e", traced, "-e", "signal=none", "-o", str(log)]
    script = [sys.executable, "-c", SCRIPT, str(data), str(output)]
    subprocess.run([*command, *script], check=True, capture_output=True, timeout=300)
    check_order(read_calls(log), output)


def read_calls(log):
    """Yield what the log tells: (`renamed`, path), (`synced`, path) or (`noted`, a receipt).

    The first two count when the call has returned, a receipt when its call begins.
    """
    unfinished = {}
    for logged in log.read_text(errors="replace").splitlines():
        match = CALL.match(logged)
        if match is None:  # the end of a process
            continue
        process, call = match.groups()
        line = logged
        if "resumed>" in line:
            line = unfinished.pop(process) + line.split("resumed>", 1)[1]
        elif call == "write" and (receipt := re.search(r'receipts[^>]*>, "(\{.*\})\\n"', line)):
            yield "noted", json.loads(receipt[1].replace('\\"', '"').replace("\\\\", "\\"))
        if line.endswith("<unfinished ...>"):
            unfinished[process] = line.removesuffix("<unfinished ...>")
        elif call.startswith("rename") and line.endswith("= 0"):
            yield "renamed", re.findall(r'"([^"]*)"', line)[-1]
        elif call in ("fsync", "fdatasync") and line.endswith("= 0"):
            yield "synced", re.search(r"sync\(\d+<([^>]*)>", line)[1]


def check_order(calls, output):
    """Each file of a receipt is renamed and synced, and then its folder, before the receipt is written."""
    seen = []
    num_files = 0
    for kind, value in calls:
        if kind != "noted":
            seen.append((kind, value))
            continue
        for file in files_of(value["result"]):
            num_files += 1
            path = f"{output}/{file}"
            renamed = last_index(seen, ("renamed", path))
            assert ("synced", path) in seen[renamed:], f"{path} is in a receipt, but was not synced"
            synced = last_index(seen, ("synced", path))
            folder = ("synced", path.rsplit("/", 1)[0])
            assert folder in seen[synced:], f"the folder of {path} was not synced after it"
    assert num_files >= 12  # shards, origins and quarantine of six units


def files_of(result):
    for split_file in (*result["split_files"], *result.get("held_files", ()), *result.get("leftovers", ())):
        yield split_file["data"]["path"]
        if split_file.get("origins"):
            yield split_file["origins"]["path"]
    yield from (file["path"] for file in (*result.get("quarantine", ()), *result.get("dropped", ())))


def last_index(seen, event):
    assert event in seen, event
    return len(seen) - 1 - seen[::-1].index(event)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_what_storage_does_in_a_run(data, tmp_path, monkeypatch, backend):
    events = []
    note_calls(monkeypatch, events)
    output = tmp_path / "out"
    steps = [Length(min_chars=1), Write(format="jsonl", compression="zstd")]
    recipe = Recipe(sources={"web": Read(read=f"{data}/*.jsonl")}, steps=steps, output=str(output))
    layout = UnitLayout(unit_bytes=1, min_group_bytes=1)
    workers = 2 if backend == "threads" else "auto"
    run_recipe(recipe, RunOptions(backend=backend, workers=workers, progress=False, layout=layout))
    check_order(events, output)


def note_calls(monkeypatch, events):
    """Note the names that files get, syncs and receipts, each after it has happened, and receipts before."""
    fsync, give_name, add = os.fsync, commit.PendingFile.commit, Receipts.add

    def note_sync(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        fsync(fd)
        events.append(("synced", path))

    def note_name(file, **options):
        give_name(file, **options)
        events.append(("renamed", str(file.path)))

    def note_receipt(receipts, fingerprint, result):
        if isinstance(result, SliceResult):
            events.append(("noted", {"result": msgspec.to_builtins(result)}))
        add(receipts, fingerprint, result)

    monkeypatch.setattr(commit.os, "fsync", note_sync)
    monkeypatch.setattr(commit.PendingFile, "commit", note_name)
    monkeypatch.setattr(Receipts, "add", note_receipt)
