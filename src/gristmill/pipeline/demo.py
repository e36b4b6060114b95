"""The demonstration: count Python's own sources in parallel while one worker is killed; prove that nothing is missing.

The proof is an account taken by other means: the number and the sizes of the files as the file system states them.
"""

from __future__ import annotations

import os
import signal
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from gristmill.core.errors import GristmillError
from gristmill.engine.parallel_map import parallel_map
from gristmill.text.counts import Counts, count_text

INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demonstration found."""

    folder: Path
    packages: dict[str, Counts]
    """By top-level package or module, the largest first."""
    total: Counts
    killed_pid: int
    """The worker that was killed on purpose."""
    killed_at: Path
    """The file it was reading, relative to `folder`."""
    seconds: float


def run_demo(
    folder: Path | None = None, *, workers: int | Literal["auto"] = "auto", progress: bool | None = None
) -> Demo:
    """Count all `.py` files under `folder` (the standard library if None) and check the sum against the file system."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    paths = source_files(folder)
    if not paths:
        raise GristmillError(
            f"no Python source files in {folder}", help="use a Python that was installed with its library's sources"
        )
    victim = paths[len(paths) // 2]
    with TemporaryDirectory(prefix="gristmill-demo-") as scratch:
        marker = Path(scratch, "killed")
        count = CountAndDieOnce(victim=victim, marker=marker, parent_pid=os.getpid())
        start = time.perf_counter()
        counts = parallel_map(count, paths, workers=workers, desc="counting", progress=progress)
        seconds = time.perf_counter() - start
        if not marker.exists():
            raise GristmillError(f"no worker was killed: {victim} was not read by a worker process")
        killed_pid = int(marker.read_text())

    packages: dict[str, Counts] = {}
    for path, file_counts in zip(paths, counts, strict=True):
        name = package_name(path.relative_to(folder))
        packages[name] = packages.get(name, Counts()) + file_counts
    total = sum(packages.values(), Counts())
    num_files, num_bytes = file_system_account(folder)
    if (total.files, total.bytes) != (num_files, num_bytes):
        raise GristmillError(
            f"the books do not balance: counted {total.files} files of {total.bytes} bytes, "
            f"the file system has {num_files} files of {num_bytes} bytes"
        )
    return Demo(
        folder=folder,
        packages=dict(sorted(packages.items(), key=lambda entry: (-entry[1].bytes, entry[0]))),
        total=total,
        killed_pid=killed_pid,
        killed_at=victim.relative_to(folder),
        seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class CountAndDieOnce:
    """Counts a file; the first worker to get `victim` kills itself first, as the kernel would when memory runs out."""

    victim: Path
    marker: Path
    """Made by the worker that dies, so that the next one does not."""
    parent_pid: int

    def __call__(self, path: Path) -> Counts:
        if path == self.victim and os.getpid() != self.parent_pid and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return count_text(path.read_bytes())


def source_files(folder: Path) -> list[Path]:
    """All `.py` files under `folder`, sorted, without packages that were installed into it."""
    return sorted(
        path for path in folder.rglob("*.py") if INSTALLED.isdisjoint(path.relative_to(folder).parts) and path.is_file()
    )


def file_system_account(folder: Path) -> tuple[int, int]:
    """Number and total size of the same files by another way: a plain walk that opens none of them."""
    num_files = num_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in INSTALLED]
        for name in names:
            if name.endswith(".py"):
                num_files += 1
                num_bytes += Path(parent, name).stat().st_size
    return num_files, num_bytes


def package_name(path: Path) -> str:
    """The top-level package or module that a file belongs to.

    >>> package_name(Path("json/decoder.py")), package_name(Path("abc.py"))
    ('json', 'abc')
    """
    return path.parts[0].removesuffix(".py")
