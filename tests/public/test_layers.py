"""The import contracts hold, and each catches the violation it was written for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = "Layers: imports point down, never up or sideways"
NO_IO = "The core does no I/O"
TASKS = "The engine knows tasks, not datasets"
BACKENDS = "Backends do not know each other"
DOORS = "Each heavy dependency has one door"
CYCLES = "No cycles anywhere"

VIOLATIONS = {
    "upwards": ("core/planted.py", "import gristmill.engine", LAYERS),
    "the core runs user code": ("core/planted.py", "import gristmill.runtime.functions", LAYERS),
    "storage compiles": ("storage/planted.py", "import gristmill.runtime.kernels", LAYERS),
    "sideways": ("engine/planted.py", "import gristmill.steps", LAYERS),
    "hidden in a function": ("storage/planted.py", "def f():\n    import gristmill.cli", LAYERS),
    "undeclared folder": ("utils/__init__.py", "", LAYERS),
    "the core writes files": ("core/planted.py", "from tempfile import mkdtemp", NO_IO),
    "the core reads files": ("core/planted.py", "def f():\n    from pathlib import Path", NO_IO),
    "engine reads shards": ("engine/planted.py", "import gristmill.shards", TASKS),
    "backend uses another": ("engine/backends/planted.py", "import gristmill.engine.backends.other", BACKENDS),
    "torch by a second door": ("stream/planted.py", "import torch.utils.data", DOORS),
    "a tokenizer outside its door": ("steps/planted.py", "import tokenizers", DOORS),
    "rich in a worker": ("engine/planted.py", "from rich.table import Table", DOORS),
    "click outside the command line": ("recipe/planted.py", "import click", DOORS),
    "cycle": ("text/planted.py", "import gristmill.text.other", CYCLES),
}


@pytest.fixture
def package(tmp_path):
    """A copy of the package and of the contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src" / "gristmill"


def _broken_contracts(package):
    # -P and PYTHONPATH: the copy is analysed, not the installed package.
    run = subprocess.run(
        [sys.executable, "-P", "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=package.parents[1],
        env={"PYTHONPATH": str(package.parent), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert "Contracts: " in run.stdout, run.stdout + run.stderr
    broken = set(re.findall(r"^(.+) BROKEN", run.stdout, re.MULTILINE))
    assert run.returncode == (1 if broken else 0)
    return broken


def test_contracts_hold(package):
    assert _broken_contracts(package) == set()


@pytest.mark.every_case
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_contract_catches_violation(package, violation):
    path, source, contract = VIOLATIONS[violation]
    planted = package / path
    planted.parent.mkdir(exist_ok=True)
    # The planted module's partner: for a cycle it imports back, else it only exists.
    partner = "import gristmill.text.planted\n" if contract == CYCLES else ""
    (planted.parent / "other.py").write_text(f'"""Planted."""\n{partner}')
    planted.write_text(f'"""Planted."""\n{source}\n')
    assert contract in _broken_contracts(package)
