"""Limits for untrusted templates: seconds per record, and memory beyond what the process already uses.

A template is a program that came with a model. `{{ 9**(9**9) }}` takes hours, `{{ 'a'|center(10**10) }}` ten
gigabytes, and Jinja computes both while it compiles. So untrusted templates run in worker processes only, under three
limits:

* memory: the kernel's limit on data (Linux), so that an allocation fails with `MemoryError`;
* time: a timer fires once a second and raises `TemplateTimeout` between two bytecodes of the template;
* CPU time: one long call into C never reaches the next bytecode, so the timer above cannot act. If it has not run for
  too much CPU time, the kernel ends the process.

Cost: two system calls per batch, 0.1 µs per record.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

MAX_SECONDS = 60.0
MAX_GROWTH_BYTES = 2 << 30
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0


class TemplateTimeout(BaseException):
    """A record has used up its time. Not an `Exception`: a template's own failures are caught as such."""


class TemplateLimits:
    """Limits that hold inside a `with`; time counts from its start or from the last `restart`."""

    def __init__(self, max_seconds: float = MAX_SECONDS, max_growth_bytes: int = MAX_GROWTH_BYTES) -> None:
        self.max_seconds = max_seconds
        self.max_growth_bytes = max_growth_bytes
        self._started = 0.0
        self._data_limits: tuple[int, int] | None = None
        self._handler: Any = None
        self._has_timer = False

    def restart(self) -> None:
        """Start the clock again, for the next record."""
        self._started = monotonic()

    def __enter__(self) -> Self:
        self.restart()
        self._limit_memory()
        # Signals can only be handled by the main thread, which is where workers run their tasks.
        self._has_timer = threading.current_thread() is threading.main_thread()
        if self._has_timer:
            self._handler = signal.signal(signal.SIGALRM, self._look)
            self._allow_cpu_time()
            signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
        if self._data_limits is not None:
            import resource  # noqa: PLC0415

            resource.setrlimit(resource.RLIMIT_DATA, self._data_limits)
            self._data_limits = None

    def _look(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._allow_cpu_time()
        if monotonic() - self._started > self.max_seconds:
            self.restart()  # raised only once: the caller continues with the next record
            raise TemplateTimeout(f"took longer than {self.max_seconds:g} s")

    def _allow_cpu_time(self) -> None:
        """Let the kernel end this process (SIGVTALRM, fatal by default) unless this is called again in time."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self.max_seconds + _GRACE_SECONDS)

    def _limit_memory(self) -> None:
        if sys.platform != "linux":  # macOS has the limit but does not enforce it; there the parent watches trials
            return
        import resource  # noqa: PLC0415

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        try:
            limit = _measure_data_bytes() + self.max_growth_bytes
        except OSError:  # a container without /proc
            limit = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + self.max_growth_bytes
        if any(current_limit != resource.RLIM_INFINITY and current_limit <= limit for current_limit in (soft, hard)):
            return  # a stricter limit is in force
        self._data_limits = soft, hard
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _measure_data_bytes() -> int:
    """Read what the kernel counts as data of this process (`VmData`)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), 0)
