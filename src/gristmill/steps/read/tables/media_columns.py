"""Columns of bytes in tables: plain ones, and the images and sounds of Hugging Face datasets, which are structs.

Such a struct has the fields `bytes` and `path`. Here its bytes are the column, and the name of the file that they were
read from is the column `<name>_path`. A row with a path and no bytes refers to a file elsewhere: it is quarantined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.media import (
    ANY_IMAGE,
    EXTENSION_NAME,
    IMAGE,
    PATH_SUFFIX,
    find_member,
    is_bytes,
    is_media,
    list_image_structs,
)
from gristmill.core.records import KEY
from gristmill.steps.unite.field_types import plain_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def holds_bytes(schema: pa.Schema) -> bool:
    """Whether a file has a column of bytes."""
    return any(is_bytes(plain_type(field.type)) or is_media(field.type) for field in schema)


def find_media_members(schema: pa.Schema) -> dict[str, str]:
    """Find the extensions of the columns of bytes that are members of samples."""
    members = dict.fromkeys(list_image_structs(schema), ANY_IMAGE)
    for field in schema:
        member = (find_member(field) or _name_member(field.name)) if is_bytes(plain_type(field.type)) else None
        if member is not None:
            members[field.name] = member
    return members


def _name_member(name: str) -> str | None:
    """Name the member of a column of plain bytes by the column; None if it cannot be an extension."""
    if name == IMAGE:
        return ANY_IMAGE
    return name if EXTENSION_NAME.fullmatch(name) else None


def list_path_columns(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """List the columns of file names beside images and sounds, and the column that each belongs to.

    Samples with a key need none: the names were made of it.
    """
    if KEY in schema.names:
        return
    for field in schema:
        name = field.name + PATH_SUFFIX
        if is_media(field.type) and name not in schema.names:
            yield name, field.name
