"""The README works as printed: its commands in an environment made by its own install lines, then its training loop.

The environment is made once, in about a minute, from a copy of the repository, and removed at the end: it is 600 MB.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from gristmill_testing.documents import run_command

from gristmill.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("src", "pyproject.toml", "README.md", "LICENSE")


def _blocks(language):
    return [match[2] for match in FENCE.finditer(README) if match[1] == language]


def _run(command, folder, environment, seconds=240):
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def copy_of_repository(tmp_path_factory):
    """What a user has who took a copy of the repository, on a machine where `python3` is new enough."""
    folder = tmp_path_factory.mktemp("readme") / "gristmill"
    folder.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    python3 = folder.parent / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text(f'#!/bin/sh\nexec {shlex.quote(sys._base_executable)} "$@"\n')
    python3.chmod(0o755)
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture(scope="module")
def shell_of_user(copy_of_repository):
    """Runs lines of the README one after another in one shell, like a user who types them; what each block printed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    folders = [str(copy_of_repository.parent / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    environment["PATH"] = os.pathsep.join(folders)
    environment["PIP_NO_COMPILE"] = "1"  # only what is imported is compiled, when it is
    script = ["set -e"]
    for block in _blocks("bash"):
        script += [block, "echo --- end of block ---"]
    printed = _run(["bash", "-c", "\n".join(script)], copy_of_repository, environment, seconds=900)
    return printed.split("--- end of block ---\n")


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_commands_work_in_an_environment_of_the_install_lines(shell_of_user, copy_of_repository):
    assert "pip install ." in _blocks("bash")[0]
    assert len(shell_of_user) == len(_blocks("bash")) + 1
    assert (copy_of_repository / "corpus" / "out" / "manifest.json").exists()


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_books_are_those_that_the_run_prints(shell_of_user):
    shown = _blocks("text")[0]

    def without_time_and_place(text):
        return re.sub(r"[\d.]+ s;", "", text).partition(", in")[0].split()

    printed = next(block for block in shell_of_user if "every record is accounted for" in block)
    begin = printed.index(shown.splitlines()[0])
    assert without_time_and_place(printed[begin:]) == without_time_and_place(shown)


def test_the_training_loop_runs_on_the_rows_of_the_first_run(tmp_path, run_script):
    run_command(["bash", "-e", "-c", next(block for block in _blocks("bash") if "gristmill init" in block)], tmp_path)
    (source,) = _blocks("python")
    (tmp_path / "training.py").write_text(source)
    assert run_script("training.py", tmp_path).count("torch.Size([2, 64]) torch.Size([2, 64])") == 4  # of 7 rows


def test_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = README.partition("All extras:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", named)) == set(extras)
    installed = re.search(r'pip install "\.\[([\w,]+)\]"', README)
    assert set(installed[1].split(",")) <= set(extras)


def test_the_reference_names_every_command():
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    assert [name for name in COMMANDS if f"`gristmill {name}" not in page] == []


def test_the_picture_of_the_rooms_names_every_layer():
    picture = (ROOT / "ARCHITECTURE.md").read_text().partition("```\n")[2].partition("\n```")[0]
    folders = [folder.name for folder in (ROOT / "src" / "gristmill").iterdir() if (folder / "__init__.py").exists()]
    assert [name for name in folders if not re.search(rf"(?<![\w/]){name}/", picture)] == []


def test_is_short():
    assert len(README.splitlines()) <= 180
