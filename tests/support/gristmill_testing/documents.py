"""Code in documents: finding it, and running it the way a reader does."""

import os
import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w.-]+\.(?:py|yaml))\n")


def readers_environment():
    """The variables of a reader's shell: it finds `gristmill` and `python` of the environment that the tests run in."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run_command(command, folder):
    """Run a command in a folder and return what it printed; it must succeed."""
    run = subprocess.run(command, cwd=folder, env=readers_environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def follow_guide(page, folder):
    """Follow a page from top to bottom in one folder, and return what its commands printed.

    A block whose first line is `# name.py` or `# name.yaml` is saved under that name. The lines of a `bash` block are
    run. A `python` block without a name is run as a script. Other blocks (`text`) are only shown.
    """
    printed = []
    for language, content in FENCE.findall(page.read_text()):
        name = FILE_NAME.match(content)
        if language in ("python", "yaml") and name:
            (folder / name[1]).write_text(content)
        elif language == "bash":
            printed.append(run_command(["bash", "-e", "-c", content], folder))
        elif language == "python":
            printed.append(run_command([sys.executable, "-c", content], folder))
        else:
            assert language == "text", f"{page.name} has a block that a reader cannot use: {content}"
    return "\n".join(printed)
