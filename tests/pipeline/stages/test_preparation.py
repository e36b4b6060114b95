"""Kernels are compiled in one step that says so, once a machine, and not by the workers.

Whether a node sees the files of the driver.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gristmill_testing.golden_inputs import write_tokenizer
from gristmill_testing.small_tokenizers import trained

from gristmill import steps
from gristmill.core.errors import ClusterError
from gristmill.pipeline.stages.preparation import check_node, write_node_check

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
    assert len(list((project / "home").rglob("*.sign_texts-*.nbc"))) == 1
    assert run() == []
    (project / "recipe.yaml").write_text(RECIPE.replace("  - deduplicate\n", ""))  # which takes long to compile
    assert len(run(NUMBA_CACHE_DIR=str(project / "other"))) == 1


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "in.jsonl").write_text("abc")
    file = SimpleNamespace(path=str(tmp_path / "in.jsonl"), num_bytes=3)
    (tmp_path / "code.py").write_text("import helper\ndef clean(record): return helper.clean(record)")
    (tmp_path / "helper.py").write_text("def clean(record): return record")
    write_tokenizer(tmp_path / "tokenizer")
    tokenize = steps.Tokenize(tokenizer="tokenizer", engine="tokenizers").resolve(str(tmp_path))
    stage = SimpleNamespace(
        all_steps=[steps.Map(call=f"{tmp_path}/code.py:clean"), steps.Length(min_chars=1), tokenize]
    )
    sources = [SimpleNamespace(files=[file], stages=[stage]), SimpleNamespace(files=[], stages=[])]
    return write_node_check([tmp_path / "out"], sources, "run7")


def test_a_node_that_sees_everything(check):
    check_node(check)


def test_code_travels(check, tmp_path):
    """Also what it imports."""
    assert [path for path, _ in check.code.files] == [f"{tmp_path}/code.py"]
    assert [name for name, _, _ in check.code.modules] == ["helper"]


def test_another_folder_under_the_same_name(check):
    with pytest.raises(ClusterError, match="sees another folder"):
        check_node(replace(check, token=b"other"))


def test_no_such_folder(check, tmp_path):
    with pytest.raises(ClusterError, match="cannot read"):
        check_node(replace(check, locations=(tmp_path / "missing",)))


def test_inputs_that_are_missing_or_differ(check, tmp_path):
    with pytest.raises(ClusterError, match="does not see the input file"):
        check_node(replace(check, files=((str(tmp_path / "none"), 3),)))
    with pytest.raises(ClusterError, match="with 3 bytes, and the driver with 4"):
        check_node(replace(check, files=((str(tmp_path / "in.jsonl"), 4),)))


def test_a_tokenizer_that_differs_or_is_missing(check, tmp_path):
    """It is known before any work, not when the stage comes that uses it."""
    tokenizer = tmp_path / "tokenizer" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    with pytest.raises(ClusterError, match="another tokenizer"):
        check_node(check)
    tokenizer.unlink()
    with pytest.raises(ClusterError, match="cannot read the tokenizer"):
        check_node(check)
