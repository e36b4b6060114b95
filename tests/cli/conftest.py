import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gristmill_testing.prepared_interpreter import PreparedInterpreter

from gristmill.cli.main import COMMANDS

ENVIRONMENT = {**os.environ, "COLUMNS": "120"}


@pytest.fixture(scope="session")
def prepared():
    """A process that has imported all commands, and what most of them import when they are run."""
    modules = [
        "gristmill.cli.main",
        *(module for module, _ in COMMANDS.values()),
        "gristmill.engine.backends.processes",
    ]
    interpreter = PreparedInterpreter(modules, ENVIRONMENT)
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="session")
def gristmill(prepared):
    """Runs the command as a user does: a process of its own. `fails` is the expected exit code.

    With `before`, which is called in the new process, or other variables of the environment, which may count when
    modules are imported, it is also a new interpreter.
    """

    def run(*arguments, folder=None, fails=0, before=None, **variables):
        words = ["-m", "gristmill", *map(str, arguments)]
        if before or variables:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=240,
                env=ENVIRONMENT | variables,
                preexec_fn=before,
            )
        else:
            done = prepared.run(*words, folder=folder, environment=ENVIRONMENT)
        assert done.returncode == fails, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def project(tmp_path):
    """A folder with a recipe and 40 records, two of them bad."""
    return make_project(tmp_path)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, gristmill):
    """The output folder of a finished run, for tests that only look at it."""
    folder = make_project(tmp_path_factory.mktemp("project"))
    gristmill("run", folder / "recipe.yaml", "--backend", "serial")
    return folder / "out"


RECIPE = """\
output: out
sources:
  web: {read: "*.jsonl"}
steps:
  - length: {min_chars: 5}
  - split: {validation: 0.2}
  - write: {format: jsonl}
"""


def make_project(folder):
    (folder / "recipe.yaml").write_text(RECIPE)
    lines = [f'{{"text": "document {number}", "id": {number}}}' for number in range(40)]
    lines[7] = '{"text": "tiny", "id": 7}'
    lines[11] = "not json [bold]"
    lines[30] = '{"id": 30}'
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return folder
