"""The whole pipeline on ten thousand to a million documents of 300 words: time, memory of a worker, and the slope."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

SIZES = (10_000, 100_000, 1_000_000)
NUM_WORDS = 300

RUN = """
import sys
import gristmill as gm
from gristmill import steps

source, output = sys.argv[1:]
todo = [steps.Deduplicate(), steps.Write(format="jsonl")]
recipe = gm.Recipe(sources={"web": steps.Read(read=source)}, steps=todo, output=output)
result = gm.run(recipe, workers=2, progress=False)
print(result.books["web"][1].dropped)
"""


def scale(folder):
    found = []
    output = folder / "scaled"
    watched([sys.executable, "-c", RUN, str(documents(folder, SIZES[0])), str(output)])  # compiles the kernels
    for count in SIZES:
        path = documents(folder, count)
        shutil.rmtree(output, ignore_errors=True)
        seconds, cpu, peak, said = watched([sys.executable, "-c", RUN, str(path), str(output)])
        found.append((count, cpu))
        print(
            f"{count:>9,} documents, {path.stat().st_size / 1e6:7.0f} MB: {seconds:6.1f} s, {cpu:6.1f} s of CPU, "
            f"largest worker {peak / 2**20:.0f} MiB; dropped {said}",
            flush=True,
        )
    shutil.rmtree(folder / "scaled")
    for (small, before), (large, after) in pairwise(found):
        slope = math.log(after / before) / math.log(large / small)
        print(f"slope from {small:,} to {large:,}: {slope:.2f} (1 is linear, by CPU time)")


def watched(command):
    """Measure seconds, CPU seconds of all processes, and the peak memory of a worker."""
    start = time.perf_counter()
    before = os.times()
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while run.poll() is None:
        for child in psutil.Process(run.pid).children(recursive=True):
            try:
                peak = max(peak, child.memory_info().rss)
            except psutil.Error:
                pass
        time.sleep(0.1)
    after = os.times()
    assert run.returncode == 0
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, cpu, peak, run.stdout.read().strip()


def documents(folder: Path, count: int) -> Path:
    """Yield documents; one in ten is a copy of an earlier one with up to three words changed."""
    path = folder / f"documents-{count}.jsonl"
    if path.exists():
        return path
    rng = np.random.default_rng(1)
    letters = rng.integers(97, 123, size=(50_000, 10), dtype=np.uint8)
    lengths = rng.integers(2, 10, size=50_000)
    words = np.array([bytes(row[:length]).decode() for row, length in zip(letters, lengths, strict=True)], dtype=object)
    weights = np.cumsum(1 / np.arange(1, 50_001) ** 0.9)
    earlier = []
    with path.open("w") as file:
        for first in range(0, count, 10_000):
            chosen = np.searchsorted(weights, rng.random((min(10_000, count - first), NUM_WORDS)) * weights[-1])
            for new in np.minimum(chosen, 49_999):
                row = new
                if earlier and rng.random() < 0.1:
                    row = earlier[rng.integers(len(earlier))].copy()
                    changed = rng.integers(0, 4)
                    row[rng.integers(0, NUM_WORDS, size=changed)] = rng.integers(0, 50_000, size=changed)
                elif len(earlier) < 50_000:
                    earlier.append(new)
                file.write(json.dumps({"text": " ".join(words[row])}) + "\n")
    return path
