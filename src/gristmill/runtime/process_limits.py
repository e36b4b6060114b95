"""Limits of a process that tries out a file from elsewhere: memory, processor time, no network.

They hold for the rest of the process's life. Memory and time are limits of the kernel. On Linux a filter of system
calls (seccomp) refuses sockets and other programs; elsewhere only the first two hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import resource
import struct
import sys
import time

_NUMBERS = {
    "x86_64": (0xC000003E, (41, 59, 322)),
    "aarch64": (0xC00000B7, (198, 221, 281)),
}
"""By machine: its name for the filter, and the numbers of `socket`, `execve` and `execveat`."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13
"""The last number is EACCES."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_GRACE_SECONDS = 5


def limit_process(max_bytes: int, max_seconds: int) -> None:
    """Limit this process for good, with `max_seconds` from now on. A stricter limit that is in force already stays."""
    for kind, limit in (
        (resource.RLIMIT_DATA, max_bytes),
        (resource.RLIMIT_CPU, max_seconds + math.ceil(time.process_time())),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        grace = _GRACE_SECONDS if kind == resource.RLIMIT_CPU else 0
        with contextlib.suppress(ValueError, OSError):  # a stricter hard limit
            if hard == resource.RLIM_INFINITY or limit + grace <= hard:
                resource.setrlimit(kind, (limit, limit + grace))
    if sys.platform == "linux" and platform.machine() in _NUMBERS:
        _refuse_sockets(*_NUMBERS[platform.machine()])


def _refuse_sockets(machine: int, numbers: tuple[int, ...]) -> None:
    """Install the filter. Where the kernel takes none, as in some containers, the process runs without it."""
    # Offsets in the kernel's record of a call: the number of the call at 0, the machine at 4. A jump names how many
    # instructions it skips if the values are equal, and if they are not.
    program = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, len(numbers) + 2, machine), (_LOAD, 0, 0, 0)]
    program += [(_JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    call = ctypes.CDLL(None, use_errno=True).prctl
    if call(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        call(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.c_char_p(header), 0, 0)
