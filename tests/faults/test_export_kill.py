"""An export that is killed, stopped or runs out of disk leaves nothing to be seen, and the same command works then."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from gristmill_testing.token_datasets import write_tokens

import gristmill as gm

# The export stops for ever at a chosen moment and says so on standard output: a kill always finds it there.
SCRIPT = """
import signal, sys
from gristmill.pipeline.jobs import export, job_pool
from gristmill.storage.parallel_files import PreallocatedFiles

dataset, to, prefix, backend, moment = sys.argv[1:]
run_tasks = job_pool.run_tasks

def stop_here(*_, **__):
    print("here", flush=True)
    signal.pause()

def stop_after_first_shard(function, *arguments, **options):
    for result in run_tasks(function, *arguments, **options):
        yield result
        if function is export._fill_shard:
            stop_here()

if moment == "filling":
    job_pool.run_tasks = stop_after_first_shard
else:
    PreallocatedFiles.commit = stop_here
export.export(dataset, to=to, path=prefix, backend=backend, workers=2, progress=False)
"""


@pytest.fixture
def dataset(tmp_path):
    shards = [[[[number] * 5, [number] * 3]] * 10 for number in range(1, 9)]
    return write_tokens(tmp_path / "out", {("train", "web"): shards}, row_length=8)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def wait_for_temporaries(process, folder):
    while not list(folder.glob(".*.tmp")):
        assert process.poll() is None
        time.sleep(0.005)


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("to", ["numpy", "parquet"])
def test_killed_in_the_middle(dataset, tmp_path, to, backend):
    folder = tmp_path / "bin"
    folder.mkdir()
    for moment in ("filling", "committing"):
        command = [sys.executable, "-c", SCRIPT, dataset, to, folder / "x", backend, moment]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"here\n"
            assert list(folder.glob(".*.tmp"))
            process.kill()
        assert visible(folder) == []
    gm.export(dataset, to=to, path=folder / "x", workers=2, progress=False)
    assert len(visible(folder)) == (3 if to == "numpy" else 8)
    assert sorted(os.listdir(folder)) == visible(folder)  # temporary files of the dead are gone


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_hand(dataset, tmp_path, number):
    folder = tmp_path / "bin"
    folder.mkdir()
    command = [sys.executable, "-m", "gristmill", "export", dataset, "--to", "numpy", "--path", folder / "x"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for_temporaries(process, folder)
    process.send_signal(number)
    _, said = process.communicate(timeout=240)
    assert process.returncode in (128 + number, 0)  # zero: it was done already
    assert b"Traceback" not in said
    assert len(visible(folder)) in ((0, 3) if process.returncode else (3,))  # all of it, or nothing
    assert sorted(os.listdir(folder)) == visible(folder)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("to", ["nanogpt", "jsonl"])
def test_a_full_disk(small_disk, tmp_path, to):
    rng = np.random.default_rng(1)
    shards = [[rng.integers(0, 60_000, 100_000)] * 4 for _ in range(4)]
    dataset = write_tokens(tmp_path / "out", {("train", "web"): shards})
    with pytest.raises(OSError, match="No space left") as caught:
        gm.export(dataset, to=to, path=small_disk / "x", workers=2, progress=False)
    assert caught.value.errno == errno.ENOSPC
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
