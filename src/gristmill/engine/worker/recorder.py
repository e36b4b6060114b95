"""The flight recorder of a worker process: what it is doing, readable after its death.

One anonymous page range shared by parent and worker (a memfd, or an unlinked file where there is none). A note costs a
memory write instead of a message: 0.2 µs an item. Layout:

    0   float64  start of the current item (CLOCK_MONOTONIC, the same for all processes); +inf: no timeout runs,
                 and the largest number: it waits for another item
    8   int64    number of the current item, -1 when there is none
    16  int64    position inside the item that the function reported, -1 when it reported none
    24  float64  the start again: while the two differ, the worker is in the middle of a note
    32  int64    records of the current item so far
    40  int64    bytes of its input so far
    48  ...      text that faulthandler wrote at a fatal signal
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from time import monotonic

SIZE = 64 * 1024
_NOTE = struct.Struct("@dqqd")
_TIME = struct.Struct("@d")
_ITEM_AND_POSITION = struct.Struct("@qq")
_POSITION = struct.Struct("@qd")
_COUNTS = struct.Struct("@qq")
_NEVER = float("inf")
_PAUSED = sys.float_info.max
EMPTY_NOTE = _NOTE.pack(_NEVER, -1, -1, _NEVER) + _COUNTS.pack(0, 0)
"""The first bytes of a recording in which nothing is noted."""

Note = tuple[float, int, int]
"""The start of the item, its number, and the position inside it."""


class Recorder:
    """One worker's recording. Both processes map the same file; the worker writes, the parent reads, without a lock."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE)

    def note(self, started: float, item: int, position: int = -1) -> None:
        """Record the current item."""
        # Not pack_into: it clears the target first, and all zeros look like item 0 started long ago.
        self._memory[0:32] = _NOTE.pack(started, item, position, started)

    def note_position(self, position: int) -> None:
        """Record the position inside the current item; its timeout counts from now."""
        now = monotonic()
        # First the start, last its copy: a reader between the two writes sees that they differ.
        self._memory[0:8] = _TIME.pack(now)
        self._memory[16:32] = _POSITION.pack(position, now)

    def note_counts(self, num_records: int, num_bytes: int) -> None:
        """Record how far the current item is, for those who do not receive its counters before its result."""
        self._memory[32:48] = _COUNTS.pack(num_records, num_bytes)

    def read_counts(self) -> tuple[int, int]:
        """Return the records and the bytes of the current item so far."""
        num_records, num_bytes = _COUNTS.unpack_from(self._memory, 32)
        return num_records, num_bytes

    def stop_clock(self) -> None:
        """Stop the item's timeout: what the worker does now for the item is not the item's fault."""
        self._memory[0:8] = self._memory[24:32] = _TIME.pack(_NEVER)

    def pause_clock(self) -> None:
        """Let no time pass for the item: it waits for another one. Unlike after `stop_clock` no data need arrive."""
        self._memory[0:8] = self._memory[24:32] = _TIME.pack(_PAUSED)

    def restart_clock(self) -> None:
        """Let the item's timeout count from now."""
        self._memory[0:8] = self._memory[24:32] = _TIME.pack(monotonic())

    def note_idle(self) -> None:
        """Record that the worker has no item."""
        self.note(_NEVER, -1)

    def read(self) -> Note:
        """Return `(started, item, position)`. A worker that is just starting an item, or died doing so, is not late."""
        # Read backwards: if the last value written still agrees with the first, nothing came between. If not, a note is
        # being written, and the later time is the one that counts.
        (started_copy,) = _TIME.unpack_from(self._memory, 24)
        item, position = _ITEM_AND_POSITION.unpack_from(self._memory, 8)
        (started,) = _TIME.unpack_from(self._memory, 0)
        return max(started, started_copy), item, position

    def read_crash_text(self) -> str:
        """Return the Python stack that faulthandler wrote at a fatal signal; empty if there was none."""
        return self._memory[len(EMPTY_NOTE) :].rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Unmap the file of the recording."""
        self._memory.close()


def create_recording() -> int:
    """Create a file of `SIZE` bytes without a name, which vanishes with its last holder; return its descriptor."""
    if sys.platform == "linux":
        fd = os.memfd_create("gristmill-recorder", os.MFD_CLOEXEC)
    else:
        import tempfile  # noqa: PLC0415  (not needed in workers, which import this module)

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    # Written, not just sized: a store to a hole on a full disk would be SIGBUS.
    os.write(fd, EMPTY_NOTE.ljust(SIZE, b"\0"))
    # faulthandler writes at the file's position.
    os.lseek(fd, len(EMPTY_NOTE), os.SEEK_SET)
    return fd
