"""The members of a WebDataset sample that the recipe does not name, as columns: one an extension, and the key.

A JSON member has the type of its values, like a key of a JSON record; other members are text, or bytes if a sample
holds one that is not text. A member that the plan did not see, or that does not fit, goes to `other_fields`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.json_text import JSON_TYPE, is_json
from gristmill.core.media import BINARY_EXTENSIONS
from gristmill.core.records import KEY, OTHER_FIELDS, TEXT_TYPE
from gristmill.shards.record_columns import RecordColumns
from gristmill.steps.read.json_files.json_types import decode_sample
from gristmill.steps.read.tar_files.tar_samples import is_json_member
from gristmill.steps.unite.field_types import FieldType, infer_field_types, is_column_name, without_nulls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gristmill.steps.read.tar_files.tar_samples import TarSample


def infer_member_types(samples: Sequence[TarSample], named_members: Collection[str]) -> dict[str, FieldType]:
    """Return a type for each member of some samples that is not in `named_members`."""
    names = dict.fromkeys(name for sample in samples for name in sample.members)
    types = {} if KEY in named_members else {KEY: FieldType(TEXT_TYPE)}
    for name in names:
        contents = [sample.members[name] for sample in samples if name in sample.members]
        if name in named_members or not is_column_name(name):
            continue
        if is_json_member(name):
            for kind, why in infer_field_types([{name: decode_sample(content)} for content in contents]).values():
                types[name] = FieldType(without_nulls(kind), why)
        else:
            holds_text = name not in BINARY_EXTENSIONS and all(map(is_text, contents))
            types[name] = FieldType(TEXT_TYPE if holds_text else pa.large_binary())
    return types


class MemberColumns:
    """A mapper of the members of samples to columns of planned types."""

    def __init__(self, schema: pa.Schema, named_members: Collection[str]) -> None:
        fields = [field for field in schema if field.name not in named_members and field.name != OTHER_FIELDS]
        self._known = frozenset(named_members)
        self._plain = {field.name: field.type for field in fields if not is_json_member(field.name)}
        self.names = [field.name for field in fields] + [OTHER_FIELDS]
        types = {field.name: JSON_TYPE if is_json(field) else field.type for field in fields}
        self._decoder = RecordColumns({name: kind for name, kind in types.items() if name not in self._plain})

    def arrays(self, samples: Iterable[TarSample]) -> dict[str, pa.Array]:
        """Return the columns of some samples, with `other_fields`."""
        values: dict[str, list[Any]] = {name: [] for name in self._plain}
        lines = []
        for sample in samples:
            rest = {name: content for name, content in sample.members.items() if name not in self._known}
            for name, kind in self._plain.items():
                content = sample.key.encode() if name == KEY else rest.get(name)
                fits = content is not None and (kind != TEXT_TYPE or is_text(content))
                values[name].append(content if fits else None)
                if fits:
                    rest.pop(name, None)
            lines.append(msgspec.json.encode({name: _as_json(name, content) for name, content in rest.items()}))
        arrays = self._decoder.decode(lines)
        for name, kind in self._plain.items():
            arrays[name] = pa.array(values[name], pa.large_binary()).cast(kind)
        return arrays


def _as_json(name: str, content: bytes) -> msgspec.Raw | str:
    if is_json_member(name):
        try:
            content.decode()
            raw = msgspec.json.decode(content, type=msgspec.Raw)
            return msgspec.Raw(msgspec.json.format(bytes(raw), indent=-1))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return content.decode() if is_text(content) else base64.b64encode(content).decode()


def is_text(content: bytes) -> bool:
    """Whether the content of a member is text."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
