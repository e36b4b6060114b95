"""A job as a worker receives it: the function, its set-up, and how a running task reports to the scheduler."""

from __future__ import annotations

import gc
from contextlib import suppress
from functools import partial
from importlib import import_module
from time import monotonic

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from gristmill.engine.worker.recorder import Recorder

    Call = tuple[str, str, Mapping[str, Any]]
    """A module, the name of a function in it, and its arguments: so a process can name what it has not imported."""

_COUNTS_SECONDS = 0.25


class Job:
    """A function and its set-up. Sent to each worker once."""

    __slots__ = ("function", "runs_user_code", "setup", "takes_context")

    def __init__(
        self,
        function: Callable[..., Any],
        setup: Callable[[], Any] | None = None,
        *,
        takes_context: bool = False,
        runs_user_code: bool = True,
    ) -> None:
        self.function = function
        self.setup = setup
        self.takes_context = takes_context
        self.runs_user_code = runs_user_code
        """Whether it may change the state of its process: its workers run nothing before it and nothing after it."""

    def run_setup(self, context: Context) -> tuple[Any, ...]:
        """Run the set-up and return the arguments that follow the item in each call."""
        context.state = self.setup() if self.setup is not None else None
        if self.takes_context:
            return (context,)
        return (context.state,) if self.setup is not None else ()


def make_import_job(
    module: str, prepare: Callable[[], None], *, before: Sequence[Call] = (), after: Sequence[Call] = ()
) -> Job:
    """Make the job of workers that are started before there is work for them: to import what they will need.

    Calls are made `before` and `after` the import, for which `prepare` prepares. If one fails, the job that needs it
    will tell.
    """
    return Job(import_module, partial(_import_for_good, module, prepare, before, after), runs_user_code=False)


def _import_for_good(module: str, prepare: Callable[[], None], before: Sequence[Call], after: Sequence[Call]) -> None:
    """Import a module, and keep what it made from the garbage collector: it stays, and need not be searched again."""
    gc.disable()
    try:
        _make_calls(before)
        prepare()
        import_module(module)
        _make_calls(after)
    finally:
        gc.freeze()
        gc.enable()


def _make_calls(calls: Sequence[Call]) -> None:
    for module, function, arguments in calls:
        with suppress(Exception):
            getattr(import_module(module), function)(**arguments)


class Context:
    """A running task's connection to the scheduler: the worker's `state`, counters and a position."""

    def __init__(
        self,
        send: Callable[[dict[str, int]], None],
        recorder: Recorder | None = None,
        wait_for_last: Callable[[], None] | None = None,
    ) -> None:
        self.state: Any = None
        self._wait_for_last = wait_for_last
        self._send = send
        self._recorder = recorder
        self._counts: dict[str, int] = {}
        self._num_records = self._num_bytes = 0
        self._sent = monotonic()

    def begin_item(self) -> None:
        """Note that the counters of another item begin."""
        self._num_records = self._num_bytes = 0
        if self._recorder is not None:
            self._recorder.note_counts(0, 0)

    def count(self, **amounts: int) -> None:
        """Add to the job's counters (records, bytes, tokens). Sent at most four times a second."""
        for name, amount in amounts.items():
            self._counts[name] = self._counts.get(name, 0) + amount
        if self._recorder is not None:
            self._num_records += amounts.get("records", 0)
            self._num_bytes += amounts.get("bytes", 0)
            self._recorder.note_counts(self._num_records, self._num_bytes)
        if monotonic() - self._sent > _COUNTS_SECONDS:
            self.flush()

    def at(self, position: int) -> None:
        """Report that work on this position (record) inside the task starts now.

        The task's timeout counts from here, and a death or timeout names the position.
        """
        if self._recorder is not None:
            self._recorder.note_position(position)

    def wait_for_last_task(self) -> None:
        """Wait until the task before has finished (`Unfinished`): a worker has one under way while it runs another."""
        if self._wait_for_last is not None:
            self._wait_for_last()

    def flush(self) -> None:
        """Send the counters now."""
        if self._counts:
            self._send(self._counts)
            self._counts = {}
            self._sent = monotonic()
