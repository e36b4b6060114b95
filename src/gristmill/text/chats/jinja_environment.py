"""The environment of chat templates: the settings, filters and globals of transformers, limits for untrusted ones.

A template is code that came with a model. It runs in Jinja's immutable sandbox: no attributes that begin with an
underscore, no files, no network, no changes to its arguments.

It can still ask for too much: `{{ 9**(9**9) }}` takes hours, `{{ 'a'|center(10**10) }}` ten gigabytes, and Jinja
computes both while it compiles. So untrusted templates run in worker processes, or where the caller asked for the
backend `serial`, under three limits:

* memory: the kernel's limit on data (Linux), so that an allocation fails with `MemoryError`;
* CPU time of the thread: a timer fires once a second and raises `TemplateTimeout` between two bytecodes;
* CPU time of the process: one long call into C never reaches the next bytecode, so the timer above cannot act. If it
  has not run for too much CPU time, the kernel ends the process.

A busy machine makes a template slow, but does not make it use more CPU time.

Cost: two system calls per batch, 0.1 µs per record.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date
    from types import FrameType

    from jinja2.sandbox import ImmutableSandboxedEnvironment


GENERATION_START = "\ufdd0"
GENERATION_END = "\ufdd1"
"""Marks around what is inside of `{% generation %}`, in a marked rendering. Unicode will never assign them."""
MARK_METHOD = "_mark_generated"
_DICT_NAMES = frozenset(dir(dict))


def make_environment(
    today: date | None, *, marks: bool, extend: Callable[[Any], Any] | None = None
) -> ImmutableSandboxedEnvironment:
    """Make an environment like that of transformers; `extend` may derive another class from that of the sandbox."""
    from jinja2 import TemplateError as JinjaError  # noqa: PLC0415
    from jinja2 import nodes  # noqa: PLC0415
    from jinja2.exceptions import SecurityError  # noqa: PLC0415
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    from jinja2.utils import Namespace  # noqa: PLC0415

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}`."""

        tags = {"generation"}  # noqa: RUF012  (the API of Jinja)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            if not marks:
                return nodes.Scope(body).set_lineno(line)
            return nodes.CallBlock(self.call_method(MARK_METHOD), [], [], body).set_lineno(line)

        def _mark_generated(self, caller: Any) -> str:
            return f"{GENERATION_START}{caller()}{GENERATION_END}"

    class PlainNamespace(Namespace):
        """`namespace()` without names that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *positional = args
            values = dict(*positional, **kwargs)
            for name in values:
                _refuse_hidden(name)
            Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_hidden(name)
            super().__setitem__(name, value)

    class PlainDict:
        """`dict()` without giving access to its class."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def _refuse_hidden(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a template cannot use the name {name!r}")

    def raise_exception(message: object) -> None:
        raise JinjaError(str(message))

    def strftime_now(pattern: str) -> str:
        if today is None:
            raise JinjaError("the template asks for today's date, and no date is set")
        return today.strftime(pattern)

    class Sandbox(ImmutableSandboxedEnvironment):
        """A sandbox with a shortcut for `message.role`: Jinja first tries an attribute of the dict: 1 µs."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is dict and attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            return super().getattr(obj, attribute)

    # Not optimized: constants (9**9**9) would be computed while the template compiles, without a limit on time.
    sandbox = Sandbox if extend is None else extend(Sandbox)
    environment: ImmutableSandboxedEnvironment = sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], optimized=False
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "namespace": PlainNamespace,
        "dict": PlainDict(),
    }
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates pass them by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Encode JSON as it is: Jinja's own filter escapes what would be markup in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


MAX_SECONDS = 60.0
MAX_GROWTH_BYTES = 2 << 30
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0


class TemplateTimeout(BaseException):
    """A record has used up its time. Not an `Exception`: a template's own failures are caught as such."""


def are_limits_enforced() -> bool:
    """Whether limits hold in this thread: only the main one gets signals, and macOS has no limit of memory."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


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
        self._started = thread_time()

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
        if thread_time() - self._started > self.max_seconds:
            self.restart()  # raised only once: the caller continues with the next record
            raise TemplateTimeout(f"took more than {self.max_seconds:g} s of CPU time")

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
