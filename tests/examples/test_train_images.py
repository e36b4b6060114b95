"""The example learns, and a run in two parts with other workers reads the rows of one unbroken run."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_images.py"


def train(folder, num_steps, workers):
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--folder", str(folder), "--images", "180"]
    command += ["--steps", str(num_steps), "--workers", str(workers)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.full
def test_learns_and_resumes(tmp_path):
    first, second = train(tmp_path, 30, 0), train(tmp_path, 60, 2)
    rows = [(int(begin), int(end)) for begin, end in re.findall(r"rows (\d+) to (\d+)", first + second)]
    assert len(rows) == 60
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", first + second)]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert "accuracy on held-out images" in second
