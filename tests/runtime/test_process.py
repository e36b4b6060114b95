"""A process that asks for it stays without pandas; what needs pandas still works."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas to be absent from")

SCRIPT = """
import sys
from gristmill.runtime.process import block_pandas_import
import numpy as np, pyarrow as pa

block_pandas_import()
batch = pa.record_batch({"a": pa.array(np.arange(3)), "b": ["x", None, "y"]})
assert batch.filter(pa.array(np.array([True, False, True]))).to_pylist() == [{"a": 0, "b": "x"}, {"a": 2, "b": "y"}]
assert batch.column("a").to_numpy().tolist() == [0, 1, 2]
assert "pandas" not in sys.modules
assert list(batch.to_pandas()["a"]) == [0, 1, 2]
import pandas
assert pa.array(pandas.Series([1.0, None])).null_count == 1
"""


def test_nothing_imports_pandas_but_what_needs_it():
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], check=True)


def test_workers_without_functions_do_without_pandas(tmp_path):
    script = f"""
import json, sys
from gristmill.core.recipe import Recipe
from gristmill.engine import tasks
from gristmill.pipeline.stages import runner
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.runner import run_unit_task
from gristmill.steps import Length, Read, Write

def spying(task, context):
    result = run_unit_task(task, context)
    open({str(tmp_path / "seen")!r}, "a").write(str("pandas" in __import__("sys").modules))
    return result

runner.run_unit_task = spying
open({str(tmp_path / "a.jsonl")!r}, "w").write(json.dumps({{"text": "hello"}}))
recipe = Recipe(sources={{"web": Read(read={str(tmp_path / "a.jsonl")!r})}},
    steps=[Length(min_chars=2), Write(format="arrow")], output={str(tmp_path / "out")!r})
run_recipe(recipe, RunOptions(workers=1, progress=False))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "seen").read_text() == "False"
