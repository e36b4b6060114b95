"""A tar stream, read member by member, that distinguishes every way in which it can end.

`tarfile` silently stops at a damaged header in the middle of an archive, at a missing end mark, and at the end mark of
the first of several concatenated archives. Here the first two are damage, and the third continues with the next
archive. This is for compressed tars, which can only be read in order; plain ones have an index (`storage.tar_index`).
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any, cast

from gristmill.core.errors import CorruptStreamError
from gristmill.steps.read.cells import StreamDamage
from gristmill.storage.tars.tar_scan import TAR_FAULTS, check_size, make_checked_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO


_MAX_READS_BEHIND_END = 4
"""How many empty reads end the stream: `tarfile` skips a member in reads of 10 KiB, even if its header claims 2**80
bytes."""


class _ChunkStream:
    """Chunks with the `read` method that tarfile needs. A damaged stream just ends, and `error` is set."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.error: CorruptStreamError | None = None
        self.num_bytes = 0
        self._chunks = chunks
        self._held = b""
        self._reads_behind_end = 0

    def read(self, size: int) -> bytes:
        pieces = []
        while size > 0:
            if not self._held and not self._fetch():
                break
            piece, self._held = self._held[:size], self._held[size:]
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        self.num_bytes += len(data)
        self._reads_behind_end = 0 if data else self._reads_behind_end + 1
        if self._reads_behind_end > _MAX_READS_BEHIND_END:
            raise EOFError("the tar file is truncated")
        return data

    def _fetch(self) -> bool:
        try:
            self._held = next(self._chunks, b"")
        except CorruptStreamError as error:
            self.error = error
        return bool(self._held)


class TarStream:
    """The members of a tar file, in order; afterwards `damage` is set if the end was not reached."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.damage: StreamDamage | None = None
        self._stream = _ChunkStream(chunks)
        self._archive: tarfile.TarFile | None = None
        self._end_marked = False

    def members(self) -> Iterator[tarfile.TarInfo]:
        fault: str | None = None
        try:
            # No context manager: there is nothing to close, and the stream belongs to the caller.
            self._archive = tarfile.open(  # noqa: SIM115
                fileobj=cast("IO[bytes]", self._stream),
                mode="r|",
                tarinfo=make_checked_header(self._note_end),
                ignore_zeros=True,
            )
            while (member := self._archive.next()) is not None:
                check_size(member)
                self._end_marked = False
                yield member
                cast("Any", self._archive).members.clear()  # tarfile keeps every header it has seen
        except TAR_FAULTS as error:
            fault = str(error)
        if self._stream.error is not None:
            self.damage = StreamDamage.from_error(self._stream.error)
        elif self._stream.num_bytes and not self._end_marked:
            self.damage = StreamDamage("truncated_stream", fault or "the tar file has no end mark")

    def content(self, member: tarfile.TarInfo) -> bytes | None:
        """Return the bytes of the member that was yielded last; None if the stream ends in them."""
        assert self._archive is not None
        opened = self._archive.extractfile(member)
        assert opened is not None
        try:
            return opened.read()
        except (tarfile.TarError, EOFError):
            return None

    def _note_end(self) -> None:
        self._end_marked = True
