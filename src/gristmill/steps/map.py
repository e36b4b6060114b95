"""`map`: change each record with your own function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from gristmill.core.json_text import NAN_AS_NULL
from gristmill.core.json_values import count_not_finite_values, encode_json
from gristmill.core.records import ORIGIN, RECORD, SPLIT, TEXT, QuarantinedRecord, StepResult
from gristmill.core.step import check_choices
from gristmill.steps.records.columns import list_value_columns, path_in_record
from gristmill.steps.records.function_step import MappingStep
from gristmill.steps.records.record_functions import RefusedRecord, call_on_records

_STRING_TYPES = (pa.large_string(), pa.string())


class Map(MappingStep, tag="map", frozen=True, kw_only=True):
    """Change each record with a function that gets a dict and returns a dict.

    In a recipe: `- map: {call: functions.py:clean}`, with the file beside the recipe. A JSON record may get any new
    keys. If the data has columns (Parquet, Arrow), declare new columns with their type; also declare new keys that
    later steps need: `columns: {score: float64}`. If the function raises, or returns something that cannot be stored,
    the record is quarantined and the run continues. To drop records use `filter`. With `images: pil` or `images: numpy`
    the function gets decoded images; those that it changes are encoded again.

    >>> from gristmill.core.sample_batches import documents, texts
    >>> texts(Map(call=lambda record: {"text": record["text"].upper()}).apply(documents(["hi"]), seed=0).batch)
    ['HI']
    """

    images: Literal["bytes", "pil", "numpy"] = "bytes"
    """What the function gets of columns of images: their bytes, Pillow images or NumPy arrays, upright and in RGB."""
    reencode: Literal["png", "jpeg", "webp"] = "png"
    """The format of images that the function has changed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(type(self), {"images": self.images, "reencode": self.reencode})

    @property
    def fingerprint_versions(self) -> object:
        if self.images == "bytes":
            return self.version
        from gristmill.images.codec import describe_codecs  # noqa: PLC0415

        return [self.version, describe_codecs()]

    def call_on(self, batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        schema = self.output_schema(batch.schema)
        results = _Results(schema)
        quarantined: list[QuarantinedRecord] = []
        call = self.function.resolve()
        if self.images != "bytes":
            from gristmill.steps.images.decoded_images import ImageFunction  # noqa: PLC0415

            call = ImageFunction(call, batch.schema, self.images, self.reencode)
        call_on_records(call, batch, results.add, quarantined, stops=stops)
        counters = {NAN_AS_NULL: results.num_not_finite} if results.num_not_finite else {}
        return StepResult(results.to_batch(batch), quarantined=quarantined, counters=counters)


class _Results:
    """The records that a function returned, as columns of a fixed schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._fields = [(field, path_in_record(field)) for field in list_value_columns(schema)]
        self._keeps_json = RECORD in schema.names
        self.num_not_finite = 0
        """How many values without a column are NaN or infinite, and so null in JSON records."""
        self._rows: list[int] = []
        self._records: list[bytes] = []
        self._values: list[list[Any]] = [[] for _ in self._fields]

    def add(self, row: int, result: object) -> None:
        """Check one record and add it; raises `RefusedRecord`."""
        if not isinstance(result, (dict, Mapping)):
            raise RefusedRecord("not_a_record", f"the function returned {result!r:.200}, not a dict")
        values = [self._value(field, path, result) for field, path in self._fields]
        if self._keeps_json:
            self._records.append(_encode_result(result))
            undeclared = [value for key, value in result.items() if key not in self._schema.names]
            self.num_not_finite += count_not_finite_values(undeclared)
        else:
            self._refuse_undeclared(result)
        self._rows.append(row)
        for column, value in zip(self._values, values, strict=True):
            column.append(value)

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
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


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
