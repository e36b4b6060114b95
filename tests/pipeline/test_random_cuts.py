"""Whatever the formats, steps, workers, slices and interruptions: the same files, books and verdicts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.small_tokenizers import trained

SUPPORT = Path(__file__).parents[1] / "support"


def run_cases(folder, seeds):
    trained(folder / "tokenizer", specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), chat_template=CHATML)
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "gristmill_testing.random_cuts", str(folder), str(folder / "tokenizer")]
    done = subprocess.run(
        [*command, *map(str, seeds)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.full
def test_some_cases(tmp_path):
    """Text and chats, some in JSON lines of which several are bad and whose cells are cut."""
    run_cases(tmp_path, [0, 3, 5, 12])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_cases(tmp_path):
    run_cases(tmp_path, range(120))
