"""The process that code runs in: what stays loaded in it, what is kept out, and its limits.

* `load_once` keeps what takes long to load (tokenizers, models) under the hash of its content. A worker
  runs one stage after another: what a later stage needs stays loaded, all else is freed. Of each kind only the last
  used are kept.
* pandas is kept out of processes that run no user code. pyarrow imports it at its first conversion from or to Python
  objects: half a second and 30 MiB in each worker of each stage. If that import fails once, pyarrow does not try again,
  except where it needs pandas (`to_pandas`), which still works.
* A process that tries an untrusted file has limits of memory and processor time, set in the kernel for the rest of its
  life. On Linux a filter of system calls (seccomp) also refuses sockets and other programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import resource
import signal
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable
    from importlib.machinery import ModuleSpec


if TYPE_CHECKING:
    T = TypeVar("T")

TOKENIZER = "tokenizer"
"""The kind of tokenizers. Named here, so that they are freed without importing what loads them."""

_kinds: dict[str, dict[tuple[str, Hashable], Any]] = {}
"""By kind: what is loaded, the last used at the end, under its content and the form in which it was loaded."""


def load_once(kind: str, content: str, form: Hashable, load: Callable[[], T], *, max_kept: int) -> T:
    """Return what `load` loads; call it only if the same content is not there in the same form.

    >>> load_once("words", "2f1a", "upper", lambda: print("loading") or "WORDS", max_kept=1)
    loading
    'WORDS'
    >>> load_once("words", "2f1a", "upper", lambda: print("loading") or "WORDS", max_kept=1)
    'WORDS'
    >>> forget_content(["words"], needed=())
    """
    entries = _kinds.setdefault(kind, {})
    key = content, form
    value: T = entries.pop(key) if key in entries else load()
    entries[key] = value
    while len(entries) > max_kept:
        del entries[next(iter(entries))]
    return value


def forget_content(kinds: Collection[str] | None = None, *, needed: Collection[str]) -> None:
    """Free all that is loaded of these kinds, or of all, except for the content that is needed."""
    for kind in list(_kinds) if kinds is None else kinds:
        _kinds[kind] = {key: value for key, value in _kinds.get(kind, {}).items() if key[0] in needed}


class _NoPandas:
    """A finder of modules that refuses pandas and leaves all others to the finders after it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("blocked", name=name)
        return None


def block_pandas_import() -> None:
    """Make pyarrow's import of pandas fail in this process. Does nothing if pandas is loaded already."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa  # noqa: PLC0415  (it does not import pandas before its first conversion)

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


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
_START_SECONDS = 120
"""For the start of Python and its imports on a busy machine, in addition to the limit of processor time."""
_PATIENCE = 20
"""How long a process is awaited, for each second of its limit of processor time. On a busy machine it gets a tenth of a
core; the kernel ends one that computes for too long, so this is for one that waits forever."""
_COMMAND = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}()"


def run_limited(module: str, name: str, order: bytes, max_seconds: int) -> tuple[bytes, str]:
    """Call a function in a new process, which reads `order`, limits itself and writes an answer of one line.

    Returns:
        The answer, or what happened instead, as the end of a sentence on the file that was tried.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND.format(path=sys.path, module=module, name=name)],
            input=order,
            capture_output=True,
            timeout=_START_SECONDS + _PATIENCE * max_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", "waits without end"
    if done.returncode == 0 and done.stdout:
        return done.stdout.splitlines()[-1], ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return b"", "takes too long"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    lines = [line for line in lines if not line.startswith(("note: ", "skipping backtrace"))]  # Rust's last words
    return b"", f"ends the process that tries it ({lines[-1] if lines else done.returncode})"


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
