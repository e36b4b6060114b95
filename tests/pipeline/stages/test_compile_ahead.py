"""Kernels are compiled in one step that says so, once a machine, and not by the workers."""

import json
import os
import subprocess
import sys

import pytest
from gristmill_testing.small_tokenizers import trained

RECIPE = """
output: out
sources: {web: {read: data.jsonl}}
steps:
  - deduplicate
  - tokenize: {tokenizer: tokenizer}
  - pack: {row_length: 16}
"""


@pytest.fixture
def run(project):
    (project / "home").mkdir()
    trained(project / "tokenizer")
    (project / "recipe.yaml").write_text(RECIPE)
    records = [{"text": f"document number {n} " + "with some words that repeat " * (n % 7)} for n in range(60)]
    (project / "data.jsonl").write_text("\n".join(map(json.dumps, records)))

    def start(**variables):
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | variables
        command = [sys.executable, "-m", "gristmill", "run", "recipe.yaml", "--overwrite", "--workers", "2"]
        done = subprocess.run(
            command, env={**environment, "HOME": str(project / "home")}, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if "compiling" in line]

    return start


def test_it_is_said_once_for_each_step_and_machine(run, project):
    steps = [line.partition("once: ")[2].split()[0] for line in run()]
    assert steps == ["deduplicate", "pack"]
    # Records from files, from barriers and from the trial are of one type: no worker compiles the longest once more.
    # It is in one file for numba, and in one without it where that can be loaded.
    suffixes = [path.suffix for path in (project / "home").rglob("sign_texts-*")]
    assert ".bin" in suffixes
    assert len(suffixes) == len(set(suffixes))
    assert run() == []
    (project / "recipe.yaml").write_text(RECIPE.replace("  - deduplicate\n", ""))  # which takes long to compile
    assert len(run(NUMBA_CACHE_DIR=str(project / "other"))) == 1
