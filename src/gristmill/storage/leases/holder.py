"""Who holds a lease: a process, named so that another process can tell whether it is still there."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import msgspec


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a lease."""

    token: str
    """Random: tells one holder from another with certainty."""
    host: str
    boot_id: str
    """Changes when the machine is started again."""
    pid_namespace: str
    """Processes of two containers may have the same number."""
    pid: int
    started: str
    """When the process was started, in ticks since the machine was: numbers of processes are used again."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_on_this_machine(self) -> bool:
        """Tell whether its process could be seen from here."""
        here = describe_process()
        return bool(self.boot_id) and _where(self) == _where(here)

    def is_dead(self) -> bool:
        """Tell whether its process ran on this machine and has ended."""
        return self.is_on_this_machine() and _read_start(self.pid) != self.started


def describe_process() -> Holder:
    """Describe this process, with a new token."""
    return Holder(
        token=secrets.token_hex(16),
        host=socket.gethostname(),
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_read_link("/proc/self/ns/pid"),
        pid=os.getpid(),
        started=_read_start(os.getpid()),
    )


def _where(holder: Holder) -> tuple[str, str, str]:
    return holder.host, holder.boot_id, holder.pid_namespace


def _read_start(pid: int) -> str:
    """Return the start time of a process; empty if there is none. The name in the second field may hold anything."""
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields or fields[0] in "ZX":  # a zombie does nothing any more
        return ""
    return fields[19]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
