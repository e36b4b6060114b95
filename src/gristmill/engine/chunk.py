"""Running a few items after another: the same loop in a worker process, in a thread and in the caller.

Results leave in batches, at the latest every `FLUSH_SECONDS`. A chunk that turns out to take much longer than planned
gives its unstarted items back, so that one slow stretch of the input does not hold up the rest.
"""

from __future__ import annotations

from time import monotonic

from gristmill.engine.captured_error import CapturedError

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from gristmill.engine.recorder import Recorder

    class Emit(Protocol):
        """Takes results on their way; `last` marks the end of the chunk."""

        def __call__(self, batch: ChunkResults, *, last: bool) -> None: ...


FLUSH_SECONDS = 0.1
RETURN_AFTER_SECONDS = 0.2


class Chunk:
    """Some items of the input. Workers take them in order, so `done` says which have ended."""

    __slots__ = ("dissolved", "done", "indexes", "items", "number")

    def __init__(self, number: int, indexes: Sequence[int], items: Sequence[Any]) -> None:
        self.number = number
        self.indexes = indexes
        self.items = items
        self.done = 0
        self.dissolved = False
        """Its items have been taken back; what still comes of them is not wanted."""

    def unfinished_items(self) -> list[tuple[int, Any]]:
        return list(zip(self.indexes[self.done :], self.items[self.done :], strict=True))


class ChunkResults:
    """Results of consecutive items of one chunk; `caught` maps positions in `results` to what was raised there."""

    __slots__ = ("caught", "results", "seconds")

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.caught: dict[int, CapturedError] = {}
        self.seconds = 0.0


def run_chunk(
    function: Callable[..., Any],
    more_arguments: tuple[Any, ...],
    chunk: Chunk,
    emit: Emit,
    *,
    recorder: Recorder | None = None,
    gives_back: bool = False,
    is_cancelled: Callable[[], bool] | None = None,
) -> None:
    """Call the function on each item and `emit` batches; the last one is marked, and may leave items undone."""
    began = flushed = monotonic()
    batch = ChunkResults()
    for index, item in zip(chunk.indexes, chunk.items, strict=True):
        if is_cancelled is not None and is_cancelled():
            break
        now = monotonic()
        if now - flushed > FLUSH_SECONDS and batch.results:
            batch.seconds = now - flushed
            if gives_back and now - began > RETURN_AFTER_SECONDS:
                break
            if recorder is not None:
                recorder.note(now, index)  # the pickling of results is still under the timeout
            emit(batch, last=False)
            batch, flushed = ChunkResults(), now
        if recorder is not None:
            recorder.note(now, index)
        try:
            batch.results.append(function(item, *more_arguments))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a function that calls sys.exit() has failed, not finished
            batch.caught[len(batch.results)] = CapturedError(error, travels=recorder is not None)
            batch.results.append(None)
    else:
        batch.seconds = monotonic() - flushed
    if recorder is not None:
        recorder.note(monotonic(), index)
    emit(batch, last=True)
