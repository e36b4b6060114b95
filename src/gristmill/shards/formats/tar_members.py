"""Samples in tars: which member of its sample each column is, so that a tar of samples is written as it was read.

A column that was read from a member is written as that member. A text that was read from a field of a JSON member is
written into that field, so it is stored once. Columns that steps have added are in `.json`, or in `.columns.json` where
the samples already have a `.json`. Members of a sample are sorted by their extension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import is_json, to_json_text, to_json_values
from gristmill.core.media import (
    ANY_IMAGE,
    EXTENSION_NAME,
    IMAGE,
    IMAGE_EXTENSIONS,
    find_image_extension,
    find_member,
    is_bytes,
)
from gristmill.core.records import KEY, ORIGIN, TEXT
from gristmill.shards.formats.jsonl import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_JSON = "json"
_REST = "columns.json"
_IMAGES = frozenset((*IMAGE_EXTENSIONS, "img", "heic"))


@dataclass(frozen=True, slots=True)
class MemberLayout:
    """The members of the samples of a dataset."""

    members: dict[str, str]
    """The extension of each column that is a separate member."""
    text_path: tuple[str, tuple[str, ...]] | None
    """The column and the path in it where the text is, for a text that was read from a field of a JSON member."""
    rest: tuple[str, ...]
    """The columns in the member `rest_name`."""
    rest_name: str
    texts: frozenset[str] = field(default_factory=frozenset)
    """The columns of plain text among the members."""

    @classmethod
    def find(cls, schema: pa.Schema) -> MemberLayout | None:
        """Find the layout of a dataset of samples; None if no column was read from a member.

        Raises:
            UsageError: Two columns would be the same member.
        """
        members = {column.name: member for column in schema if (member := find_member(column)) is not None}
        if not members:
            return None
        text_path = _find_text_path(members, schema)
        if text_path is not None or TEXT not in schema.names:
            members.pop(TEXT, None)
        else:
            own = members.get(TEXT, "txt")
            other_members = {member for name, member in members.items() if name != TEXT}
            members[TEXT] = (
                own if "." not in own and own not in other_members else "txt" if "txt" not in other_members else TEXT
            )
        for column in schema:
            if column.name not in members and is_bytes(column.type) and EXTENSION_NAME.fullmatch(column.name.lower()):
                members[column.name] = ANY_IMAGE if column.name == IMAGE else column.name.lower()
        images = [name for name, member in members.items() if member == ANY_IMAGE]
        has_others = any(member in _IMAGES for member in members.values())
        if has_others or len(images) > 1:  # their formats may be the same, so their names distinguish them
            members |= {name: f"{name}.{ANY_IMAGE}" for name in images}
        _refuse_equal_members(members)
        rest = tuple(name for name in schema.names if name not in (ORIGIN, KEY, TEXT, *members))
        has_json = _JSON in members.values() or (text_path is not None and members.get(text_path[0]) == _JSON)
        texts = [name for name in members if _is_text(schema.field(name))]
        return cls(members, text_path, rest, _REST if has_json else _JSON, frozenset(texts))

    @property
    def longest_extension(self) -> int:
        """The most bytes that an extension takes in a name."""
        return max(len(name.encode()) for name in (*self.members.values(), _REST))

    def encode(self, batch: pa.RecordBatch, keys: Sequence[str | None]) -> Iterator[dict[str, bytes]]:
        """Encode the members of each sample, by their sorted extensions; `keys` are stored with the other columns."""
        columns = {name: self._encode_column(batch, name) for name in self.members}
        rest = [to_json_values(batch.column(name), holds_json=is_json(batch.schema.field(name))) for name in self.rest]
        texts = batch.column(TEXT).to_pylist() if self.text_path is not None else None
        for row, key in enumerate(keys):
            sample: dict[str, bytes] = {}
            for name, values in columns.items():
                value = values[row]
                if texts is not None and self.text_path is not None and name == self.text_path[0]:
                    value = _put_text(value, self.text_path[1], texts[row])
                if value is not None:
                    extension = self.members[name]
                    if extension.endswith(ANY_IMAGE):
                        extension = extension.removesuffix(ANY_IMAGE) + find_image_extension(
                            bytes(memoryview(value)[:16])
                        )
                    sample[extension] = value
            other = {name: column[row] for name, column in zip(self.rest, rest, strict=True) if column[row] is not None}
            if key is not None:
                other[KEY] = key
            if other or not sample:
                sample[self.rest_name] = msgspec.json.encode(other)
            yield dict(sorted(sample.items()))

    def decode(self, contents: dict[str, bytes]) -> dict[str, Any]:
        """Decode a sample: its columns, from the content of its members by extension."""
        record: dict[str, Any] = {}
        contents = dict(contents)
        for name, member in self.members.items():
            extension = member if not member.endswith(ANY_IMAGE) else self._find_image(member, contents)
            content = contents.pop(extension, None)
            record[name] = None if content is None else self._decode_value(name, extension, content)
        rest = contents.pop(self.rest_name, None)
        record |= dict.fromkeys(self.rest) | ({} if rest is None else decode_record(rest))
        if self.text_path is not None:
            value = record[self.text_path[0]]
            for step in self.text_path[1]:
                value = value[step]
            record[TEXT] = value
        return {**record, **contents}

    def _decode_value(self, name: str, extension: str, content: bytes) -> Any:
        if name in self.texts:
            return content.decode()
        is_json_member = extension.rpartition(".")[2] == _JSON
        return msgspec.json.decode(content) if is_json_member else content

    def _encode_column(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        column, kind = batch.schema.field(name), batch.column(name).type
        if is_bytes(kind):
            return [value.as_buffer() if value.is_valid else None for value in batch.column(name)]
        if name in self.texts:
            return [None if text is None else text.encode() for text in batch.column(name).to_pylist()]
        values = to_json_values(batch.column(name), holds_json=is_json(column))
        return [None if value is None else msgspec.json.encode(value) for value in values]

    def _find_image(self, member: str, contents: dict[str, bytes]) -> str:
        """Find the extension of the image of a sample: one that no other column has."""
        prefix, others = member.removesuffix(ANY_IMAGE), set(self.members.values())
        names = (name for name in contents if name.startswith(prefix) and name not in others)
        return next((name for name in names if name.removeprefix(prefix) in _IMAGES), "")


def build_sample_columns(schema: pa.Schema, records: Sequence[dict[str, Any]]) -> dict[str, pa.Array]:
    """Build the columns of decoded samples; a column that a sample lacks is null. Origins are not among them."""
    arrays = {}
    for column in schema:
        if column.name != ORIGIN:
            # Values of JSON members may be structs of msgspec; bytes stay as they are.
            values = msgspec.to_builtins([record.get(column.name) for record in records], builtin_types=(bytes,))
            arrays[column.name] = to_json_text(values) if is_json(column) else pa.array(values, column.type)
    return arrays


def _is_text(column: pa.Field) -> bool:
    return column.type in (pa.string(), pa.large_string()) and not is_json(column)


def _find_text_path(members: dict[str, str], schema: pa.Schema) -> tuple[str, tuple[str, ...]] | None:
    """Find the column of the JSON member that the text was read from, and the path in it."""
    own = members.get(TEXT, "")
    for name, member in members.items():
        if TEXT in schema.names and name != TEXT and own.startswith(f"{member}."):
            return name, tuple(own.removeprefix(f"{member}.").split("."))
    return None


def _put_text(content: bytes | None, path: tuple[str, ...], text: str | None) -> bytes:
    """Put the text into a JSON object at its path; everything else keeps its value."""
    value: Any = {} if content is None else msgspec.json.decode(content)
    place = value = value if isinstance(value, dict) else {}
    for step in path[:-1]:
        if not isinstance(place.get(step), dict):
            place[step] = {}
        place = place[step]
    place[path[-1]] = text
    return msgspec.json.encode(value)


def _refuse_equal_members(members: dict[str, str]) -> None:
    by_extension: dict[str, str] = {}
    for name, extension in members.items():
        if extension in by_extension:
            raise UsageError(
                f"two columns would be the member {extension!r} of a sample: {by_extension[extension]} and {name}",
                help="rename one of them: `- rename: {columns: {…}}`",
            )
        by_extension[extension] = name
