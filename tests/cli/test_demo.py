import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gristmill.pipeline.jobs.demo import count_source_files
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
    assert "the books balance" in out
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
