"""Samples of a WebDataset tar: members with the same name up to the first dot, one after the other.

`text: txt` names a member by its extension; `text: json.content` a field of a JSON member; `__key__` is the name
itself. Members that no column needs are skipped and never held in memory.

A compressed tar is read member by member as it is decompressed; plain ones have an index (`storage.tar_index`).
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, cast

from gristmill.core.errors import CorruptStreamError
from gristmill.core.json_values import with_new_value
from gristmill.core.records import KEY, TEXT, QuarantinedRecord
from gristmill.readers.cells import StreamDamage
from gristmill.storage.tar_scan import BLOCK, CUT, TarScan, is_origin_key, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.readers.read import Read
    from gristmill.storage.tar_scan import TarMember


JSON = "json"
_JSON_FIELD = re.compile(r"(.*?json)\.(.+)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")


class MemberPath(NamedTuple):
    """The place of a column in a sample: a member's extension, and a field if that member is JSON."""

    member: str
    field: str | None

    @classmethod
    def parse(cls, path: str) -> MemberPath:
        """Parse a column's path.

        >>> MemberPath.parse("seg.txt"), MemberPath.parse("meta.json.a.b")
        (MemberPath(member='seg.txt', field=None), MemberPath(member='meta.json', field='a.b'))
        """
        match = _JSON_FIELD.fullmatch(path)
        return cls(match[1].lower(), match[2]) if match else cls(path.lower(), None)


def is_json_member(extension: str) -> bool:
    """Whether a member is JSON, by its extension: `json`, `meta.json`."""
    return extension.rpartition(".")[2] == JSON


def member_path(read: Read, column: str) -> MemberPath:
    """Return the place of a column. Tars of a finished dataset hold the text as `.txt`, other columns in `.json`."""
    if read.format != "gristmill":
        return MemberPath.parse(column)
    return MemberPath("txt", None) if column == TEXT else MemberPath(JSON, column)


class TarMembers(Protocol):
    """A tar, as a stream or by its index."""

    def members(self) -> Iterator[TarMember]:
        """Yield the headers, in order, and what lies between them that cannot be read."""

    def content(self, member: TarMember, /) -> bytes | None:
        """Return the bytes of the member that was yielded last; None if the tar ends in it."""


@dataclass(slots=True)
class TarSample:
    """The needed members of one sample."""

    key: str
    position: int
    """The number of its first member in the file."""
    cell: int
    members: dict[str, bytes] = field(default_factory=dict)
    too_large: dict[str, int] = field(default_factory=dict)
    """The sizes of members that were not read because they are too large."""

    def has_all(self, names: frozenset[str]) -> bool:
        """Whether it has members with these extensions."""
        return names <= {KEY, *self.members, *self.too_large}

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.members.values())) + sum(self.too_large.values())


def add_members_to_json(sample: TarSample) -> None:
    """Put all members of a finished dataset's sample into its `.json`: bytes as base64, and the sample's own key.

    So the record has every column, as in JSON lines.
    """
    raw = sample.members.get(JSON, b"{}")
    extra = {name: content for name, content in sample.members.items() if name not in ("txt", JSON)}
    try:
        for name, content in extra.items():
            raw = with_new_value(raw, name, base64.b64encode(content).decode())
        if not is_origin_key(sample.key):
            raw = with_new_value(raw, KEY, sample.key)
    except ValueError:
        return  # a member that is not a JSON object is quarantined later
    sample.members[JSON] = raw


@dataclass(slots=True)
class StrayMember:
    """A member that is quarantined and belongs to no sample."""

    cell: int
    record: QuarantinedRecord


@dataclass(slots=True)
class SkippedMember:
    """A link, a device, a sparse file or a name without an extension: in no sample, so it is counted and left out."""

    cell: int


class TarSampleWalk:
    """A walk through the samples of a tar; without `needed` all members are read."""

    def __init__(
        self,
        stream: TarMembers,
        file: int,
        needed: frozenset[str] | None,
        most: int,
        cell_bytes: int,
        *,
        first_member: int = 0,
        first_cell: int = 0,
        cells: range | None = None,
        expected: frozenset[str] = frozenset(),
    ) -> None:
        """Start at member `first_member`, the first of `stream`, which begins cell `first_cell`.

        With `cells`, nothing is read of other cells, and the walk ends after them. A sample next to damage is complete
        if it has the members that are needed and those that are `expected`.
        """
        self.num_members = first_member
        """After the last sample: the number of all members."""
        self.is_ended = False
        """Whether the end of the tar was reached."""
        self._cell = first_cell
        self._cells = cells
        self._stream = stream
        self._file = file
        self._needed = needed
        self._max_record_bytes = most
        self._cell_bytes = cell_bytes
        self._seen_bytes = 0
        self._complete = expected if needed is None else needed

    def walk(self) -> Iterator[TarSample | StrayMember | SkippedMember]:
        sample: TarSample | None = None
        is_after_damage = False  # whether the sample may lack members
        for member in self._stream.members():
            position = self.num_members
            self.num_members += 1
            name = _sample_name(member)
            if member.is_lost():
                if sample is not None and sample.has_all(self._complete):
                    yield sample
                    sample = None
                yield StrayMember(self._cell, self._lose(member, position, sample))
                sample, is_after_damage = None, True
            elif name is None or not member.isreg():
                if not _is_note(member):
                    yield SkippedMember(self._cell)
            else:
                key, extension = name
                fault = _find_fault(member)
                if fault is None and (sample is None or sample.key != key):
                    if sample is not None:
                        yield self._check(sample) if is_after_damage else sample
                        is_after_damage = False
                    # A sample after damage is in the cell of the damage, so that all who read it know of it.
                    if not is_after_damage and self._seen_bytes >= self._cell_bytes:
                        self._cell += 1
                        self._seen_bytes = 0
                    if self._cells is not None and self._cell >= self._cells.stop:
                        return
                    sample = TarSample(key, position, self._cell)
                if fault is None and sample is not None and extension in (*sample.members, *sample.too_large):
                    fault = "duplicate_member", f"{member.name!r} occurs twice"
                if fault is not None:
                    yield StrayMember(self._cell, QuarantinedRecord(self._file, position, 0, *fault, None, member.size))
                elif sample is not None and (self._needed is None or extension in self._needed) and self._is_wanted():
                    self._take(member, extension, sample)
            self._seen_bytes += BLOCK + member.size  # a header counts, or a million empty members were one cell
        if sample is not None:
            yield self._check(sample) if is_after_damage else sample
        self.is_ended = True

    def _lose(self, part: TarMember, position: int, sample: TarSample | None) -> QuarantinedRecord:
        """Make the entry of a damaged part of the tar, with what is left of the sample before it."""
        num_bytes, message = part.size, part.name
        if sample is not None:
            position, num_bytes = sample.position, num_bytes + sample.num_bytes
            message = f"{sample.key}: a member is missing: {message}"
        reason = "truncated_stream" if part.kind == CUT else "invalid_tar"
        return QuarantinedRecord(self._file, position, 0, reason, message, num_bytes=num_bytes, is_unread=True)

    def _check(self, sample: TarSample) -> TarSample | StrayMember:
        """Return a sample that follows damage, or its entry if it is not complete."""
        if sample.has_all(self._complete) or not self._is_wanted():
            return sample
        message = f"{sample.key}: a member is missing: the tar is damaged before it"
        return StrayMember(
            sample.cell,
            QuarantinedRecord(
                self._file, sample.position, 0, "invalid_tar", message, num_bytes=sample.num_bytes, is_unread=True
            ),
        )

    def _is_wanted(self) -> bool:
        return self._cells is None or self._cell >= self._cells.start

    def _take(self, member: TarMember, extension: str, sample: TarSample) -> None:
        if member.size > self._max_record_bytes:
            sample.too_large[extension] = member.size
        elif (content := self._stream.content(member)) is not None:
            sample.members[extension] = content


def _sample_name(member: TarMember) -> tuple[str, str] | None:
    """Return key and extension; None for folders, WebDataset's own notes and names without a dot."""
    if _is_note(member):
        return None
    # Bytes of a name that are not UTF-8 become escapes such as \xff: columns hold text.
    name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    parts = split_sample_name(name)
    return (parts[0], parts[1].lower()) if parts else None


def _is_note(member: TarMember) -> bool:
    """Whether a member is no data: a folder, or one of WebDataset's own notes."""
    return member.isdir() or _META.match(member.name) is not None


def _find_fault(member: TarMember) -> tuple[str, str] | None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return "unsafe_name", f"{member.name!r} points outside the archive"
    return None


class _ChunkFile:
    """Chunks as a file that is read in order. It can go back to where it was read last. A damaged stream just ends."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.damage: StreamDamage | None = None
        self._chunks = chunks
        self._held = bytearray()
        self._start = self._position = 0
        self._is_ended = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            while self._fetch():
                self._start += len(self._held)
                self._held.clear()
            offset += self._start + len(self._held)
        self._position = offset
        return offset

    def read(self, size: int) -> bytes:
        while True:
            num_passed = min(self._position - self._start, len(self._held))
            del self._held[:num_passed]
            self._start += num_passed
            if self._start + len(self._held) >= self._position + size or not self._fetch():
                break
        data = bytes(self._held[:size]) if self._start == self._position else b""
        self._position += len(data)
        return data

    def _fetch(self) -> bool:
        try:
            chunk = b"" if self._is_ended else next(self._chunks, b"")
        except CorruptStreamError as error:
            self.damage, chunk = StreamDamage.from_error(error), b""
        self._is_ended = not chunk
        self._held += chunk
        return bool(chunk)


class TarStream(TarScan):
    """The members of a tar that comes in chunks, in order. Contents of more than `max_bytes` are not held."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int) -> None:
        self._chunk_file = _ChunkFile(chunks)
        super().__init__(cast("BinaryIO", self._chunk_file))
        self._max_bytes = max_bytes

    @property
    def damage(self) -> StreamDamage | None:
        """The damage that has ended the compressed stream, if there is any."""
        return self._chunk_file.damage

    def _holds(self, start: int, stop: int) -> bool:
        if stop <= self._start + len(self._window):
            return True
        if stop - start > self._max_bytes:
            start = stop - 1
        self._chunk_file.seek(start)
        return len(self._chunk_file.read(stop - start)) == stop - start
