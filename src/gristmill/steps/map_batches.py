"""`map_batches`: change whole Arrow batches with your own function; the fast way for pyarrow, numpy and models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, RECORD, TEXT, StepResult
from gristmill.steps.records.columns import list_value_columns, path_in_record
from gristmill.steps.records.function_step import MappingStep
from gristmill.steps.records.json_records import with_values
from gristmill.steps.records.record_functions import quarantine_exception


class MapBatches(MappingStep, tag="map_batches", frozen=True, kw_only=True):
    """Change whole batches: the function gets a `pyarrow.RecordBatch` and returns one.

    The column `origin` identifies the records, and the function must return it with its rows. Rows may be left out
    (dropped as `rejected`), reordered, or multiplied if each copy gets its own `origin.part`. Declare new columns with
    their type: `columns: {score: float64}`. If the function raises, the batch is halved until the faulty records are
    alone; they are quarantined. Treat each row by itself: where a batch ends is not a property of the data.

    >>> import pyarrow.compute as pc
    >>> from gristmill.core.sample_batches import documents, texts
    >>> def upper(batch):
    ...     return batch.set_column(1, "text", pc.utf8_upper(batch["text"]))
    >>> texts(MapBatches(call=upper).apply(documents(["hi", "hello"]), seed=0).batch)
    ['HI', 'HELLO']
    """

    def call_on(self, batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        schema = self.output_schema(batch.schema)
        if not batch.num_rows:
            return StepResult(_make_empty_batch(schema))
        try:
            return _check_result(self.function(batch), batch, schema)
        except UsageError:  # a problem of the recipe, not of the records
            raise
        except (Exception, SystemExit) as error:
            if batch.num_rows == 1:
                return StepResult(_make_empty_batch(schema), quarantined=[quarantine_exception(batch, 0, error)])
        middle = batch.num_rows // 2
        first = self.call_on(batch.slice(0, middle), stops=stops)
        return (
            first
            if stops and first.quarantined
            else _join_results(first, self.call_on(batch.slice(middle), stops=stops))
        )

    def replay(self, record: pa.RecordBatch) -> None:
        """Call the function on a batch of this record alone."""
        _check_result(self.function(record), record, self.output_schema(record.schema))


def _check_result(result: object, batch: pa.RecordBatch, schema: pa.Schema) -> StepResult:
    """Check what the function returned, cast it to the planned schema, and count rows left out and added."""
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"the function returned {type(result).__name__}, not a RecordBatch")
    missing = [name for name in schema.names if name not in result.schema.names]
    extra = [name for name in result.schema.names if name not in schema.names]
    if missing or extra:
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}, not declared in columns"
        raise ValueError(f"the returned batch {problem}")
    columns = {field.name: result.column(field.name).cast(field.type) for field in schema}
    if TEXT in columns and columns[TEXT].null_count:
        raise ValueError("the returned text is null")
    rows, created = _find_source_rows(columns[ORIGIN], batch.column(ORIGIN))
    if RECORD in columns:
        columns[RECORD] = _update_records(columns, rows, batch, schema)
    num_dropped = batch.num_rows + created - result.num_rows
    checked = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return StepResult(checked, {"rejected": num_dropped} if num_dropped else {}, created)


def _find_source_rows(returned: pa.StructArray, original: pa.StructArray) -> tuple[list[int], int]:
    """Find the input row that each output row came from, and count the output rows that are new records."""
    if returned.equals(original):
        return list(range(len(original))), 0
    exact = {tuple(origin.values()): row for row, origin in enumerate(original.to_pylist())}
    pieces = {origin[:2]: row for origin, row in exact.items()}
    origins = [tuple(origin.values()) for origin in returned.to_pylist()]
    if len(set(origins)) < len(origins):
        raise ValueError("two returned rows have the same origin: give each copy its own origin.part")
    for origin in origins:
        if origin[:2] not in pieces:
            raise ValueError(f"a returned row has the origin {origin}, which is not in this batch")
    rows = [exact.get(origin, pieces[origin[:2]]) for origin in origins]
    return rows, sum(origin not in exact for origin in origins)


def _update_records(
    columns: dict[str, pa.Array], rows: list[int], batch: pa.RecordBatch, schema: pa.Schema
) -> pa.Array:
    """Put the values that the function changed into the JSON records; the other records keep their bytes."""
    source = batch.take(pa.array(rows, pa.int64()))
    records: list[bytes] = source.column(RECORD).to_pylist()
    if not columns[RECORD].equals(source.column(RECORD)):
        raise ValueError("the function changed the column record: change text or declared columns, it follows them")
    changes: dict[int, list[tuple[tuple[str, ...], Any]]] = {}
    for field in list_value_columns(schema):
        old = source.column(field.name) if field.name in batch.schema.names else None
        new = columns[field.name]
        if old is None or not new.equals(old):
            before = [_ABSENT] * len(new) if old is None else old.to_pylist()
            for row, (was, value) in enumerate(zip(before, new.to_pylist(), strict=True)):
                if was is _ABSENT or was != value:
                    changes.setdefault(row, []).append((path_in_record(field), value))
    for row, values in changes.items():
        records[row] = with_values(records[row], values)
    return pa.array(records, schema.field(RECORD).type)


_ABSENT = object()


def _make_empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _join_results(first: StepResult, second: StepResult) -> StepResult:
    return StepResult(
        pa.concat_batches([first.batch, second.batch]),
        Counter(first.dropped) + Counter(second.dropped),
        first.created + second.created,
        first.quarantined + second.quarantined,
    )
