"""The columns of a folder of samples: its content, `__key__`, `label`, and what describes the files.

Images of all formats are one column, `image`. Other files are a column for each extension, as in a WebDataset tar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_text import make_field
from gristmill.core.media import (
    ANY_IMAGE,
    IMAGE,
    IMAGE_EXTENSIONS,
    LABEL,
    LABEL_MEMBER,
    MEMBER,
    get_extension,
    make_member_field,
)
from gristmill.core.names import find_nearest
from gristmill.core.records import (
    CARRIES_ALL,
    KEY,
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
)
from gristmill.steps.read.sample_files.descriptions import describe_file, refuse_strange_tables
from gristmill.steps.read.sample_files.folder import SIDE_EXTENSIONS, TABLE, find_class
from gristmill.steps.unite.field_types import REST, infer_field_types, without_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read

_MAX_SAMPLED = 256


def name_content(extension: str) -> str:
    """Return the column of the content of files with an extension.

    >>> name_content("jpg"), name_content("wav"), name_content("")
    ('image', 'wav', 'file')
    """
    return IMAGE if extension in IMAGE_EXTENSIONS else extension or "file"


def plan_folder_schema(read: Read, files: Sequence[SourceFile]) -> pa.Schema:
    """Plan the columns of a folder of samples, from all names of files and a sample of their descriptions."""
    extensions = dict.fromkeys(get_extension(file.relative) for file in files)
    contents = {
        name_content(extension): ANY_IMAGE if name_content(extension) == IMAGE else extension
        for extension in extensions
    }
    has_label = _have_classes(files)
    refuse_strange_tables(files)
    records = [_decode(describe_file(file, has_label=has_label)) for file in _choose_spread(files)]
    types = infer_field_types([{key: value for key, value in record.items() if key != read.text} for record in records])
    has_text = any(isinstance(record.get(read.text), str) for record in records)
    if not has_text and read.text != TEXT:
        names = list(dict.fromkeys(key for record in records for key in record if key != KEY))
        nearest = find_nearest(read.text, names)
        raise UsageError(
            f"text: nothing that describes the files is called {read.text!r}",
            help=f'did you mean "{nearest}"?' if nearest else f"there are {', '.join(names) or 'only the files'}",
        )
    fields = [pa.field(ORIGIN, ORIGIN_TYPE)]
    if has_text:
        fields.append(make_member_field(TEXT, TEXT_TYPE, read.text if read.text in SIDE_EXTENSIONS else "txt"))
    fields.append(pa.field(KEY, TEXT_TYPE))
    fields += [make_member_field(name, pa.large_binary(), extension) for name, extension in contents.items()]
    for name, (kind, why) in types.items():
        if name != KEY and name not in contents:
            field = make_field(name, without_nulls(kind), why)
            member = LABEL_MEMBER if name == LABEL and has_label else name if name in SIDE_EXTENSIONS else None
            fields.append(field if member is None else field.with_metadata({**(field.metadata or {}), MEMBER: member}))
    fields.append(make_field(OTHER_FIELDS, *REST))
    return _choose_columns(pa.schema(fields, {CARRIES_ALL: b""}), read, contents)


def _choose_columns(schema: pa.Schema, read: Read, contents: dict[str, str]) -> pa.Schema:
    """Leave only the columns that the recipe names, if it names any, and the content."""
    if not read.columns:
        return schema
    for name in read.columns:
        if name not in schema.names:
            raise UsageError(f"columns: the files have no {name!r}", help=f"there are {', '.join(schema.names[1:])}")
    names = {ORIGIN, TEXT, *contents, *read.columns}
    return pa.schema([field for field in schema if field.name in names])


def _have_classes(files: Sequence[SourceFile]) -> bool:
    """Whether the folders of files are classes: no table describes the files, and there are at least two folders."""
    if any(side.extension == TABLE for file in files for side in file.side_files):
        return False
    classes = {find_class(file) for file in files}
    return len(classes) > 1 and None not in classes


def _choose_spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    count = min(len(files), _MAX_SAMPLED)
    return [files[number * len(files) // count] for number in range(count)]


def _decode(described: dict[str, Any] | QuarantinedRecord) -> dict[str, Any]:
    if isinstance(described, QuarantinedRecord):
        return {}
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described))
    return decoded
