"""The memory and processor time of `deduplicate` as the number of documents grows.

    python -m benchmarks.dedup_scale 100000 1000000 10000000

Documents are short (30 words), so that their number counts and not their text; one in five is an edited copy of one of
the 100,000 before it, one in twenty an exact copy. They are written to JSON lines first. The run is a process of its
own with one worker. Prints a line of JSON for each size, with the peak memory of the parent and of the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_NUM_WORDS = 30
_VOCABULARY = 50_000
_AT_ONCE = 20_000
_LATEST = 100_000

_RUN = """
import json, resource, sys, time
from gristmill.core.recipe import Recipe
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import Deduplicate, Read, Write

source, output = sys.argv[1:]
recipe = Recipe(sources={"web": Read(read=source)}, steps=[Deduplicate(), Write(format="jsonl")], output=output)
# A worker takes all tasks but those that are alone in their kind, so that the parent shows what it holds itself.
entry = run_recipe(recipe, RunOptions(backend="processes", workers=1, progress=False)).manifest.deduplicated[0]
own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "removed": entry.rows,
    "pairs": entry.counts["pairs"],
    "parent_mib": own.ru_maxrss >> 10,
    "worker_mib": workers.ru_maxrss >> 10,
    "parent_cpu": round(own.ru_utime + own.ru_stime, 1),
    "cpu": round(own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime, 1),
}))
"""


def write_documents(path: Path, num_documents: int) -> None:
    """Write documents of random words, some of them copies."""
    rng = np.random.default_rng(1)
    words = np.array([f"w{number:x}" for number in range(_VOCABULARY)])
    latest = rng.integers(0, _VOCABULARY, (_LATEST, _NUM_WORDS))
    with path.open("w", encoding="ascii") as file:
        for start in range(0, num_documents, _AT_ONCE):
            count = min(_AT_ONCE, num_documents - start)
            rows = rng.integers(0, _VOCABULARY, (count, _NUM_WORDS))
            kind = rng.random(count)
            is_copy = kind < 0.25
            rows[is_copy] = latest[rng.integers(0, _LATEST, int(is_copy.sum()))]
            is_edited = np.flatnonzero(kind < 0.2)
            rows[is_edited, -1] = rng.integers(0, _VOCABULARY, len(is_edited))
            latest[(start + np.arange(count)) % _LATEST] = rows
            file.writelines(f'{{"text": "{" ".join(row)}"}}\n' for row in words[rows].tolist())


def measure(num_documents: int) -> dict[str, object]:
    """Deduplicate this many documents in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        write_documents(source, num_documents)
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(source), f"{folder}/out"], check=True, stdout=subprocess.PIPE, text=True
        )
        seconds = round(time.monotonic() - begun, 1)
        size = source.stat().st_size
    return {"documents": num_documents, "bytes": size, "seconds": seconds, **json.loads(done.stdout)}


def main() -> None:
    """Measure the sizes on the command line."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for argument in sys.argv[1:] or ["100000", "1000000"]:
        print(json.dumps(measure(int(argument))), flush=True)


if __name__ == "__main__":
    main()
