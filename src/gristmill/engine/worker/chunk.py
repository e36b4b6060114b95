"""The loop over the items of a chunk: the same in a worker process, in a thread and in the caller.

Results are sent in groups, at the latest every `FLUSH_SECONDS`. A chunk that turns out to take much longer than planned
returns its unstarted items, so that one slow stretch of the input does not delay the rest. A parallel call inside a
worker runs in place and warns once, so this module also knows which processes and threads are workers.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.engine.worker.pickling import CapturedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from gristmill.engine.worker.recorder import Recorder

    class Emit(Protocol):
        """Sends results; `last` marks the end of the chunk."""

        def __call__(self, results: ChunkResults, *, last: bool) -> None: ...


FLUSH_SECONDS = 0.1
RETURN_AFTER_SECONDS = 0.2
_process = {"is_worker": False, "has_warned": False}
_worker_threads: set[int] = set()


class ChunkResults:
    """The outcomes of consecutive items of one chunk; `errors` maps positions in `values` to what was raised there."""

    __slots__ = ("errors", "seconds", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.errors: dict[int, CapturedError] = {}
        self.seconds = 0.0

    @property
    def is_unfinished(self) -> bool:
        """Whether something is left under way."""
        return any(isinstance(value, Unfinished) for value in self.values)

    def finish(self) -> None:
        """Wait for what is left under way."""
        for position, value in enumerate(self.values):
            if isinstance(value, Unfinished):
                try:
                    self.values[position] = value.wait()
                except BaseException as error:
                    self.values[position] = None
                    self.errors[position] = CapturedError(error, travels=True)


class Chunk:
    """Items of the input that are sent together. Workers run them in order, so `num_done` says which have ended."""

    __slots__ = ("counts", "indexes", "is_dissolved", "is_finishing", "items", "num_done", "number", "was_sent_ahead")

    def __init__(self, number: int, indexes: Sequence[int], items: Sequence[Any]) -> None:
        self.number = number
        self.indexes = indexes
        self.items = items
        self.num_done = 0
        self.is_dissolved = False
        """Whether its items are in the queue again, so that later results of this chunk must be ignored."""
        self.was_sent_ahead = False
        """Whether its worker had another one to run first: until that has ended, this one has not begun."""
        self.is_finishing = False
        """Whether all its items have run, and the worker only waits for what they left under way (`Unfinished`)."""
        self.counts: dict[str, int] = {}
        """The counters of a chunk that is finishing; until then those of its worker."""

    def unfinished_items(self) -> list[tuple[int, Any]]:
        """Return the items without an outcome, with their numbers."""
        return list(zip(self.indexes[self.num_done :], self.items[self.num_done :], strict=True))


class Unfinished:
    """A result of a function that has left something under way, such as an upload: `finish` waits for it.

    The result counts when `finish` has returned, and an error of it is one of the item. A worker process may run the
    next chunk meanwhile.
    """

    __slots__ = ("finish", "value")

    def __init__(self, value: Any, finish: Callable[[], None]) -> None:
        self.value = value
        self.finish = finish

    def wait(self) -> Any:
        """Return the result when it counts."""
        self.finish()
        return self.value


def run_chunk(
    function: Callable[..., Any],
    extra_arguments: tuple[Any, ...],
    chunk: Chunk,
    emit: Emit,
    *,
    recorder: Recorder | None = None,
    returns_unstarted: bool = False,
    is_cancelled: Callable[[], bool] | None = None,
    finishes_later: bool = False,
) -> None:
    """Call the function on each item and `emit` the results. After the last group items may be left unstarted.

    With `finishes_later` results may be `Unfinished`.
    """
    began = flushed = monotonic()
    results = ChunkResults()
    for index, item in zip(chunk.indexes, chunk.items, strict=True):
        if is_cancelled is not None and is_cancelled():
            break
        now = monotonic()
        if now - flushed > FLUSH_SECONDS and results.values:
            results.seconds = now - flushed
            if returns_unstarted and now - began > RETURN_AFTER_SECONDS:
                break
            if recorder is not None:
                recorder.note(now, index)  # the timeout covers the pickling of results too
            emit(results, last=False)
            results, flushed = ChunkResults(), now
        if recorder is not None:
            recorder.note(now, index)
        try:
            value = function(item, *extra_arguments)
            results.values.append(value.wait() if isinstance(value, Unfinished) and not finishes_later else value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a function that calls sys.exit() has failed, not finished
            results.errors[len(results.values)] = CapturedError(error, travels=recorder is not None)
            results.values.append(None)
    else:
        results.seconds = monotonic() - flushed
    if recorder is not None:
        recorder.note(monotonic(), index)
    emit(results, last=True)


def mark_process_as_worker() -> None:
    """Note that this process was started only to run tasks."""
    _process["is_worker"] = True


def is_worker_process() -> bool:
    """Whether this process was started only to run tasks."""
    return _process["is_worker"]


def enter_worker_thread() -> None:
    """Note that the current thread is a worker."""
    _worker_threads.add(get_ident())


def leave_worker_thread() -> None:
    """Note that the current thread is no longer a worker; another thread may get its number."""
    _worker_threads.discard(get_ident())


def is_inside_worker() -> bool:
    """Whether the current process or thread is a worker."""
    return _process["is_worker"] or get_ident() in _worker_threads


def is_first_nested_call() -> bool:
    """Whether this is the first call in the process: the warning is not repeated."""
    has_warned, _process["has_warned"] = _process["has_warned"], True
    return not has_warned
