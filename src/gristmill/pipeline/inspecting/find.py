"""The first record of input files that has a value in a field, for `explain --find` and `trace --find`.

Cost: the files are read in their order up to the record, by one core.
"""

from __future__ import annotations

import json
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.records import ORIGIN, RECORD, TEXT
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.readers.texts.json_fields import decode_sample, find_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FileReader
    from gristmill.readers.read import Read


def open_whole_records(read: Read, file: SourceFile) -> FileReader:
    """Open a file for its whole records, with their text if they have one."""
    errors = []
    # Without other fields if a column has a reserved name, which the run has left out, too; chats have no text.
    for keeps_record, has_text in ((True, True), (False, True), (True, False)):
        try:
            return open_reader(read, file, plan_schema(read, [file], keeps_record=keeps_record, has_text=has_text))
        except UsageError as error:
            errors.append(error)
    raise errors[0]


def find_record(
    wanted: str, files: Sequence[tuple[Read, SourceFile]], tell: Callable[[str], object]
) -> tuple[int, int]:
    """Find the first record with a value, written as `id=abc`; returns the index of its file, and its position.

    The value of `text` may be a part of the text, or of any string in a record without a text, such as a chat.
    """
    field, _, value = wanted.partition("=")
    if not (field and value):
        raise UsageError(
            f"{wanted!r} does not say what to find", help="write FIELD=VALUE: id=abc, url=https://…, text=…"
        )
    total = sum(file.num_bytes for _, file in files)
    num_bytes = num_records = 0
    names: dict[str, None] = {}
    for index, (read, file) in enumerate(files):
        reader = open_whole_records(read, file)
        ends = accumulate(reader.cell_sizes(), initial=num_bytes) if reader.can_cut else repeat(num_bytes)
        for cell, begin in zip(reader.read_cells(), ends, strict=False):
            done = 100 * begin // max(1, total)
            tell(f"searching: {done} % of {format_bytes(total)}, {num_records:,} records")
            row = _find_row(cell.batch, field, value, names)
            if row is not None:
                return index, cell.batch.column(ORIGIN)[row]["position"].as_py()
            num_records += cell.batch.num_rows
        num_bytes += file.num_bytes
    raise UsageError(
        f"none of {format_count(num_records, 'record')} in {format_count(len(files), 'file')} has {wanted}",
        help=f"the fields are {', '.join(list(names)[:20])}; only text is also found by a part of it",
    )


def _find_row(batch: pa.RecordBatch, field: str, value: str, names: dict[str, None]) -> int | None:
    """Find the first row with the value; adds the names of fields if there are none yet."""
    if field == TEXT in batch.schema.names:
        names[TEXT] = None
        row: int = pc.index(pc.match_substring(batch.column(TEXT), value), value=True).as_py()
        return None if row < 0 else row
    if RECORD in batch.schema.names:
        records: list[Any] = [decode_sample(line) for line in batch.column(RECORD).to_pylist()]
    else:
        batch = batch.drop_columns([ORIGIN])
        names.update(dict.fromkeys(batch.schema.names))
        root = field.partition(".")[0]
        records = batch.select([root] if root in batch.schema.names else batch.schema.names).to_pylist()
    if not names and records:
        names.update(dict.fromkeys(records[0] or ()))
    if field == TEXT:
        part = json.dumps(value)[1:-1]
        return next((row for row, record in enumerate(records) if part in json.dumps(record, default=str)), None)
    return next((row for row, record in enumerate(records) if value in map(_write, find_values(field, [record]))), None)


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
