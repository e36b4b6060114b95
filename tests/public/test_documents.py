"""What README and docs show is true: Python examples run as scripts, commands exist and succeed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)")


def _blocks(language):
    """Fenced blocks of one language in all documents."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{document.relative_to(ROOT)}:{line}"))
    return found


def _run(command, folder):
    # The user's shell finds `gristmill` and `python` of the environment that the tests run in.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("source", _blocks("python"))
def test_python_example_runs_as_a_script(source, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(source)
    _run([sys.executable, script.name], tmp_path)


@pytest.mark.parametrize("commands", _blocks("bash"))
def test_commands_work(commands, tmp_path):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "gristmill":
            _run(words, tmp_path)
        elif words and words[0] == "make":
            assert set(words[1:]) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_are_not_broken(document):
    for target in LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_readme_tree_names_every_layer():
    readme = (ROOT / "README.md").read_text()
    for folder in (ROOT / "src" / "gristmill").iterdir():
        if (folder / "__init__.py").exists():
            assert f"{folder.name}/" in readme
