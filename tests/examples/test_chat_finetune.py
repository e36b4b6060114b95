"""The example of chats, from its script to rows, by the commands that it names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gristmill as gm

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_finetune"


def run(folder, *command):
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_from_a_sharegpt_file_to_rows(tmp_path):
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("out", "tokenizer", "*.jsonl"))
    run(folder, "make_chats.py")
    shown = run(folder, "-m", "gristmill", "template", "check", "tokenizer", "sharegpt.jsonl", "--template", "chatml")
    assert "⟦3 + 2 = 5 sacks of wheat.<|im_end|>⟧" in shown
    assert "no problems found" in shown
    run(folder, "-m", "gristmill", "run", "recipe.yaml", "--workers", "1")
    dataset = gm.open_dataset(folder / "out")
    trained = [text for text, is_trained in dataset.spans(0) if is_trained]
    assert trained
    assert all(text.endswith("<|im_end|>") and " = " in text for text in trained)
    assert "⟦" in run(folder, "-m", "gristmill", "inspect", "out")
