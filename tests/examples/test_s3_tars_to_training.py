"""The example from tars on S3 to batches, against a real store: killed and resumed, the same batches."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gristmill_testing.foreign_files import write_tar
from gristmill_testing.small_tokenizers import trained

from gristmill.stream import Stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "s3_tars_to_training.py"
ENGLISH = "The mill grinds the corn of the village, and the people bake bread of the flour on every day number {}."
GERMAN = "Die Mühle mahlt das Korn des Dorfes, und die Leute backen Brot aus dem Mehl an jedem Tag mit der Nummer {}."


def run(folder, *words):
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if line and line[0].isdigit() and len(line.split()) == 3]


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 50


@pytest.mark.full
def test_the_example_resumes(s3, tmp_path):
    tokenizer = trained(tmp_path / "tokenizer")
    for shard in range(2):
        numbers = range(100 * shard, 100 * shard + 70)
        texts = [(GERMAN if n % 5 == 0 else ENGLISH if n % 7 else "short {}").format(n) for n in numbers]
        write_tar(tmp_path / "a.tar", [(n, [("txt", text.encode())]) for n, text in enumerate(texts)])
        s3.put(f"raw/a-{shard}.tar", (tmp_path / "a.tar").read_bytes())
    words = [f"{s3.url}/raw/a-{{0..1}}.tar", f"{s3.url}/rows", tokenizer.path]
    lines = run(tmp_path, *words, "4") + run(tmp_path, *words, "9")
    batches = Stream(f"{s3.url}/rows", seed=7, shuffle={"blocks": 16}, cache=tmp_path / "cache").batches(4)
    expected = [
        (step, batch.first_row, batch["input_ids"].sum()) for step, batch in zip(range(1, 10), batches, strict=False)
    ]
    assert [tuple(map(int, line.split())) for line in lines] == expected
    assert any(key.startswith("rows/manifest") for key in s3.list_keys())


@pytest.mark.full
@pytest.mark.parametrize("name", ["s3_tars_to_training", "train_images", "train_tiny"])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_checkpoint_is_saved_whole_or_not_at_all(tmp_path, monkeypatch, name, moment):
    """Whatever ends the process: the old one is there until the new one is on the disk."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE.with_name(f"{name}.py"))
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    checkpoint = tmp_path / "checkpoint"
    example.save({"step": 1}, checkpoint)
    first = checkpoint.read_bytes()
    with monkeypatch.context() as patches:
        patches.setattr(os, moment, lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            example.save({"step": 2}, checkpoint)
    assert checkpoint.read_bytes() == first
    example.save({"step": 2}, checkpoint)
    assert checkpoint.read_bytes() != first
