"""Tars of a finished dataset of samples: their manifest says which column each member is."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import CARRIES_ALL, KEY, ORIGIN, OTHER_FIELDS, TEXT
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.formats.tar_members import build_sample_columns
from gristmill.shards.manifests.manifest_file import parse_manifest
from gristmill.shards.manifests.stored_files import MANIFEST
from gristmill.storage.files import open_input
from gristmill.storage.tars.tar_scan import is_origin_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.records import SourceFile
    from gristmill.shards.formats.tar_members import MemberLayout
    from gristmill.steps.read.read import Read
    from gristmill.steps.read.tar_files.tar_samples import TarSample

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
