"""Batches from a worker of a DataLoader to its parent through slots of memory that both have mapped.

torch sends each tensor as a file descriptor: a new segment, a new socket and a handshake, 1.2 of the 1.4 ms that a
message takes. Here a worker makes one `memfd` with many slots, sized by its first batch, and a message is a ticket:
which slot, and where the tensors are in it. Unpickling a ticket in the parent copies the tensors into fresh memory
and frees the slot at once, so a batch never depends on its worker.

    worker:  batch ─copy─▶ slot (flag 1) ─ticket─▶ queue
    parent:  ticket ─copy─▶ fresh tensors, slot free (flag 0)

Neither side ever waits for a slot. If none is free, or a batch is too large, torch sends the tensors its own way. A
memfd has no name, so nothing remains when either side is killed. The parent opens it as `/proc/<worker>/fd/<n>`. Slots
that were never used take no memory, and the lowest free one is used first. Systems other than Linux send all tensors as
torch does.

Batches are not made in their slot: the copy takes 40 of the 370 microseconds that a worker spends on a batch of 512
KiB, and keeping slots until the last array in them is gone cost more than it.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import sys
import weakref
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gristmill.core.errors import UsageError
from gristmill.stream.collate import Batch
from gristmill.stream.torch.ranks import make_pinned_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_NUM_SLOTS = 64
_ROOM = 4
"""A slot has room for this many times the first batch: rows that differ in length make batches of different sizes."""
_PAGE = mmap.PAGESIZE
"""The first page holds the flags of the slots."""
_ALIGNMENT = 64
_TYPES = {
    getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
"""The types of tensors that NumPy has too."""
_rings: dict[RingPlace, mmap.mmap] = {}
"""The rings that this process has mapped."""

Place = tuple[str, str, tuple[int, ...], int]
"""The name, type and shape of a tensor, and where it begins in its slot."""


class RingPlace(NamedTuple):
    """The place where the parent finds the ring of a worker."""

    process: int
    fd: int
    """The descriptor of the ring in the worker."""
    name: str
    """A unique name: a later process may have the same number."""


class Ticket(NamedTuple):
    """The message that a worker sends instead of tensors."""

    ring: RingPlace
    slot: int
    slot_bytes: int
    places: list[Place]
    rest: dict[str, Any]
    """The items of the batch that are not in the slot."""
    attributes: dict[str, Any]


class WorkerRing:
    """The slots of one worker process."""

    def __init__(self, batch_bytes: int) -> None:
        self.slot_bytes = -(-batch_bytes * _ROOM // _PAGE) * _PAGE
        name = f"gristmill-batches-{os.urandom(8).hex()}"
        self.place = RingPlace(os.getpid(), os.memfd_create(name, os.MFD_CLOEXEC), name)
        os.ftruncate(self.place.fd, _PAGE + _NUM_SLOTS * self.slot_bytes)
        self._memory = mmap.mmap(self.place.fd, 0)

    def copy_in(self, arrays: dict[str, NDArray[Any]]) -> tuple[int, list[Place]] | None:
        """Copy arrays into the lowest free slot; None: there is none."""
        slot = self._memory[:_NUM_SLOTS].find(0)
        if slot < 0:
            return None
        self._memory[slot] = 1
        places, offset = [], 0
        for name, array in arrays.items():
            np.ndarray(array.shape, array.dtype, self._memory, _PAGE + slot * self.slot_bytes + offset)[...] = array
            places.append((name, array.dtype.str, array.shape, offset))
            offset += _align(array.nbytes)
        return slot, places


class BatchSender:
    """Sends the batches of this process, a worker of a DataLoader, through a ring."""

    def __init__(self) -> None:
        self.ring: WorkerRing | None = None
        """None: there was no batch yet, or there is no memory for one."""
        self._can_have_ring = True

    def reduce_batch(self, batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        """Reduce a batch to a ticket; called when it is put into a queue between processes."""
        arrays = {name: value.numpy() for name, value in batch.items() if _can_send(value)}
        num_bytes = sum(_align(array.nbytes) for array in arrays.values())
        ring = self._open_ring(num_bytes) if arrays else None
        copied = ring.copy_in(arrays) if ring is not None and num_bytes <= ring.slot_bytes else None
        if ring is None or copied is None:
            return _make_batch, (dict(batch), batch.__dict__)
        rest = {name: value for name, value in batch.items() if name not in arrays}
        slot, places = copied
        return _redeem, tuple(Ticket(ring.place, slot, ring.slot_bytes, places, rest, batch.__dict__))

    def _open_ring(self, num_bytes: int) -> WorkerRing | None:
        if self.ring is None and self._can_have_ring:
            try:
                self.ring = WorkerRing(num_bytes)
            except OSError:  # no descriptor or no memory is left for it: torch's own way may still work
                self._can_have_ring = False
        return self.ring


def send_by_ring() -> None:
    """Send the batches of this process, a worker of a DataLoader, through a ring, if this system has one."""
    if sys.platform == "linux":
        _register_sender(os.getpid())


@cache
def _register_sender(process: int) -> None:  # noqa: ARG001  (one for each process: a forked one has none yet)
    # Only the pickler of queues between processes: a user's own pickle of a batch holds its tensors.
    ForkingPickler.register(Batch, BatchSender().reduce_batch)


def _align(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _can_send(value: Any) -> bool:
    """Whether a value is a tensor that could be a NumPy array."""
    return (
        type(value) is torch.Tensor
        and value.dtype in _TYPES
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.numel() > 0
        and not value.requires_grad
        and not value.is_neg()
    )


def _make_batch(items: dict[str, Any], attributes: dict[str, Any]) -> Batch:
    batch = Batch(items)
    batch.__dict__.update(attributes)
    return batch


def _redeem(*fields: Any) -> Batch:
    """Copy the tensors of a ticket out of their slot, and free it."""
    ticket = Ticket(*fields)
    memory = _map_ring(ticket.ring)
    start = _PAGE + ticket.slot * ticket.slot_bytes
    # Not with torch, which would start threads to copy so little.
    new: Callable[..., Any] = make_pinned_array if torch.cuda.is_initialized() else np.empty  # type: ignore[no-untyped-call]
    items = {}
    for name, dtype, shape, offset in ticket.places:
        array = new(shape, dtype)
        np.copyto(array, np.ndarray(shape, dtype, memory, start + offset))
        items[name] = torch.from_numpy(array)
    memory[ticket.slot] = 0
    return _make_batch({**items, **ticket.rest}, ticket.attributes)


def _map_ring(place: RingPlace) -> mmap.mmap:
    """Map the ring of a worker process, once. It is unmapped when the worker's process object is gone."""
    if (mapped := _rings.get(place)) is not None:
        return mapped
    try:
        fd = os.open(f"/proc/{place.process}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if f"/memfd:{place.name} " not in os.fspath(Path(f"/proc/self/fd/{fd}").readlink()):
                raise OSError("another process has its number now")
            memory = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(
            f"the memory of the loader worker {place.process} cannot be opened: {error}",
            help="if no worker was killed, read the DataLoader in the process that made it",
        ) from error
    _rings[place] = memory
    for process in multiprocessing.active_children():
        if process.pid == place.process:
            weakref.finalize(process, _rings.pop, place, None).atexit = False
    return memory
