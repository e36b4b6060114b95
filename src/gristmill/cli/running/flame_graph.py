"""A flame graph of a run: py-spy starts it, looks at it and all its workers, and draws where their time went."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gristmill.core.errors import GristmillError, UsageError

_LEAVE_SECONDS = 20.0


def find_profiler() -> str:
    """Find py-spy, beside this Python or on the path."""
    own = Path(sysconfig.get_path("scripts"), "py-spy")
    program = str(own) if own.exists() else shutil.which("py-spy")
    if program is None:
        raise UsageError("--profile needs py-spy, which is not installed", help="pip install py-spy")
    return program


def write_flame_graph(
    recipe: str, overrides: Sequence[str], flags: Sequence[str], path: str, *, seconds: float
) -> None:
    """Run a recipe for some seconds into a temporary folder, and write the flame graph of all its processes."""
    with tempfile.TemporaryDirectory(prefix="gristmill-profile-", ignore_cleanup_errors=True) as folder:
        changes = [*overrides, f"output={Path(folder, 'out')}"]
        words = [word for change in changes for word in ("--set", change)]
        run = [sys.executable, "-m", "gristmill", "run", os.fspath(recipe), *words, *flags, "--quiet"]
        picture = Path(folder, "flame.svg")
        record = [
            find_profiler(),
            "record",
            "--subprocesses",
            "--nonblocking",
            "--rate",
            "100",
            "--output",
            str(picture),
        ]
        with Path(folder, "log").open("w+") as log:
            process = subprocess.Popen(
                [*record, "--duration", f"{max(1, round(seconds))}", "--", *run],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(seconds + _LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end_group(process)
            log.seek(0)
            said = log.read().strip().splitlines()
        if not picture.exists():
            raise GristmillError(
                f"py-spy wrote no flame graph: {said[-1] if said else 'it said nothing'}",
                help="py-spy needs the right to look at processes: SYS_PTRACE in a container, sudo on macOS",
            )
        shutil.move(picture, path)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the run that py-spy has left, with its workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS if number == signal.SIGTERM else None)
