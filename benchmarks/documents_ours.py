"""One run of Gristmill in a fresh process: `documents_ours.py INPUTS OUTPUT [--workers N] ...` prints JSON."""

import argparse
import json
import threading
import time
from pathlib import Path

import psutil

import gristmill
from gristmill import steps


class PeakOfChildren:
    """The highest resident memory of any process that this one has started, in MiB."""

    def __enter__(self):
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        while not self._stop.wait(0.02):
            for child in psutil.Process().children(recursive=True):
                self.mib = max(self.mib, peak_mib(child.pid))


def peak_mib(pid="self"):
    """Linux keeps the peak itself, so polling is enough."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs")
    parser.add_argument("output")
    parser.add_argument("--format", default="jsonl")
    parser.add_argument("--compression")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="processes")
    parser.add_argument("--unit-a-file", action="store_true", help="as if every file were large")
    parser.add_argument(
        "--verify", action="store_true", help="time a plan before and a verification after the run, too"
    )
    options = parser.parse_args()
    if options.unit_a_file:
        from gristmill.pipeline.planning import units

        units.MIN_GROUP_BYTES = units.UNIT_BYTES = 1
    recipe = gristmill.Recipe(
        sources={"web": steps.Read(read=options.inputs.split(","))},
        steps=[steps.Length(min_chars=200), steps.Write(format=options.format, compression=options.compression)],
        output=options.output,
    )
    began = time.perf_counter()
    if options.verify:  # a run plans by itself
        gristmill.plan(recipe)
    planned = time.perf_counter()
    with PeakOfChildren() as children:
        result = gristmill.run(recipe, workers=options.workers, backend=options.backend, progress=False)
    ended = time.perf_counter()
    found = {
        "plan": planned - began,
        "run": ended - planned,
        "parent_mib": peak_mib(),
        "worker_mib": children.mib,
        "was_up_to_date": result.was_up_to_date,
    }
    if options.verify:
        assert result.dataset().verify()
        found["verify"] = time.perf_counter() - ended
    print(json.dumps(found))


if __name__ == "__main__":
    main()
