"""The members of a WebDataset sample that the recipe does not name, as columns: one an extension, and the key.

A JSON member has the type of its values, like a key of a JSON record; other members are text, or bytes if a sample
holds one that is not text. A member that the plan did not see, or that does not fit, goes to `other_fields`.

The plan finds the columns from a sample of the members. A member whose sampled contents are all text is a column of
text, any other one a column of bytes. A tar in which no sample has the default member `text` is a source of samples, if
no step needs a text.

Of the tars of a finished dataset of samples, the manifest says which column each member is.
"""

from __future__ import annotations

import base64
import posixpath
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import JSON_TYPE, is_json
from gristmill.core.media import BINARY_EXTENSIONS
from gristmill.core.records import CARRIES_ALL, KEY, ORIGIN, OTHER_FIELDS, TEXT, TEXT_TYPE
from gristmill.readers.field_types import (
    REST,
    FieldType,
    PlannedColumns,
    infer_field_types,
    is_column_name,
    without_nulls,
)
from gristmill.readers.tar_samples import TarSample, TarSampleWalk, TarStream, is_json_member, member_path
from gristmill.readers.texts.delimited_file import read_unpacked_chunks
from gristmill.readers.texts.json_fields import decode_sample, infer_column_types
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.formats.tar_members import build_sample_columns
from gristmill.shards.manifest_file import parse_manifest
from gristmill.shards.record_columns import RecordColumns
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.files import open_input
from gristmill.storage.tar_scan import is_origin_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.read import Read
    from gristmill.readers.tar_samples import MemberPath
    from gristmill.shards.formats.tar_members import MemberLayout


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


_MAX_SAMPLES = 200
_MAX_SAMPLE_BYTES = 16 << 20


def plan_member_columns(
    read: Read, files: Sequence[SourceFile], *, carries_all: bool, is_text_optional: bool
) -> PlannedColumns:
    """Plan the columns of tars: those that the recipe names and, with `carries_all`, all members."""
    text, paths = member_path(read, read.text), {name: member_path(read, name) for name in read.columns}
    needed = None if carries_all or is_text_optional else frozenset(path.member for path in (text, *paths.values()))
    samples = [sample for file in files for sample in sample_members(file, read, needed)]
    has_text = not (
        is_text_optional and read.text == TEXT and samples and not any(_has(sample, TEXT) for sample in samples)
    )
    if has_text:
        _check_text(text, samples, files[0].path)
    types: dict[str, FieldType] = {}
    for name, path in paths.items():
        if path.member != KEY and not any(_has(sample, path.member) for sample in samples):
            raise UsageError(f"columns: no sample of {files[0].path} has a member {path.member!r}")
        contents = [sample.members[path.member] for sample in samples if path.member in sample.members]
        if path.field is not None:
            types[name] = FieldType(infer_column_types([path.field], map(decode_sample, contents))[path.field])
        else:
            holds_text = path.member not in BINARY_EXTENSIONS and all(map(is_text, contents))
            types[name] = FieldType(TEXT_TYPE if holds_text else pa.large_binary())
    members = {name: path.member for name, path in paths.items() if path.field is None and path.member != KEY}
    if carries_all:
        named_paths = (*((text,) if has_text else ()), *paths.values())
        loose = infer_member_types(samples, {path.member for path in named_paths if path.field is None})
        members |= {name: name for name in loose if name != KEY}
        types |= loose | {OTHER_FIELDS: REST}
    if has_text and read.format != "gristmill":
        members[TEXT] = read.text if text.field is not None else text.member
    return PlannedColumns(types, members if carries_all else {}, has_text=has_text)


def _has(sample: TarSample, member: str) -> bool:
    return member in sample.members or member in sample.too_large


def _check_text(text: MemberPath, samples: Sequence[TarSample], path: str) -> None:
    if samples and not any(_has(sample, text.member) for sample in samples):
        members = dict.fromkeys(name for sample in samples for name in sample.members)
        raise UsageError(
            f"text: no sample of {path} has a member {text.member!r}"
            + (f"; there are {', '.join(list(members)[:10])}" if members else ""),
            help="name a member by its extension, like `text: txt`, or a field of a JSON member, like "
            "`text: json.content`",
        )
    contents = [sample.members[text.member] for sample in samples if text.member in sample.members]
    if contents and text.field is None and not any(map(is_text, contents)):
        raise UsageError(
            f"text: the member {text.member!r} of {path} holds bytes, not text",
            help="name the member that holds the text, or leave `text` out: samples need none",
        )


def sample_members(file: SourceFile, read: Read, needed: frozenset[str] | None) -> list[TarSample]:
    """Read the first samples of a tar: up to 200, or about 16 MiB of them."""
    samples: list[TarSample] = []
    num_bytes = 0
    with closing(read_unpacked_chunks(file.path)) as chunks:
        walk = TarSampleWalk(
            TarStream(chunks, read.max_record_bytes), file.id, needed, read.max_record_bytes, cell_bytes=1 << 62
        )
        for sample in walk.walk():
            if not isinstance(sample, TarSample):
                continue
            samples.append(sample)
            num_bytes += sum(map(len, sample.members.values()))
            if len(samples) == _MAX_SAMPLES or num_bytes >= _MAX_SAMPLE_BYTES:
                break
    return samples


_FOLDERS = 3
"""A shard is in the folder of its source, which is in that of its split."""


def plan_own_samples(read: Read, files: Sequence[SourceFile]) -> pa.Schema:
    """Return the columns of a finished dataset of samples, as its manifest lists them."""
    folder = files[0].path
    for _ in range(_FOLDERS):
        folder = posixpath.dirname(folder)
    path = f"{folder}/{MANIFEST}"
    with open_input(path) as stream:
        schema = parse_manifest(stream.read(), path).schema.to_arrow()
    for name in read.columns:
        if name not in schema.names:
            raise UsageError(f"columns: {path} has no column {name!r}", help=f"there are {', '.join(schema.names[1:])}")
    if read.columns:
        names = {ORIGIN, TEXT, *read.columns}
        return pa.schema([field for field in schema if field.name in names])
    return schema.with_metadata({CARRIES_ALL: b""})


class OwnSampleColumns:
    """A mapper of the samples of a finished dataset to its columns."""

    def __init__(self, schema: pa.Schema, layout: MemberLayout) -> None:
        self._schema = schema
        self._layout = layout

    def check(self, sample: TarSample) -> str | None:
        """Return what is wrong with a sample; None if it can be used."""
        try:
            self._layout.decode(sample.members)
        except READ_ERRORS as error:
            return str(error)
        return None

    def arrays(self, samples: Sequence[TarSample]) -> dict[str, pa.Array]:
        """Return the columns of some samples."""
        arrays = build_sample_columns(self._schema, [self._decode(sample) for sample in samples])
        if OTHER_FIELDS not in arrays:
            arrays[OTHER_FIELDS] = pa.nulls(len(samples))
        return arrays

    def _decode(self, sample: TarSample) -> dict[str, Any]:
        record = self._layout.decode(sample.members)
        if KEY not in record and not is_origin_key(sample.key):
            record[KEY] = sample.key
        return record
