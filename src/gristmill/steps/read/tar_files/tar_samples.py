"""Samples of a WebDataset tar: members with the same name up to the first dot, one after the other.

`text: txt` names a member by its extension; `text: json.content` a field of a JSON member; `__key__` is the name
itself. Members that no column needs are skipped and never held in memory.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from tarfile import TarInfo
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gristmill.core.records import KEY, TEXT, QuarantinedRecord
from gristmill.steps.records.json_records import with_new_value
from gristmill.storage.tars.tar_scan import BLOCK, is_origin_key, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.steps.read.read import Read
    from gristmill.storage.tars.tar_scan import TarMember

    Member = TarInfo | TarMember

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

    @property
    def damage(self) -> object | None:
        """After the last member: the damage that ended the tar, if there is any."""

    def members(self) -> Iterator[Any]:
        """Yield the headers, in order."""

    def content(self, member: Any, /) -> bytes | None:
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
    """A walk through the samples of a tar; without `needed` all members are read.

    After the last sample, `num_members`, `cell` and `unfinished` say where it ended.
    """

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
    ) -> None:
        """Start at member `first_member`, the first of `stream`, which begins cell `first_cell`.

        With `cells`, nothing is read of other cells, and the walk ends after them.
        """
        self.num_members = first_member
        self.cell = first_cell
        self._cells = cells
        self.unfinished: TarSample | None = None
        """The sample in which a damaged file ended."""
        self._stream = stream
        self._file = file
        self._needed = needed
        self._max_record_bytes = most
        self._cell_bytes = cell_bytes
        self._seen_bytes = 0

    def walk(self) -> Iterator[TarSample | StrayMember | SkippedMember]:
        sample: TarSample | None = None
        for member in self._stream.members():
            position = self.num_members
            self.num_members += 1
            name = _sample_name(member)
            if name is None or not _is_file(member):
                if not _is_note(member):
                    yield SkippedMember(self.cell)
            else:
                key, extension = name
                fault = _find_fault(member)
                if fault is None and (sample is None or sample.key != key):
                    if sample is not None:
                        yield sample
                    self._start_cell()
                    if self._cells is not None and self.cell >= self._cells.stop:
                        return
                    sample = TarSample(key, position, self.cell)
                if fault is None and sample is not None and extension in (*sample.members, *sample.too_large):
                    fault = "duplicate_member", f"{member.name!r} occurs twice"
                if fault is not None:
                    yield StrayMember(self.cell, QuarantinedRecord(self._file, position, 0, *fault, None, member.size))
                elif sample is not None and (self._needed is None or extension in self._needed) and self._is_wanted():
                    self._take(member, extension, sample)
            self._seen_bytes += BLOCK + member.size  # a header counts, or a million empty members were one cell
        if sample is not None:
            has_all = self._needed is not None and self._needed <= {KEY, *sample.members, *sample.too_large}
            if self._stream.damage is None or has_all:
                yield sample
            else:
                self.unfinished = sample

    def _is_wanted(self) -> bool:
        return self._cells is None or self.cell >= self._cells.start

    def _start_cell(self) -> None:
        if self._seen_bytes >= self._cell_bytes:
            self.cell += 1
            self._seen_bytes = 0

    def _take(self, member: Member, extension: str, sample: TarSample) -> None:
        if member.size > self._max_record_bytes:
            sample.too_large[extension] = member.size
        elif (content := self._stream.content(member)) is not None:
            sample.members[extension] = content


def _sample_name(member: Member) -> tuple[str, str] | None:
    """Return key and extension; None for folders, WebDataset's own notes and names without a dot."""
    if _is_note(member):
        return None
    # Bytes of a name that are not UTF-8 become escapes such as \xff: columns hold text.
    name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    parts = split_sample_name(name)
    return (parts[0], parts[1].lower()) if parts else None


def _is_note(member: Member) -> bool:
    """Whether a member is no data: a folder, or one of WebDataset's own notes."""
    return member.isdir() or _META.match(member.name) is not None


def _find_fault(member: Member) -> tuple[str, str] | None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return "unsafe_name", f"{member.name!r} points outside the archive"
    return None


def _is_file(member: Member) -> bool:
    return member.isreg() and not (isinstance(member, TarInfo) and member.issparse())
