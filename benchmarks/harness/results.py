"""Result files: what was measured, when, where, by which command. One file for each group of contests.

Results of size `full` are kept in the repository (`benchmarks/results`), and the README, `docs/performance.md` and the
pictures are made from them. Those of other sizes stay in the working folder.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

from benchmarks.harness.environments import ROOT, list_versions

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = ROOT / "benchmarks" / "results"
OWN_PACKAGES = ("fastokens", "msgspec", "numba", "numpy", "pyarrow", "tokenizers", "zstandard")
PEER_PACKAGES = (
    "datasets", "datasketch", "datatrove", "litdata", "mosaicml-streaming", "rensa", "spacy", "tokenizers", "torch",
    "transformers", "trl", "webdataset",
)  # fmt: skip


def choose_folder(size: str, folder: Path) -> Path:
    return PUBLISHED if size == "full" else folder / "results" / size


def load_result(path: Path) -> dict | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def store(path: Path, group: str, size: str, contest: dict) -> None:
    """Put one contest into its group's file; the others in it stay as they are."""
    result = load_result(path) or {"group": group, "contests": {}}
    environments = set(contest.pop("environments"))
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(),
        "machine": describe_machine(),
        "size": size,
        "command": f"make bench ONLY={group}" + ("" if size == "full" else f" SIZE={size}"),
        "versions": {**_own_versions(), **list_versions(environments, PEER_PACKAGES)},
    }
    result["contests"][contest["name"]] = {**about, **contest}
    write_json(path, result)


def write_json(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"


def find_commit() -> str:
    """Return the commit that was measured, with a mark if files were changed since."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _own_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in OWN_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
