"""Which item a dead worker was running, and which ones only lay beside it.

A worker may hold three kinds of chunks: one that has run and is finishing, the one that it runs, and one that was sent
ahead. Its recording names the item that it was running, if it had begun one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.pool.job_workers import PooledWorker
    from gristmill.engine.worker.chunk import Chunk


def find_suspect(worker: PooledWorker, event: Died, items: list[tuple[int, Any]]) -> int:
    """Return the number of the item that a death is attributed to; -1 if there is none. `items` have no outcome yet."""
    if worker.timed_out_item is not None:
        return worker.timed_out_item  # it may have ended just before the kill; the next item is not the cause
    if not items or any(index == event.item for index, _ in items):
        return event.item
    # The worker died before it recorded an item, perhaps while it received the chunk. Items run in order, so the first
    # without an outcome is the suspect. One that was sent ahead had most likely not begun: it is put back to run by
    # itself, is not sent ahead again, and a second such death is then attributed to it.
    return -1 if worker.unfinished_chunks()[0].was_sent_ahead else items[0][0]


def may_have_run(chunk: Chunk, suspect: int) -> bool:
    """Whether the chunk may have run at the death; not if it only waited behind the suspect, or had run before it."""
    was_beside = chunk.was_sent_ahead or chunk.is_finishing
    return not was_beside or suspect < 0 or suspect in chunk.indexes
