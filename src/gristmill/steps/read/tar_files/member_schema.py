"""The columns of WebDataset tars, from a sample of their members.

A member whose sampled contents are all text is a column of text, any other one a column of bytes. A tar in which no
sample has the default member `text` is a source of samples, if no step needs a text.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.media import BINARY_EXTENSIONS
from gristmill.core.records import KEY, OTHER_FIELDS, TEXT, TEXT_TYPE
from gristmill.steps.read.json_files.json_types import decode_sample, infer_column_types
from gristmill.steps.read.raw_cells.delimited_file import read_unpacked_chunks
from gristmill.steps.read.tar_files.member_columns import infer_member_types, is_text
from gristmill.steps.read.tar_files.tar_samples import TarSample, TarSampleWalk, member_path
from gristmill.steps.read.tar_files.tar_stream import TarStream
from gristmill.steps.unite.field_types import REST, FieldType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read
    from gristmill.steps.read.tar_files.tar_samples import MemberPath

_MAX_SAMPLES = 200
_MAX_SAMPLE_BYTES = 16 << 20


class MemberSchema(NamedTuple):
    """The columns of a tar, and whether they have a text."""

    columns: dict[str, FieldType]
    members: dict[str, str]
    """The extension of each column that is a member of its own."""
    has_text: bool


def plan_member_columns(
    read: Read, files: Sequence[SourceFile], *, carries_all: bool, is_text_optional: bool
) -> MemberSchema:
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
    return MemberSchema(types, members if carries_all else {}, has_text)


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
        walk = TarSampleWalk(TarStream(chunks), file.id, needed, read.max_record_bytes, cell_bytes=1 << 62)
        for sample in walk.walk():
            if not isinstance(sample, TarSample):
                continue
            samples.append(sample)
            num_bytes += sum(map(len, sample.members.values()))
            if len(samples) == _MAX_SAMPLES or num_bytes >= _MAX_SAMPLE_BYTES:
                break
    return samples
