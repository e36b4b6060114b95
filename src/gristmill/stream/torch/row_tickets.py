"""Rows that a worker of a DataLoader names, and its parent gathers: nothing but a few numbers is sent.

To gather packed rows from mapped shards costs the parent no more than to receive a batch in a slot (`worker_ring`), and
the worker nothing. Then the worker sends a ticket with the first row of the batch, and unpickling it in the parent
makes the batch. The rows are a pure function of their number, so a batch is the same, whoever makes it.

The choice is made by measurement. A worker makes its first batches itself, and sends them through its ring. Then it
sends tickets, unless the fastest one took the parent more than four times the processor time of a copy out of a slot:
all that a batch in a slot costs both processes is more than that. If a ticket is slow, because rows come from the disk
or shards are not open yet, the worker makes the next batches itself.

Tickets are sent only if nobody else sees the batch in the worker: no dataset around ours, and no `collate_fn`. Rows
from a store, images, samples and balanced ranks always go through the ring: they cost more than a gather.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from gristmill.core.errors import UsageError
from gristmill.stream.batches.read_ahead import ReadAhead
from gristmill.stream.row_reader import RowReader
from gristmill.stream.stream import open_streams
from gristmill.stream.torch.tensors import as_tensors
from gristmill.stream.torch.worker_ring import GATHER, ParentCosts, choose_memory, map_ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.stream import Stream
    from gristmill.stream.torch.worker_ring import BatchSender, RingPlace

_FIRST_BATCHES = 8
"""The batches that a worker makes before its first ticket."""
_FIRST_TICKETS = 32
"""The tickets that are sent before their cost decides."""
_BATCHES_AFTER_SLOW = 32
"""The batches that a worker makes after a slow ticket."""
_BATCHES_AFTER_DEAR = 512
"""The batches that a worker makes when tickets are too dear. Then it tries again: the first ones may have met a busy
machine."""
_FAIR, _SLOW = 4, 16
"""How often the time of a copy a ticket may cost the parent: the fastest one, and any one."""


class RowTicket:
    """The message that a worker sends in place of a batch. No collate function looks into it, and only a queue does."""

    __slots__ = ("_fields",)

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def __reduce__(self) -> tuple[Callable[..., Batch | ExceptionWrapper], tuple[Any, ...]]:
        return _gather, self._fields


class TicketChooser:
    """Decides in a worker which batches are sent as tickets."""

    def __init__(self, sender: BatchSender) -> None:
        self._sender = sender
        self._batches_left = _FIRST_BATCHES
        self._num_tickets = 0
        self._num_slow = 0

    def choose_ticket(self, stream: Stream, row: int, batch_size: int, rank: int, world_size: int) -> RowTicket | None:
        """Return a ticket for the batch at a row; None: make the batch."""
        ring = self._sender.ring
        if self._batches_left or ring is None:
            self._batches_left -= self._batches_left > 0
            return None
        copy_ns, gather_ns, num_slow = ring.costs.read()
        if num_slow > self._num_slow:
            self._num_slow, self._batches_left = num_slow, _BATCHES_AFTER_SLOW
            return None
        if self._num_tickets >= _FIRST_TICKETS and gather_ns > _FAIR * copy_ns:
            self._num_tickets, self._batches_left = 0, _BATCHES_AFTER_DEAR
            return None
        if not copy_ns or stream.reader.read_ahead.is_cold:
            return None
        self._num_tickets += 1
        return RowTicket(stream.key, row, batch_size, rank, world_size, _SLOW * copy_ns, ring.place)


@cache
def find_chooser(sender: BatchSender) -> TicketChooser:
    """Find what decides for the batches of a worker, in all its passes."""
    return TicketChooser(sender)


def can_gather_in_parent(stream: Stream) -> bool:
    """Whether the rows of a stream are gathered from files on this disk, and nothing else is done for them."""
    reader = stream.reader
    is_plain = isinstance(reader, RowReader) and not reader.has_images
    return is_plain and not reader.is_remote and not stream.arguments.balance


def _gather(
    key: str, row: int, batch_size: int, rank: int, world_size: int, slow_ns: int, ring: RingPlace
) -> Batch | ExceptionWrapper:
    """Make the batch of a ticket."""
    start, num_faults = time.thread_time_ns(), ReadAhead.num_faults()
    try:
        stream = open_streams.get(key)
        if stream is None:
            raise UsageError(
                "the stream of this DataLoader is not in the process that iterates it",
                help="keep a reference to the dataset as long as its batches are read",
            )
        batch = as_tensors(stream.batch_at(row, batch_size, rank, world_size, new=choose_memory()))
        stream.accounting.add_received(batch)
        costs, nanoseconds = ParentCosts(map_ring(ring)), time.thread_time_ns() - start
        costs.note(GATHER, nanoseconds)
        if nanoseconds > slow_ns or ReadAhead.num_faults() > num_faults:
            costs.note_slow()
    except Exception:  # a DataLoader raises what it gets, as if it came from a worker; its threads would just end
        return ExceptionWrapper(where="in the process that iterates a DataLoader")  # type: ignore[no-untyped-call]
    return batch
