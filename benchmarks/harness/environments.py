"""Environments of peers: one for each file in `benchmarks/peers`, made when a contest first needs it.

Peers pin versions that Gristmill does not, and each other's. A file lists exact versions of everything, so two machines
measure the same code; what else a peer asks for is not installed, because peers contradict each other there. Only
torch gets what it asks for: its own libraries differ by platform and build, and it pins them itself. `uv` makes an
environment in seconds; without it `venv` and `pip` do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.contest import OURS
from benchmarks.harness.processes import SideError

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
    for command in list_commands(home, requirements, shutil.which("uv")):
        if subprocess.run(command, check=False).returncode:
            raise SideError(f"its environment cannot be made: {' '.join(command[:6])} … failed, see above")


def list_commands(home: Path, requirements: Path, uv: str | None) -> list[list[str]]:
    """List the commands that make an environment, with the path of `uv` if there is one."""
    python = str(home / "bin" / "python")
    if uv:
        create = [uv, "venv", "--quiet", "--python", sys.executable, str(home)]
        install = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        create = [sys.executable, "-m", "venv", str(home)]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = [line for line in requirements.read_text().splitlines() if line.startswith("torch==")]
    commands = [create, [*install, "--no-deps", "-r", str(requirements)]]
    return [*commands, [*install, *torch, "-c", str(requirements)]] if torch else commands


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
