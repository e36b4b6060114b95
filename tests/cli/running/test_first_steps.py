import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gristmill.pipeline.jobs.demo import count_source_files
from gristmill.recipe.load import load_recipe
from gristmill.shards.dataset import open_dataset

LIBRARY = Path(sysconfig.get_path("stdlib"))
SCRIPT = """
import sys, sysconfig
library = sys.argv.pop(1)
sysconfig.get_path = lambda name: library
from gristmill.cli.main import main
main()
"""


@pytest.fixture
def part_of_the_library(tmp_path):
    """About 3 MB: a fifth of the time of the whole library."""
    for name in ("asyncio", "collections", "ctypes", "email", "html", "http", "importlib", "json", "logging", "xml"):
        shutil.copytree(LIBRARY / name, tmp_path / "library" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "library"


def _demo(folder, library):
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-c", SCRIPT, str(library), "demo", "--workers", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder).stdout


def _check_the_whole_way(folder, library):
    out = _demo(folder, library)
    num_files, _ = count_source_files(library)
    assert f"{num_files:,} files" in out
    assert "SIGKILL" in out
    assert "Nothing was lost" in out
    assert "every record is accounted for" in out
    assert "row 0:" in out
    assert "step 1,000,000: input_ids (8, 1024)" in out
    dataset = open_dataset(folder / "gristmill-demo/out")
    assert dataset.manifest.tokenizer.vocab_size == 16384
    assert len(dataset.split("validation")) > 0


def test_the_whole_way(tmp_path, part_of_the_library):
    _check_the_whole_way(tmp_path, part_of_the_library)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_library(tmp_path):
    _check_the_whole_way(tmp_path, LIBRARY)


@pytest.mark.slow
def test_what_it_writes_runs_at_once(gristmill, tmp_path):
    said = gristmill("init", "corpus", folder=tmp_path).out
    assert "gristmill plan corpus/recipe.yaml" in said
    gristmill("plan", "corpus/recipe.yaml", folder=tmp_path)
    gristmill("run", "corpus/recipe.yaml", "--backend", "serial", folder=tmp_path)
    gristmill("verify", "corpus/out", folder=tmp_path)
    assert open_dataset(tmp_path / "corpus/out").manifest.row_length == 64


def test_it_takes_a_tokenizer(gristmill, tmp_path):
    gristmill("init", "first", folder=tmp_path)
    gristmill("init", "second", "--tokenizer", "first/tokenizer", folder=tmp_path)
    assert not (tmp_path / "second/tokenizer").exists()
    steps = load_recipe(tmp_path / "second/recipe.yaml").steps
    assert [step.tokenizer for step in steps if step.name == "tokenize"] == [str(tmp_path / "first/tokenizer")]
    assert "--template" in gristmill("init", "third", "--template", "code", "--tokenizer", "x", fails=2).err


def test_here_is_the_default(gristmill, tmp_path):
    gristmill("init", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "sample.jsonl", "tokenizer"]


def test_nothing_is_overwritten(gristmill, tmp_path):
    (tmp_path / "sample.jsonl").write_text("mine")
    assert "sample.jsonl" in gristmill("init", folder=tmp_path, fails=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["sample.jsonl"]
    assert (tmp_path / "sample.jsonl").read_text() == "mine"
