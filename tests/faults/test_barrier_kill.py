"""A run with a global step that is killed before any one of its receipts, in every stage, and is then run again.

The run is serial, so that one process is all there is to kill. Each child is a fork of a process in which the kernels
are compiled already. `deduplicate` for documents has a test of its own, `test_deduplicate_kill.py`.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, random, shutil, signal, sys, traceback
from pathlib import Path

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning import units
from gristmill.pipeline.stages.options import RunOptions
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.run import run_recipe
from gristmill.shards.verify import verify
from gristmill.steps import *

root = Path(sys.argv[1])
units.UNIT_BYTES, units.MIN_GROUP_BYTES = 12_000, 8_000
os.fsync = lambda fd: None  # a power cut is not what is tried here
rng = random.Random(5)
(root / "in").mkdir()
questions = [" ".join(rng.choices([f"w{n}" for n in range(500)], k=20)) for _ in range(20)]
(root / "ask.jsonl").write_text("".join(json.dumps({"question": text}) + "\\n" for text in questions))
texts = [" ".join(rng.choices([f"w{n}" for n in range(500)], k=60)) for _ in range(90)]
for number in range(0, 90, 3):
    texts[number] += f"\\n{rng.choice(questions)}\\n\\n{texts[number][:100]} end."
for number in range(4):
    lines = [json.dumps({"text": text}) for text in texts[number::4]]
    (root / f"in/{number}.jsonl").write_text("\\n".join(lines))

left = {"receipts": -1}
written = []
real = Receipts.add

def add(self, fingerprint, result):
    if left["receipts"] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left["receipts"] -= 1
    written.append(type(result).__name__)
    real(self, fingerprint, result)

Receipts.add = add
out = root / "out"
step = eval(sys.argv[2])
recipe = Recipe(
    sources={"web": Read(read=f"{root}/in/*.jsonl")}, steps=[step, Write(format="jsonl")], output=str(out)
)

def run(max_receipts=-1):
    left["receipts"] = max_receipts
    del written[:]
    run_recipe(recipe, RunOptions(backend="serial", progress=False))

def tree():
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stem != "report"]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}

def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

run()
expected, stages = tree(), list(written)
problems = []
for point in range(len(stages)):
    shutil.rmtree(out)
    code = in_child(lambda: run(point))
    if code != -signal.SIGKILL:
        problems.append(f"{point}: was not killed: {code}")
    def again():
        run()
        # What had its receipt is not done again.
        assert len(written) == len(stages) - point, (written, stages)
    if in_child(again) or tree() != expected or not verify(out):
        problems.append(f"{point} ({stages[point]}): not the same after a kill")
print(json.dumps({"stages": stages, "problems": problems}))
"""


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("Decontaminate(benchmarks={'ask': str(root / 'ask.jsonl')}, action='cut')", {"SearchedUnit", "JudgedUnit"}),
        ("Deduplicate(kind='lines', partition_bytes=1000)", {"HashedUnit", "CopiedPieces", "UnitRemovals"}),
    ],
)
def test_killed_in_every_stage(tmp_path, step, kinds):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), step], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["problems"], "\n".join([*report["problems"], done.stderr])
    assert set(report["stages"]) == {"SliceResult", *kinds}
