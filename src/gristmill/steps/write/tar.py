"""WebDataset tars: a sample is the members that share a key, and the key is the record's origin.

Headers are plain ustar with time, owner and device 0, so the bytes depend on the records alone. They are filled into a
template: `tarfile` would take about ten times as long for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.records import ORIGIN, RECORD, TEXT
from gristmill.steps.write.jsonl import json_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

BLOCK = 512
_MAX_MEMBER_BYTES = 8**11 - 1
# Up to the size, and from the time on with the checksum taken as spaces: everything that is the same in all headers.
_MODE_TO_SIZE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - 156, b"\0")
_FIXED_SUM = sum(_MODE_TO_SIZE) + sum(_TIME) + sum(b" " * 8) + sum(_AFTER_CHECKSUM)


@dataclass(frozen=True, slots=True)
class TarEncoder:
    """See `Encoder`."""

    schema: pa.Schema
    has_record: bool
    """`.json` is the record as it was read; else it is made of the columns other than the text."""
    suffix: str = ".tar"
    concatenates: bool = True
    holds_origins: bool = False

    def header(self) -> bytes:
        return b""

    def block(self, batch: pa.RecordBatch) -> bytes:
        return b"".join(self._members(batch))

    def footer(self) -> bytes:
        return bytes(2 * BLOCK)

    def _members(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        texts = batch.column(TEXT).to_pylist() if TEXT in self.schema.names else None
        others = self._json(batch)
        for row, key in enumerate(_keys(batch.column(ORIGIN))):
            if texts is not None:
                yield from member(f"{key}.txt", (texts[row] or "").encode())
            if others is not None:
                yield from member(f"{key}.json", others[row])

    def _json(self, batch: pa.RecordBatch) -> list[bytes] | None:
        if self.has_record:
            records: list[bytes] = batch.column(RECORD).to_pylist()
            return records
        names = [name for name in self.schema.names if name not in {ORIGIN, TEXT}]
        if not names and TEXT in self.schema.names:
            return None
        return [msgspec.json.encode(row) for row in json_rows(batch, names)]


def member(name: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, content and padding of one file in a tar."""
    if len(data) > _MAX_MEMBER_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes; a tar member holds less than 8 GiB")
    encoded = name.encode()
    size = b"%011o\0" % len(data)
    checksum = _FIXED_SUM + sum(encoded) + sum(size)
    header = b"".join((encoded.ljust(100, b"\0"), _MODE_TO_SIZE, size, _TIME, b"%06o\0 " % checksum, _AFTER_CHECKSUM))
    return header, data, bytes(-len(data) % BLOCK)


def _keys(origins: pa.StructArray) -> Iterable[str]:
    columns = [origins.field(name).to_pylist() for name in ("file", "position", "part")]
    return (f"{file:016x}-{position:012d}-{part}" for file, position, part in zip(*columns, strict=True))
