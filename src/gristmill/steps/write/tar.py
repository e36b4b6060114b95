"""WebDataset tars: a sample is the members that share a key: the record's own, `__key__`, or its origin.

The text is `.txt`, columns of bytes are members under their names, all else is in `.json`.

Headers are plain ustar with time, owner and device 0, so the bytes depend on the records alone. They are filled into a
template: `tarfile` would take about ten times as long for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from gristmill.core.records import KEY, ORIGIN, RECORD, TEXT
from gristmill.steps.write.jsonl import json_rows
from gristmill.storage.tar_index import is_origin_key, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BLOCK = 512
_NAME_BYTES = 100
_PREFIX_BYTES = 155
# What webdataset gives back under the same name: it makes extensions small letters.
_EXTENSION = re.compile(r"(?!txt$|json$|__)[a-z0-9_][a-z0-9_.-]{0,30}")
_META = re.compile(r"__[^/]*__($|/)")
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
        return self.block_after(batch, None)[0]

    def block_after(self, batch: pa.RecordBatch, previous: str | None) -> tuple[bytes, str | None]:
        """The block of records that follow one with the key `previous`, and the key of the last of them."""
        keys = self._keys(batch, previous)
        return b"".join(self._members(batch, keys)), keys[-1] if keys else previous

    def footer(self) -> bytes:
        return bytes(2 * BLOCK)

    @property
    def binary_columns(self) -> list[str]:
        """Those that are members of their own."""
        return [field.name for field in self.schema if _is_binary(field.type) and _EXTENSION.fullmatch(field.name)]

    def _members(self, batch: pa.RecordBatch, keys: list[str]) -> Iterator[bytes]:
        texts = batch.column(TEXT).to_pylist() if TEXT in self.schema.names else None
        others = self._json(batch, keys)
        contents = {name: batch.column(name) for name in self.binary_columns}
        for row, key in enumerate(keys):
            if texts is not None:
                yield from encode_member(f"{key}.txt", (texts[row] or "").encode())
            if (other := others[row]) is not None:
                yield from encode_member(f"{key}.json", other)
            for name, column in contents.items():
                if column[row].is_valid:
                    yield from encode_member(f"{key}.{name}", column[row].as_py())

    def _keys(self, batch: pa.RecordBatch, previous: str | None) -> list[str]:
        """The records' own keys where they can be used, else their origins: two neighbours must differ."""
        keys = list(_origin_keys(batch.column(ORIGIN)))
        if KEY not in self.schema.names:
            return keys
        longest = max(map(len, ("json", *self.binary_columns)))
        for row, own in enumerate(batch.column(KEY).to_pylist()):
            if own is not None and own != previous and _is_key(own, longest):
                keys[row] = own
            previous = keys[row]
        return keys

    def _json(self, batch: pa.RecordBatch, keys: list[str]) -> Sequence[bytes | None]:
        """The `.json` of each sample, if it has one; with the record's own key where the sample has another name."""
        if self.has_record:
            records: list[bytes] = batch.column(RECORD).to_pylist()
            return records
        members = {ORIGIN, TEXT, KEY, *self.binary_columns}
        names = [name for name in self.schema.names if name not in members]
        is_needed = bool(names) or not (TEXT in self.schema.names or self.binary_columns)
        rows = list(json_rows(batch, names))
        if KEY in self.schema.names:
            for row, own, key in zip(rows, json_rows(batch, [KEY]), keys, strict=True):
                # Who reads it takes a name like an origin for no key at all.
                if own[KEY] is not None and (own[KEY] != key or is_origin_key(key)):
                    row.update(own)
        return [msgspec.json.encode(row) if row or is_needed else None for row in rows]


def encode_member(name: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, content and padding of one file in a tar."""
    if len(data) > _MAX_MEMBER_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes; a tar member holds less than 8 GiB")
    encoded, prefix, after = name.encode(), b"", _AFTER_CHECKSUM
    if len(encoded) > _NAME_BYTES:  # folders may stand in a field of their own, 189 bytes behind the checksum
        prefix, encoded = _split_name(encoded)
        after = after[:189] + prefix + after[189 + len(prefix) :]
    size = b"%011o\0" % len(data)
    checksum = _FIXED_SUM + sum(encoded) + sum(prefix) + sum(size)
    header = b"".join((encoded.ljust(100, b"\0"), _MODE_TO_SIZE, size, _TIME, b"%06o\0 " % checksum, after))
    return header, data, bytes(-len(data) % BLOCK)


def _origin_keys(origins: pa.StructArray) -> Iterable[str]:
    columns = [origins.field(name).to_pylist() for name in ("file", "position", "part")]
    return (f"{file:016x}-{position:012d}-{part}" for file, position, part in zip(*columns, strict=True))


def _split_name(name: bytes) -> tuple[bytes, bytes]:
    """Folders and the rest of a name too long for one field."""
    place = name.find(b"/", len(name) - _NAME_BYTES - 1)
    if not 0 < place <= _PREFIX_BYTES:
        raise ValueError(f"{name!r} is too long for a tar")
    return name[:place], name[place + 1 :]


def _is_key(key: str, longest: int) -> bool:
    """Whether a sample can have this name: it is split from extensions at the first dot, and must fit in a header."""
    found = split_sample_name(f"{key}.json")
    if found is None or found[0] != key or "\0" in key or key.startswith("/") or ".." in key.split("/"):
        return False
    if _META.match(key):
        return False
    try:
        encoded = key.encode() + b"." + bytes(longest)
        return len(encoded) <= _NAME_BYTES or bool(_split_name(encoded))
    except ValueError:  # too long, or half a character
        return False


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
