"""Calls of a user's function on each record, and the quarantine of records for which it fails.

The function gets a dict: the decoded JSON record if the batch carries it, else the columns; for a chat that is kept,
both. An error affects one record alone, so no result depends on neighbouring records. Cost: one decoded dict a record,
1 to 3 µs, before the function itself.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.json_values import decode_json
from gristmill.core.records import ORIGIN, RECORD, QuarantinedRecord
from gristmill.steps.records.columns import has_text_beside, list_value_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

MAX_RAW_BYTES = 1 << 20
"""The size up to which a quarantined record is stored itself; of a larger one, only its origin and size."""


class RefusedRecord(Exception):
    """A record that cannot be used: the reason it is counted under, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


def decode_records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | RefusedRecord]:
    """Yield the batch's records as dicts."""
    if RECORD in batch.schema.names:
        lines = map(decode_record, batch.column(RECORD).to_pylist())
        yield from _with_columns_beside(batch, lines) if has_text_beside(batch.schema) else lines
    else:
        yield from batch.select([field.name for field in list_value_columns(batch.schema)]).to_pylist()


def _with_columns_beside(
    batch: pa.RecordBatch, records: Iterator[dict[str, Any] | RefusedRecord]
) -> Iterator[dict[str, Any] | RefusedRecord]:
    """Add the columns that steps have made of kept chats, such as their text."""
    columns = batch.select([field.name for field in list_value_columns(batch.schema)]).to_pylist()
    for record, values in zip(records, columns, strict=True):
        yield record if isinstance(record, RefusedRecord) else {**values, **record}


def call_on_records(
    call: Callable[..., Any],
    batch: pa.RecordBatch,
    use_result: Callable[[int, Any], None],
    quarantined: list[QuarantinedRecord],
    *,
    stops: bool = False,
) -> None:
    """Call the function on every record and pass its results to `use_result`; records that fail go to `quarantined`.

    With `stops` the function is not called again once it has raised.
    """
    for row, record in enumerate(decode_records(batch)):
        try:
            if isinstance(record, RefusedRecord):
                raise record
            use_result(row, call(record))
        except RefusedRecord as refused:
            quarantined.append(quarantine_row(batch, row, refused.reason, refused.message))
        except (Exception, SystemExit) as error:
            quarantined.append(quarantine_exception(batch, row, error))
            if stops:
                return


def quarantine_exception(batch: pa.RecordBatch, row: int, error: BaseException) -> QuarantinedRecord:
    """Quarantine a row because the user's function raised: as `out_of_memory`, or as `exception`."""
    if isinstance(error, SystemExit) and type(error) is not SystemExit:
        raise error  # not raised by the function: it is how the command line handles SIGTERM
    reason = "out_of_memory" if isinstance(error, MemoryError) else "exception"
    frames = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next  # the first frame is in this module
    try:
        message, lines = f"{type(error).__name__}: {error}", traceback.format_exception(type(error), error, frames)
    except Exception as problem:
        message, lines = f"{type(error).__name__} (its message cannot be shown: {problem!r})", []
    return quarantine_row(batch, row, reason, _escape_surrogates(message), _escape_surrogates("".join(lines)))


def quarantine_row(batch: pa.RecordBatch, row: int, reason: str, message: str, lines: str = "") -> QuarantinedRecord:
    """Quarantine one row of a batch."""
    origin = batch.column(ORIGIN)[row].as_py()
    raw = _encode_raw(batch, row)
    return QuarantinedRecord(
        **origin,
        reason=reason,
        message=message,
        raw=raw if len(raw) <= MAX_RAW_BYTES else None,
        num_bytes=len(raw),
        traceback=lines,
    )


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which no UTF-8 file can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _encode_raw(batch: pa.RecordBatch, row: int) -> bytes:
    if RECORD in batch.schema.names:
        raw: bytes = batch.column(RECORD)[row].as_py()
        return raw
    values = {field.name: batch.column(field.name)[row].as_py() for field in list_value_columns(batch.schema)}
    return msgspec.json.encode(values, enc_hook=repr)


def decode_record(line: bytes) -> dict[str, Any] | RefusedRecord:
    """Decode one line of JSON; a line that is no record comes back as the reason."""
    try:
        record = decode_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # in a part that the reader did not parse
        return RefusedRecord("invalid_json", str(error))
    return (
        record if isinstance(record, dict) else RefusedRecord("not_an_object", f"the record is {type(record).__name__}")
    )
