import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from gristmill.pipeline.demo import file_system_account


def _demo(*arguments):
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-m", "gristmill", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_json_accounts_for_every_file_of_the_standard_library():
    result = json.loads(_demo("--workers", "2", "--json"))
    num_files, num_bytes = file_system_account(Path(sysconfig.get_path("stdlib")))
    assert (result["total"]["files"], result["total"]["bytes"]) == (num_files, num_bytes)
    for key, total in result["total"].items():
        assert total == sum(counts[key] for counts in result["packages"].values())
    assert result["packages"]["json"]["files"] >= 5
    assert result["killed_worker"]["pid"] > 0


def test_table_has_packages_total_and_verdict():
    out = _demo("--workers", "2")
    num_files, num_bytes = file_system_account(Path(sysconfig.get_path("stdlib")))
    total = next(line for line in out.splitlines() if line.strip().startswith("total"))
    assert f"{num_files:,}" in total
    assert f"{num_bytes:,}" in total
    assert "SIGKILL" in out
    assert "Nothing was lost" in out
    assert "batches of 4 x 256" in out
    assert "resumed" in out
