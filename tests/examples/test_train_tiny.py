"""The example, killed and resumed with other ranks and workers: its batches are those of one unbroken run."""

import json
import os
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from gristmill_testing.watching import wait_until

from gristmill.stream import Stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tiny.py"
GLOBAL_BATCH = 24


def start(folder, *, world_size, workers, steps):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(world_size):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--folder", str(folder), "--steps", str(steps)]
        ranks.append(subprocess.Popen([*command, "--workers", str(workers)], env={**os.environ, **environment}))
    return ranks


def seen(folder, world_size):
    """first row -> the checksums of the global batch that begins there, as far as all ranks have noted it."""
    found = {}
    for rank in range(world_size):
        for line in (folder / f"seen-{world_size}-{rank}.jsonl").read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                entry = json.loads(line)
                found.setdefault(entry["first_row"], []).append(entry["rows"])
    return {row: sum(parts, []) for row, parts in found.items() if len(parts) == world_size}  # noqa: RUF017


@pytest.mark.full
def test_killed_and_resumed_with_other_ranks_and_workers(tmp_path):
    killed = start(tmp_path, world_size=2, workers=1, steps=10**6)
    noted = tmp_path / "seen-2-0.jsonl"
    wait_until(lambda: noted.exists() and noted.read_bytes().count(b"\n") >= 13, "some steps")
    for rank in killed:
        rank.send_signal(signal.SIGKILL)
    assert [rank.wait(240) for rank in killed] == [-signal.SIGKILL] * 2
    resumed = start(tmp_path, world_size=1, workers=0, steps=40)
    assert [rank.wait(240) for rank in resumed] == [0]

    runs = [seen(tmp_path, world_size) for world_size in (2, 1)]
    last = max(runs[1])
    assert last > max(runs[0])
    stream = Stream(tmp_path / "rows", seed=7)
    for first_row in range(0, last + 1, GLOBAL_BATCH):
        ids = stream.rows(first_row, first_row + GLOBAL_BATCH)["input_ids"]
        expected = [zlib.crc32(row.tobytes()) for row in ids]
        batches = [run[first_row] for run in runs if first_row in run]
        assert batches
        assert all(batch == expected for batch in batches)
    # Between the last checkpoint and the kill some steps were made twice, from the same rows; from there on only once.
    assert min(runs[1]) % (5 * GLOBAL_BATCH) == 0
