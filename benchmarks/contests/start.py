"""What a small job costs: the starter recipe, and the first use on a machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from benchmarks.harness.contest import OURS, Contest, Limit, Setting, Side
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import make_variables

_KERNELS = """
from gristmill.core.records import documents
from gristmill import steps
for step in (steps.GopherRepetition, steps.GopherQuality, steps.Fineweb, steps.C4, steps.Repetition, steps.Language):
    step().apply(documents(["some words"]), 0)
"""


def _starter_sides(setting: Setting) -> list[Side]:
    """The recipe that `gristmill init` writes, with documents as its output, run where the harness empties."""
    folder = setting.output / "starter"

    def write() -> None:
        command = [sys.executable, "-m", "gristmill", "init", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=make_variables(variables_of(OURS)))

    steps = "steps=[length: {min_chars: 20}, split: {validation: 0.1}, write: {format: jsonl}]"
    command = ["-m", "gristmill", "run", str(folder / "recipe.yaml"), "--set", steps, "--quiet"]
    return [Side(OURS, command, prepare=write)]


def _kernel_sides(setting: Setting) -> list[Side]:
    empty = tempfile.mkdtemp(prefix="kernels-", dir=setting.folder)
    cold = Side("with an empty cache", ["-c", _KERNELS], variables={"NUMBA_CACHE_DIR": empty}, max_rounds=1)
    return [cold, Side(OURS, ["-c", _KERNELS], variables={"NUMBA_CACHE_DIR": empty})]


CONTESTS = [
    Contest(
        name="starter",
        work="the starter recipe, 3 kB, whole process",
        make_sides=_starter_sides,
        claims=[
            Limit("CPU time of all processes", 0.45, "s", lambda run: run["cpu"]),
            Limit("seconds", None, "s", lambda run: run["wall"]),
        ],
        unit="run",
        rounds=7,
    ),
    Contest(
        name="kernels",
        work="all kernels of quality and language ready, whole process",
        make_sides=_kernel_sides,
        claims=[
            Limit("compiled, CPU time", 30, "s", lambda run: run["cpu"], side="with an empty cache"),
            Limit("from the cache, CPU time", 2, "s", lambda run: run["cpu"]),
        ],
        unit="run",
        rounds=3,
    ),
]
