"""WebDataset shards: tars in which consecutive members with the same key are a sample.

The key is the record's own (`__key__`) or its origin. The text is `.txt`, columns of bytes are members under their
names, everything else is in `.json`. Columns that were read from members of samples are written as the same members
(`tar_members`); the side file of such a shard also has the bytes of each sample, so any of them is read with one seek.

Headers are plain ustar with time, owner and device 0, so the bytes depend on the records alone. They are filled into a
template: `tarfile` takes about ten times as long for each.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.media import EXTENSION_NAME, is_bytes
from gristmill.core.records import KEY, ORIGIN, RECORD, TEXT
from gristmill.shards.formats.jsonl import decode_record, to_json_rows
from gristmill.storage.tar_index import PlainTar, index_tar
from gristmill.storage.tar_scan import is_origin_key, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from gristmill.shards.formats.base import ShardRecord
    from gristmill.shards.formats.tar_members import MemberLayout
    from gristmill.storage.tar_index import TarIndex
    from gristmill.storage.tar_scan import TarMember

BLOCK = 512
_NAME_BYTES = 100
_PREFIX_BYTES = 155
# Names that webdataset reads back unchanged: it lowercases extensions.
_META = re.compile(r"__[^/]*__($|/)")
_MAX_MEMBER_BYTES = 8**11 - 1
# The fields that are the same in all headers. The checksum is computed as if its own field were spaces.
_MODE_TO_SIZE = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - 156, b"\0")
_FIXED_SUM = sum(_MODE_TO_SIZE) + sum(_TIME) + sum(b" " * 8) + sum(_AFTER_CHECKSUM)


@dataclass(frozen=True, slots=True)
class TarEncoder:
    """An `Encoder` of WebDataset tars."""

    schema: pa.Schema
    has_record: bool
    """Whether `.json` is the record as it was read; if not, it is made from the columns other than the text."""
    suffix: str = ".tar"
    concatenates: bool = True
    holds_origins: bool = False
    layout: MemberLayout | None = None
    """The members of samples; None: records are documents."""

    def header(self) -> bytes:
        return b""

    def block(self, batch: pa.RecordBatch) -> bytes:
        return self.block_after(batch, None)[0]

    def block_after(self, batch: pa.RecordBatch, previous: str | None) -> tuple[bytes, str | None]:
        """Encode records that follow one with the key `previous`; return the block and the key of its last record."""
        keys = self._choose_keys(batch, previous)
        if self.layout is None:
            pieces = self._encode_members(batch, keys)
        else:
            pieces = itertools.chain.from_iterable(self._encode_samples(batch, keys))
        return b"".join(pieces), keys[-1] if keys else previous

    def sized_block_after(
        self, batch: pa.RecordBatch, previous: str | None
    ) -> tuple[list[bytes], str | None, list[int]]:
        """Like `block_after`, in pieces and with the bytes of each sample."""
        keys = self._choose_keys(batch, previous)
        pieces: list[bytes] = []
        sizes = []
        for sample in self._encode_samples(batch, keys):
            sizes.append(sum(map(len, sample)))
            pieces += sample
        return pieces, keys[-1] if keys else previous, sizes

    def footer(self) -> bytes:
        return bytes(2 * BLOCK)

    @property
    def binary_columns(self) -> list[str]:
        """The columns whose values are separate members."""
        return [field.name for field in self.schema if is_bytes(field.type) and EXTENSION_NAME.fullmatch(field.name)]

    def _encode_members(self, batch: pa.RecordBatch, keys: list[str]) -> Iterator[bytes]:
        texts = batch.column(TEXT).to_pylist() if TEXT in self.schema.names else None
        json_members = self._encode_json(batch, keys)
        binary_columns = {name: batch.column(name) for name in self.binary_columns}
        for row, key in enumerate(keys):
            if texts is not None:
                yield from encode_member(f"{key}.txt", (texts[row] or "").encode())
            if (content := json_members[row]) is not None:
                yield from encode_member(f"{key}.json", content)
            for name, column in binary_columns.items():
                if column[row].is_valid:
                    yield from encode_member(f"{key}.{name}", column[row].as_py())

    def _encode_samples(self, batch: pa.RecordBatch, keys: list[str]) -> Iterator[list[bytes]]:
        """Encode each sample as the pieces of its members."""
        assert self.layout is not None
        own_keys = batch.column(KEY).to_pylist() if KEY in self.schema.names else [None] * len(keys)
        # A reader takes a name that looks like an origin for no key at all.
        stored_keys = [
            own if own != key or is_origin_key(key) else None for own, key in zip(own_keys, keys, strict=True)
        ]
        for key, sample in zip(keys, self.layout.encode(batch, stored_keys), strict=True):
            yield [piece for name, content in sample.items() for piece in encode_member(f"{key}.{name}", content)]

    def _choose_keys(self, batch: pa.RecordBatch, previous: str | None) -> list[str]:
        """Choose the records' own keys where possible, else their origins: two neighbours must differ."""
        columns = [batch.column(ORIGIN).field(name).to_pylist() for name in ("file", "position", "part")]
        keys = [f"{file:016x}-{position:012d}-{part}" for file, position, part in zip(*columns, strict=True)]
        if KEY not in self.schema.names:
            return keys
        longest = max(map(len, ("json", *self.binary_columns)))
        if self.layout is not None:
            longest = self.layout.longest_extension
        for row, own_key in enumerate(batch.column(KEY).to_pylist()):
            if own_key is not None and own_key != previous and _can_be_key(own_key, longest):
                keys[row] = own_key
            previous = keys[row]
        return keys

    def _encode_json(self, batch: pa.RecordBatch, keys: list[str]) -> Sequence[bytes | None]:
        """Encode each sample's `.json`, None if it has none.

        It holds the record's own key where the sample is named otherwise.
        """
        if self.has_record:
            records: list[bytes] = batch.column(RECORD).to_pylist()
            return records
        members = {ORIGIN, TEXT, KEY, *self.binary_columns}
        names = [name for name in self.schema.names if name not in members]
        is_needed = bool(names) or not (TEXT in self.schema.names or self.binary_columns)
        rows = list(to_json_rows(batch, names))
        if KEY in self.schema.names:
            for row, own, key in zip(rows, to_json_rows(batch, [KEY]), keys, strict=True):
                # A reader takes a name that looks like an origin for no key at all.
                if own[KEY] is not None and (own[KEY] != key or is_origin_key(key)):
                    row.update(own)
        return [msgspec.json.encode(row) if row or is_needed else None for row in rows]


def encode_member(name: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Encode one file in a tar: its header, content and padding."""
    if len(data) > _MAX_MEMBER_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes; a tar member holds less than 8 GiB")
    encoded, prefix, after = name.encode(), b"", _AFTER_CHECKSUM
    if len(encoded) > _NAME_BYTES:  # folders have a separate field, 189 bytes after the checksum
        prefix, encoded = _split_name(encoded)
        after = after[:189] + prefix + after[189 + len(prefix) :]
    size = b"%011o\0" % len(data)
    checksum = _FIXED_SUM + sum(encoded) + sum(prefix) + sum(size)
    header = b"".join((encoded.ljust(100, b"\0"), _MODE_TO_SIZE, size, _TIME, b"%06o\0 " % checksum, after))
    return header, data, bytes(-len(data) % BLOCK)


def _split_name(name: bytes) -> tuple[bytes, bytes]:
    """Split a name that is too long for one field into its folders and the rest."""
    slash = name.find(b"/", len(name) - _NAME_BYTES - 1)
    if not 0 < slash <= _PREFIX_BYTES:
        raise ValueError(f"{name!r} is too long for a tar")
    return name[:slash], name[slash + 1 :]


def _can_be_key(key: str, longest: int) -> bool:
    """Tell whether a sample can have this name: it ends at the first dot, and must fit in a header."""
    name_parts = split_sample_name(f"{key}.json")
    if name_parts is None or name_parts[0] != key or "\0" in key or key.startswith("/") or ".." in key.split("/"):
        return False
    if _META.match(key):
        return False
    try:
        encoded = key.encode() + b"." + bytes(longest)
        return len(encoded) <= _NAME_BYTES or bool(_split_name(encoded))
    except ValueError:  # too long, or a lone surrogate
        return False


class TarShard:
    """A tar of samples. Rows in order are one scan; the first row at random builds an index of the members."""

    def __init__(self, path: Path, layout: MemberLayout | None = None) -> None:
        self._path = str(path)
        self._index: tuple[TarIndex, list[int]] | None = None
        self._layout = layout

    def row(self, index: int) -> ShardRecord:
        if self._index is None:
            members = index_tar(self._path)
            self._index = members, [*_find_sample_starts(members.members()), len(members)]
        members, starts = self._index
        if index + 1 >= len(starts):
            raise EOFError(f"row {index} of a shard that has {len(starts) - 1}")
        with PlainTar(self._path, members) as tar:
            return self._decode(_read_contents(tar, members.members(starts[index], starts[index + 1])))

    def rows(self) -> Iterator[ShardRecord]:
        with PlainTar(self._path) as tar:
            for _, members in itertools.groupby(tar.members(), _get_key):
                yield self._decode(_read_contents(tar, members))
            _refuse_damage(tar)

    def count_rows(self) -> int:
        with PlainTar(self._path) as tar:
            count = sum(1 for _ in _find_sample_starts(tar.members()))
            _refuse_damage(tar)
        return count

    def _decode(self, contents: dict[str, bytes]) -> ShardRecord:
        return _decode_sample(contents) if self._layout is None else decode_laid_out(contents, self._layout)


def decode_laid_out(contents: dict[str, bytes], layout: MemberLayout) -> ShardRecord:
    """Decode a sample whose columns are members: its contents by extension, with its key."""
    key = contents.pop(KEY).decode()
    record = layout.decode(contents)
    if KEY not in record and not is_origin_key(key):
        record[KEY] = key
    return record


def _decode_sample(contents: dict[str, bytes]) -> ShardRecord:
    """Put a record together: `.json` holds its columns except the text, `.txt`, and those that are members."""
    record = decode_record(contents.pop("json")) if "json" in contents else {}
    key = contents.pop(KEY).decode()
    if not is_origin_key(key):
        record[KEY] = key
    if "txt" in contents:
        record[TEXT] = contents.pop("txt").decode()
    return {**record, **contents}


def _find_sample_starts(members: Iterable[TarMember]) -> Iterator[int]:
    """Find the numbers of the members that begin a sample: those whose key differs from the one before."""
    current = None
    for number, member in enumerate(members):
        key = _get_key(member)
        if key != current:
            yield number
        current = key


def _get_key(member: TarMember) -> str:
    name_parts = split_sample_name(member.name) if member.isreg() else None
    if name_parts is None:
        raise EOFError(f"{member.name!r} is not a member of a sample")
    return name_parts[0]


def _read_contents(tar: PlainTar, members: Iterable[TarMember]) -> dict[str, bytes]:
    """Read the members of a sample by extension, and its key."""
    contents = {}
    for member in members:
        content = tar.content(member)
        if content is None:
            raise EOFError("the tar ends before its end mark")
        key = _get_key(member)
        contents[KEY] = key.encode()
        contents[member.name[len(key) + 1 :]] = content
    return contents


def _refuse_damage(tar: PlainTar) -> None:
    if tar.fault is not None:
        raise EOFError(tar.fault)
