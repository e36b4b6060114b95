"""The harness runs: the smallest size, without peers, so that it cannot rot unnoticed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.sides.kernels import KERNELS

ROOT = Path(__file__).parents[2]


def bench(module, folder, *words):
    command = [sys.executable, "-m", module, "--folder", str(folder), *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def smoke(folder, *words):
    return bench("benchmarks", folder, "--size", "smoke", "--no-peers", "--rounds", "1", *words)


@pytest.mark.full
def test_one_contest_from_inputs_to_table(tmp_path):
    printed = smoke(tmp_path, "--only", "zstd")
    assert "bare code, 2 processes" in printed
    result = json.loads((tmp_path / "results" / "smoke" / "documents.json").read_text())
    runs = result["contests"]["zstd"]["runs"]
    assert all(runs[side][0]["cpu"] > 0 for side in ("gristmill", "bare code, 2 processes"))
    again = smoke(tmp_path, "--only", "zstd", "--resume")
    assert "gristmill:" not in again  # taken from the result file


@pytest.mark.full
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_inputs(name):
    run = KERNELS[name]()
    run()


@pytest.mark.slow
def test_every_contest(tmp_path):
    printed = smoke(tmp_path)
    assert "failed" not in printed


@pytest.mark.slow
def test_scaling(tmp_path):
    printed = bench(
        "benchmarks.scaling", tmp_path, "--max-mb", "10", "--max-files", "10", "--max-workers", "2", "--rounds", "1"
    )
    assert "workers 2" in printed
