"""Binding a process to CPUs and its memory to a NUMA node, by the kernel's own calls.

Python has no function for the memory policy of a process, and a library for it (libnuma) is rarely installed. Memory is
preferred from the node, not demanded: when the node is full, the kernel takes it from another one. A strict policy
would end the process instead.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from typing import Any

_SYSTEM_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236)}
"""By processor: the numbers of `set_mempolicy` and `get_mempolicy`."""
_SET, _GET = 0, 1
_DEFAULT, _PREFERRED = 0, 1
_MAX_NODES = 1024


class Place:
    """The CPUs of a worker, and the NUMA node that its memory should come from."""

    __slots__ = ("cpus", "node")

    def __init__(self, cpus: tuple[int, ...], node: int | None = None) -> None:
        self.cpus = cpus
        self.node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (self.cpus, self.node) == (other.cpus, other.node)

    def __hash__(self) -> int:
        return hash((self.cpus, self.node))

    def __repr__(self) -> str:
        return f"Place({self.cpus}, {self.node})"


def bind_process(place: Place) -> None:
    """Bind this process to a place, as far as the system allows. The parent has told the user what it does not."""
    try:
        os.sched_setaffinity(0, place.cpus)
    except OSError:  # the CPUs were taken away since the parent looked: the process runs where it may
        return
    if place.node is not None:
        _prefer_memory_of(place.node)


def unbind_process(cpus: set[int]) -> None:
    """Let this process use all these CPUs again, and memory from anywhere."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        return
    _call_kernel(_SET, _DEFAULT, None, 0)


def can_bind_cpus() -> bool:
    """Whether the system lets this process choose its CPUs: it may choose those that it has."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False
    return True


def can_bind_memory() -> bool:
    """Whether the system lets this process choose its memory. Asks for the present policy, which changes nothing.

    Containers forbid both calls together, unless they have the right to (`CAP_SYS_NICE`).
    """
    return _call_kernel(_GET, None, None, 0, None, 0)


def _prefer_memory_of(node: int) -> bool:
    import ctypes  # noqa: PLC0415  (10 ms, for pinned workers only)

    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    return _call_kernel(_SET, _PREFERRED, ctypes.byref(mask), _MAX_NODES)


def _call_kernel(call: int, *arguments: Any) -> bool:
    """Make one of the two system calls; return whether it succeeded."""
    calls = _SYSTEM_CALLS.get(os.uname().machine)
    if calls is None:
        return False
    import ctypes  # noqa: PLC0415

    values = [ctypes.c_void_p(value) if value is None else value for value in arguments]
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return bool(ctypes.CDLL(None, use_errno=True).syscall(calls[call], *values) == 0)
