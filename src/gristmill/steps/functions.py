"""`map`: change each record with your own function.

`filter`: keep the records for which your own function returns true.

`map_batches`: change whole Arrow batches with your own function; the fast way for pyarrow, numpy and models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import NAN_AS_NULL, count_not_finite_values, encode_json, with_values
from gristmill.core.records import ORIGIN, RECORD, SPLIT, TEXT, TEXT_TYPE, QuarantinedRecord, StepResult, make_origins
from gristmill.core.step import StepTraits, check_choices
from gristmill.steps.column_names import list_value_columns, path_in_record
from gristmill.steps.record_functions import (
    FunctionStep,
    MappingStep,
    RefusedRecord,
    call_on_records,
    quarantine_exception,
)

_STRING_TYPES = (pa.large_string(), pa.string())
_RETURNED_NONE = "returned_none"
_MAX_PARTS = 1 << 16
"""The most records that one record may become."""


class Map(MappingStep, tag="map", frozen=True, kw_only=True):
    """Change each record with a function that gets a dict and returns a dict, or None to drop the record.

    In a recipe: `- map: {call: functions.py:clean}`, a path from the recipe. A JSON record may get any new
    keys. If the data has columns (Parquet, Arrow), declare new columns with their type; also declare new keys that
    later steps need: `columns: {score: float64}`. If the function raises, or returns something that cannot be stored,
    the record is quarantined and the run continues. Records for which it returns None are dropped as `returned_none`;
    a step that only drops is a `filter`. With `images: pil` or `images: numpy`
    the function gets decoded images; those that it changes are encoded again. With `flat: true` it returns a list of
    records, such as the sections of a page. They take the place of the record, numbered by `origin.part`.

    >>> from gristmill.core.records import documents, texts
    >>> texts(Map(call=lambda record: {"text": record["text"].upper()}).apply(documents(["hi"]), seed=0).batch)
    ['HI']
    """

    version: ClassVar[int] = 2

    images: Literal["bytes", "pil", "numpy"] = "bytes"
    """What the function gets of columns of images: their bytes, Pillow images (`pil`) or NumPy arrays, upright and
    in RGB.
    """
    reencode: Literal["png", "jpeg", "webp"] = "png"
    """The format of images that the function has changed."""
    makes: Literal["text"] | None = None
    """`text`: the function makes the [text](writing-recipes.md#the-text) of records that have none."""
    flat: bool = False
    """Whether the function returns a list of records, all of which take the place of the one that it got."""

    @property
    def traits(self) -> StepTraits:  # type: ignore[override]  # depends on `makes`
        return StepTraits(needs_whole_record=True, may_add_keys=True, makes_text=self.makes == "text")

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        schema = super().output_schema(schema)
        return schema.insert(1, pa.field(TEXT, TEXT_TYPE)) if self.makes and TEXT not in schema.names else schema

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(type(self), {"images": self.images, "reencode": self.reencode, "makes": self.makes})
        if self.flat and self.images != "bytes":
            raise UsageError("map: flat: true takes images as bytes", help="leave out images, or split in another step")

    @property
    def fingerprint_versions(self) -> object:
        if self.images == "bytes":
            return self.version
        from gristmill.images.codec import describe_codecs  # noqa: PLC0415

        return [self.version, describe_codecs()]

    def call_on(self, call: Callable[..., Any], batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        schema = self.output_schema(batch.schema)
        results = _Results(schema, batch.num_rows, is_flat=self.flat)
        quarantined: list[QuarantinedRecord] = []
        if self.images != "bytes":
            from gristmill.steps.record_functions import ImageFunction  # noqa: PLC0415

            call = ImageFunction(call, batch.schema, self.images, self.reencode)
        call_on_records(call, batch, results.add, quarantined, stops=stops)
        counters = {NAN_AS_NULL: results.num_not_finite} if results.num_not_finite else {}
        num_none = int(results.codes.sum())
        return StepResult(
            results.to_batch(batch),
            {_RETURNED_NONE: num_none} if num_none else {},
            results.num_created,
            quarantined,
            counters,
            codes=results.codes,
            reasons=(_RETURNED_NONE,),
        )


class _Results:
    """The records that a function returned, as columns of a fixed schema."""

    def __init__(self, schema: pa.Schema, num_rows: int, *, is_flat: bool = False) -> None:
        self._schema = schema
        self._is_flat = is_flat
        self.codes = np.zeros(num_rows, np.uint8)
        """1 for each input row without a result."""
        self.num_created = 0
        """How many results there are beyond the first of each input row."""
        self._parts: list[int] = []
        """The number of each result among those of its row."""
        self._fields = [(field, path_in_record(field)) for field in list_value_columns(schema)]
        self._keeps_json = RECORD in schema.names
        self.num_not_finite = 0
        """How many values without a column are NaN or infinite, and so null in JSON records."""
        self._rows: list[int] = []
        self._records: list[bytes] = []
        self._values: list[list[Any]] = [[] for _ in self._fields]

    def add(self, row: int, result: object) -> None:
        """Check what the function returned for a row, and add it; raises `RefusedRecord`, and then adds nothing."""
        results = _list_results(result) if self._is_flat else [] if result is None else [result]
        checked = [self._check(each) for each in results]
        self.codes[row] = not checked
        self.num_created += max(len(checked) - 1, 0)
        for part, (record, values, num_not_finite) in enumerate(checked):
            self._rows.append(row)
            self._parts.append(part)
            self._records.append(record)
            self.num_not_finite += num_not_finite
            for column, value in zip(self._values, values, strict=True):
                column.append(value)

    def _check(self, result: object) -> tuple[bytes, list[Any], int]:
        """Return a record as JSON, if it is kept so, its values by column, and how many others are not finite."""
        if not isinstance(result, (dict, Mapping)):
            hint = ": a list of records needs `flat: true`" if isinstance(result, (list, tuple)) else ""
            raise RefusedRecord("not_a_record", f"the function returned {result!r:.200}, not a dict{hint}")
        values = [self._value(field, path, result) for field, path in self._fields]
        if not self._keeps_json:
            self._refuse_undeclared(result)
            return b"", values, 0
        undeclared = [value for key, value in result.items() if key not in self._schema.names]
        return _encode_result(result), values, count_not_finite_values(undeclared)

    def _value(self, field: pa.Field, path: tuple[str, ...], result: Mapping[str, Any]) -> Any:
        value: Any = result
        for key in path if self._keeps_json else (field.name,):
            value = value.get(key) if isinstance(value, (dict, Mapping)) else None
        if field.name == TEXT and not isinstance(value, str):
            raise RefusedRecord(*_find_text_problem(value, ".".join(path) if self._keeps_json else TEXT))
        if value is None:
            return None
        try:
            if type(value) is str and field.type in _STRING_TYPES:  # ten times as fast as asking Arrow
                _ = value.isascii() or value.encode()
            else:
                pa.scalar(value, field.type)
        except UnicodeEncodeError as error:
            raise RefusedRecord("lone_surrogate", f"{field.name}: {error}") from None
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RefusedRecord("column_type", f"{field.name} must be {field.type}: {error}") from None
        return value

    def _refuse_undeclared(self, result: Mapping[str, Any]) -> None:
        for key in result:
            if key not in self._schema.names or key in (ORIGIN, SPLIT):
                raise RefusedRecord(
                    "undeclared_column", f'the function returned a new column "{key}": declare it in columns'
                )

    def to_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the added records as a batch; origin and split are those of the input batch."""
        rows = pa.array(self._rows, pa.int64())
        columns = {
            field.name: pa.array(values, field.type)
            for (field, _), values in zip(self._fields, self._values, strict=True)
        }
        if self._keeps_json:
            columns[RECORD] = pa.array(self._records, self._schema.field(RECORD).type)
        for name in self._schema.names:
            if name not in columns:
                columns[name] = batch.column(name).take(rows)
        if self._is_flat:
            columns[ORIGIN] = _number_parts(columns[ORIGIN], self._parts)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def _list_results(result: object) -> Sequence[object]:
    """List the records that the function of a flat `map` returned for one record."""
    if result is None:
        return []
    if not isinstance(result, (list, tuple)):
        raise RefusedRecord("not_a_list", f"the function returned {result!r:.200}, not a list of dicts")
    if len(result) > _MAX_PARTS:
        raise RefusedRecord("too_many_parts", f"the function returned {len(result):,} records, above {_MAX_PARTS:,}")
    return result


def _number_parts(origins: pa.StructArray, numbers: Sequence[int]) -> pa.StructArray:
    """Number the parts of each record. Parts of parts get numbers that no other part of the record has.

    Part 3 of part 2 is 2 · 65,536 + 3.
    """
    parts = origins.field("part").to_numpy().astype(np.uint64) * np.uint64(_MAX_PARTS) + np.array(numbers, np.uint64)
    if len(parts) and int(parts.max()) >= 2**32:
        raise UsageError("three steps in a row cut records into parts", help="cut them in one step")
    return make_origins(origins.field("file"), origins.field("position"), pa.array(parts.astype(np.uint32)))


def _encode_result(result: Mapping[str, Any]) -> bytes:
    try:
        return encode_json(result)
    except UnicodeEncodeError as error:
        raise RefusedRecord("lone_surrogate", str(error)) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedRecord("not_json", f"the result cannot be written as JSON: {error}") from None


def _find_text_problem(value: object, path: str) -> tuple[str, str]:
    if value is None:
        return "missing_text", f"the result has no text under {path}"
    return "text_not_a_string", f"{path} is {type(value).__name__}, not a string"


class Filter(FunctionStep, tag="filter", frozen=True, kw_only=True):
    """Keep the records for which the function returns true.

    The function gets a record as a dict and returns True or False; the others are dropped as `rejected`. In a recipe:
    `- filter: {call: functions.py:is_english}`, a path from the recipe. If the function raises, or returns
    anything else, the record is quarantined and the run continues.

    >>> from gristmill.core.records import documents, texts
    >>> applied = Filter(call=lambda record: "e" in record["text"]).apply(documents(["hi", "hello"]), seed=0)
    >>> texts(applied.batch), applied.dropped
    (['hello'], {'rejected': 1})
    """

    preserves_text: ClassVar[bool] = True

    def call_on(self, call: Callable[..., Any], batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        is_kept = np.zeros(batch.num_rows, dtype=bool)
        num_rejected = 0

        def use_result(row: int, result: object) -> None:
            nonlocal num_rejected
            if not isinstance(result, (bool, np.bool_)):
                raise RefusedRecord("not_a_bool", f"{self.function.name} returned {result!r:.200}, not True or False")
            is_kept[row] = result
            num_rejected += not result

        quarantined: list[QuarantinedRecord] = []
        call_on_records(call, batch, use_result, quarantined, stops=stops)
        dropped = {"rejected": num_rejected} if num_rejected else {}
        return StepResult(batch.filter(pa.array(is_kept)), dropped, quarantined=quarantined)


class MapBatches(MappingStep, tag="map_batches", frozen=True, kw_only=True):
    """Change whole batches: the function gets a `pyarrow.RecordBatch` and returns one.

    The column `origin` identifies the records, and the function must return it with its rows. Rows may be left out
    (dropped as `rejected`), reordered, or multiplied if each copy gets its own `origin.part`. Declare new columns with
    their type: `columns: {score: float64}`. If the function raises, the batch is halved until the faulty records are
    alone; they are quarantined. Treat each row by itself: where a batch ends is not a property of the data.

    This is the fast way to use pyarrow, NumPy and models: `examples/kenlm_perplexity.py` filters by the perplexity of a
    KenLM model.

    >>> import pyarrow.compute as pc
    >>> from gristmill.core.records import documents, texts
    >>> def upper(batch):
    ...     return batch.set_column(1, "text", pc.utf8_upper(batch["text"]))
    >>> texts(MapBatches(call=upper).apply(documents(["hi", "hello"]), seed=0).batch)
    ['HI', 'HELLO']
    """

    def call_on(self, call: Callable[..., Any], batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        schema = self.output_schema(batch.schema)
        if not batch.num_rows:
            return StepResult(_make_empty_batch(schema))
        try:
            return _check_result(call(batch), batch, schema)
        except UsageError:  # a problem of the recipe, not of the records
            raise
        except (Exception, SystemExit) as error:
            if batch.num_rows == 1:
                return StepResult(_make_empty_batch(schema), quarantined=[quarantine_exception(batch, 0, error)])
        middle = batch.num_rows // 2
        first = self.call_on(call, batch.slice(0, middle), stops=stops)
        return (
            first
            if stops and first.quarantined
            else _join_results(first, self.call_on(call, batch.slice(middle), stops=stops))
        )

    def replay(self, record: pa.RecordBatch) -> None:
        """Call the function on a batch of this record alone."""
        _check_result(self.function.bind(self.args)(record), record, self.output_schema(record.schema))


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
