"""Instruction counts of compiled kernels on fixed inputs: `make bench-instructions`.

A busy machine changes times by half and instruction counts by nothing, so a slower kernel cannot hide. Callgrind counts
the instructions of each kernel alone, between two marks. Kernels are compiled for one processor model, and numpy and
Arrow see the processor that valgrind shows, so counts are comparable between machines with the same versions of
Python, numba and numpy.

    python -m benchmarks.instructions            # compare with benchmarks/results/instructions.json; 5 % is the limit
    python -m benchmarks.instructions --record   # write that file anew
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.harness.contest import OURS
from benchmarks.harness.environments import variables_of
from benchmarks.harness.results import PUBLISHED, find_commit, load_result, write_json
from benchmarks.sides.kernels import KERNELS

RECORD = PUBLISHED / "instructions.json"
MAX_GROWTH = 0.05
VERSIONS = ("numba", "numpy", "pyarrow")
MODEL = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+fma,+lzcnt,+popcnt,+sse4.1,+sse4.2",
    "PYTHONHASHSEED": "0",
}
_MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the counts to the result file")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--only", action="append", choices=KERNELS, metavar="KERNEL", help=", ".join(KERNELS))
    parser.add_argument("--marks", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only or list(KERNELS)
    if options.marks is not None:
        run_kernels(names, options.marks)
        return 0
    reason = find_obstacle()
    if reason:
        print(f"instruction counts skipped: {reason}")
        return 0
    counts = count_instructions(names, options.folder.resolve())
    if options.record:
        record(counts)
        return 0
    return compare(counts, load_result(RECORD))


def find_obstacle() -> str | None:
    """Return why no instructions can be counted here, or None."""
    if platform.machine() != "x86_64":
        return f"kernels are compiled for x86_64, this machine is {platform.machine()}"
    for tool in ("valgrind", "cc"):
        if not shutil.which(tool):
            return f"{tool} is not installed"
    if not Path("/usr/include/valgrind/callgrind.h").exists():
        return "valgrind's headers are not installed"
    return None


def count_instructions(names: list[str], folder: Path) -> dict[str, int]:
    folder = folder / "instructions"
    shutil.rmtree(folder / "counts", ignore_errors=True)
    (folder / "counts").mkdir(parents=True)
    (folder / "marks.c").write_text(_MARKS)
    marks = folder / "marks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", marks, folder / "marks.c"], check=True)
    variables = os.environ | variables_of(OURS) | MODEL | {"NUMBA_CACHE_DIR": str(folder / "kernels")}
    words = [sys.executable, "-m", "benchmarks.instructions"]
    for name in names:
        words += ["--only", name]
    subprocess.run([*words, "--marks", ""], check=True, env=variables)  # compiles the kernels, at full speed
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts/out"]
    done = subprocess.run(
        [*valgrind, *words, "--marks", str(marks)], env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"valgrind failed: {done.stderr[-2000:]}")
    counts = dict(parse_dump(path.read_text()) for path in (folder / "counts").iterdir())
    return {name: counts[name] for name in names}


def parse_dump(text: str) -> tuple[str, int]:
    r"""Return the name of a mark and the instructions before it.

    >>> parse_dump("desc: Trigger: Client Request: minhash\nevents: Ir\nsummary: 120\n")
    ('minhash', 120)
    """
    name = re.search(r"Client Request: (\S+)", text)
    total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
    return (name[1] if name else "the rest"), int(total[1]) if total else 0


def run_kernels(names: list[str], marks: str) -> None:
    """Run each kernel once to load it and once to be counted."""
    library = ctypes.CDLL(marks) if marks else None
    for name in names:
        run = KERNELS[name]()
        run()
        if library:
            library.begin()
        run()
        if library:
            library.end(name.encode())


def describe_versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS}}


def record(counts: dict[str, int]) -> None:
    write_json(RECORD, {"commit": find_commit(), "versions": describe_versions(), "instructions": counts})
    for name, count in counts.items():
        print(f"{name:16} {count / 1e6:10.2f} M")


def compare(counts: dict[str, int], recorded: dict | None) -> int:
    """Print the counts next to the recorded ones, and return 1 if one has grown by more than the limit."""
    if recorded is None or recorded["versions"] != describe_versions():
        print("no counts are recorded for these versions; nothing is compared (--record writes them)")
        recorded = {"instructions": {}}
    grown = []
    for name, count in counts.items():
        before = recorded["instructions"].get(name)
        change = f"{count / before - 1:+8.2%}" if before else "     new"
        print(f"{name:16} {count / 1e6:10.2f} M {change}")
        if before and count > before * (1 + MAX_GROWTH):
            grown.append(name)
    if grown:
        print(f"more than {MAX_GROWTH:.0%} more instructions than recorded: {', '.join(grown)}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
