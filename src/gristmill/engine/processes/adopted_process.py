"""A worker process that another worker forked, and whose parent this process has become.

The kernel gives the children of a process that has ended to the next ancestor that takes orphans. This process does so
only from the start of a worker that forks until its copies are there.
"""

from __future__ import annotations

import os
import select
import sys
from subprocess import TimeoutExpired

_SET_CHILD_SUBREAPER = 36


def take_orphans(*, takes: bool) -> bool:
    """Let this process become the parent of orphans among its descendants, or no longer. Returns whether it can."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    import ctypes  # noqa: PLC0415  (numpy imports it too)

    return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(takes), 0, 0, 0) == 0)


class AdoptedProcess:
    """A child process that this process did not start, with the part of `subprocess.Popen` that workers need."""

    def __init__(self, pid: int) -> None:
        """Take charge of a child. Raises `ChildProcessError` if it is none: its number may be another process's."""
        self.pid = pid
        self.returncode: int | None = None
        self.poll()

    def poll(self) -> int | None:
        """Return how it has ended, as `subprocess` says it; None if it has not."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait until it has ended. Raises `TimeoutExpired`."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        if (code := self.poll()) is None:
            raise TimeoutExpired("a worker", timeout)
        return code
