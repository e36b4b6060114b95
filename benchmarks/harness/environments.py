"""Environments of peers: one for each file in `benchmarks/peers`, made when a contest first needs it.

Peers pin versions that Gristmill does not, and each other's. A file lists exact versions of everything, so two machines
measure the same code. `uv` makes an environment in seconds; without it `venv` and `pip` do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.contest import OURS

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers"


def find_interpreter(environment: str, folder: Path) -> str:
    """Return the interpreter of an environment, which is made if it is missing or its file has changed."""
    if environment == OURS:
        return sys.executable
    requirements = PEERS / f"{environment}.txt"
    home = folder / "environments" / environment
    marker = home / "made-from"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if not marker.exists() or marker.read_text() != digest:
        print(f"making the environment of {environment} in {home}", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        _make(home, requirements)
        marker.write_text(digest)
    return str(home / "bin" / "python")


def _make(home: Path, requirements: Path) -> None:
    uv = shutil.which("uv")
    python = str(home / "bin" / "python")
    if uv:
        create = [uv, "venv", "--quiet", "--python", sys.executable, str(home)]
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(requirements)]
    else:
        create = [sys.executable, "-m", "venv", str(home)]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "--no-deps", "-r", str(requirements)]
    for command in (create, install):
        subprocess.run(command, check=True)


def variables_of(environment: str) -> dict[str, str]:
    """Return the variables that let a side import its own script, and ours the sources of this folder."""
    paths = [str(ROOT), str(ROOT / "src")] if environment == OURS else [str(ROOT)]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}


def list_versions(environments: set[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the pinned versions of some packages in the environments of peers."""
    versions = {}
    for environment in sorted(environments - {OURS}):
        for line in (PEERS / f"{environment}.txt").read_text().splitlines():
            name, equals, version = line.partition("==")
            if equals and name.lower() in wanted:
                versions[name.lower()] = version.strip()
    return versions
