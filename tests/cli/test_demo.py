import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gristmill.pipeline.jobs.demo import count_source_files
from gristmill.shards.dataset import open_dataset


def _demo(folder):
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-m", "gristmill", "demo", "--workers", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder).stdout


@pytest.mark.timeout(300)
def test_the_whole_way(tmp_path):
    out = _demo(tmp_path)
    num_files, _ = count_source_files(Path(sysconfig.get_path("stdlib")))
    assert f"{num_files:,} files" in out
    assert "SIGKILL" in out
    assert "Nothing was lost" in out
    assert "the books balance" in out
    assert "row 0:" in out
    assert "step 1,000,000: input_ids (8, 1024)" in out
    dataset = open_dataset(tmp_path / "gristmill-demo/out")
    assert dataset.manifest.tokenizer.vocab_size == 16384
    assert len(dataset.split("validation")) > 0
