"""The bases of steps that call a function of the user.

Calls of a user's function on each record, and the quarantine of records for which it fails.

The function gets a dict: the decoded JSON record if the batch carries it, else the columns; for a chat that is kept,
both. An error affects one record alone, so no result depends on neighbouring records. Cost: one decoded dict a record,
1 to 3 µs, before the function itself.

Decoded images for a user's function: its columns of images as Pillow images or NumPy arrays, and back to bytes.

An image that the function returns as it got it keeps its bytes. Any other one is encoded.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json
from gristmill.core.media import list_image_columns
from gristmill.core.records import ORIGIN, RECORD, QuarantinedRecord
from gristmill.core.step import LocalStep, StepKernel, StepTraits
from gristmill.images.codec import ImageError, decode_array, decode_image, encode_image
from gristmill.runtime.functions import Function
from gristmill.steps.column_names import add_columns, has_text_beside, list_value_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from gristmill.core.records import StepResult


class FunctionStep(LocalStep, frozen=True, kw_only=True):
    """The base of `map`, `filter` and `map_batches`."""

    traits: ClassVar[StepTraits] = StepTraits(needs_whole_record=True, may_add_keys=True)

    call: Any
    """`file.py:function`, a path from the recipe's folder or an absolute one; `package.module:function`; in Python any
    callable. See [your own functions](writing-recipes.md#your-own-functions).
    """
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of the function by name, in addition to the record. A class gets them once in each worker."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "call", Function.of(self.call))
        try:
            msgspec.json.encode(self.args)
        except (TypeError, ValueError) as error:
            raise UsageError(f"args must be plain data, as in YAML: {error}") from None

    @property
    def function(self) -> Function:
        function: Function = self.call
        return function

    def resolve(self, folder: str) -> Self:
        """Make the path of the function's file absolute. The function itself is imported where it is called."""
        return msgspec.structs.replace(self, call=self.function.in_folder(folder))

    def load(self) -> StepKernel:
        return _FunctionKernel(self, stops=False)

    def load_stopping(self) -> StepKernel:
        return _FunctionKernel(self, stops=True)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def call_on(self, call: Callable[..., Any], batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        """Return the batch after the function; with `stops` only up to the first record for which it raises."""
        raise NotImplementedError

    def replay(self, record: pa.RecordBatch) -> None:
        """Call the function on the record."""
        self.function.bind(self.args)(*decode_records(record))


class MappingStep(FunctionStep, frozen=True, kw_only=True):
    """The base of steps whose function returns records, which may have new columns."""

    columns: dict[str, str] = msgspec.field(default_factory=dict)
    """New columns and their Arrow types: `{score: float64}`."""

    def columns_added(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return add_columns(self.name, schema, self.columns)


class _FunctionKernel(StepKernel):
    """The function with its arguments; of a class, an object that the worker keeps.

    With `stops` it is not called again after it has raised.
    """

    def __init__(self, step: FunctionStep, *, stops: bool) -> None:
        self._step = step
        self._call = step.function.bind(step.args)
        self._stops = stops

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self._step.call_on(self._call, batch, stops=self._stops)


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
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:  # in a part that the reader did not parse
        return RefusedRecord("invalid_json", str(error))
    return (
        record if isinstance(record, dict) else RefusedRecord("not_an_object", f"the record is {type(record).__name__}")
    )


class ImageFunction:
    """A function of the user that gets decoded images instead of bytes."""

    def __init__(self, call: Callable[..., Any], schema: pa.Schema, form: str, format: str) -> None:
        self._call = call
        self._columns = list_image_columns(schema)
        self._form = form
        self._format = format

    def __call__(self, record: dict[str, Any]) -> Any:
        contents = {name: record[name] for name in self._columns if record.get(name) is not None}
        try:
            images = {name: self._decode(content) for name, content in contents.items()}
        except ImageError as error:
            raise RefusedRecord(error.reason, error.message) from None
        result = self._call({**record, **images})
        if not isinstance(result, dict):
            return result
        encoded = {}
        for name, value in result.items():
            if name in images and value is images[name] and self._form == "pil":
                encoded[name] = contents[name]
            elif name in self._columns and value is not None and not isinstance(value, bytes):
                encoded[name] = self._encode(name, value, images.get(name), contents.get(name))
        return {**result, **encoded}

    def _decode(self, content: bytes) -> Any:
        image = decode_image(content)
        return np.array(image) if self._form == "numpy" else image

    def _encode(self, name: str, value: Any, before: Any, content: bytes | None) -> bytes:
        if isinstance(value, np.ndarray):
            # The function may have changed the array in place, so it is compared with the pixels that it was made of.
            if value is before and content is not None and np.array_equal(value, np.asarray(decode_image(content))):
                return content
            try:
                value = decode_array(value)
            except (TypeError, ValueError) as error:
                raise RefusedRecord("not_an_image", f"{name}: {error}") from None
        if not hasattr(value, "save"):
            raise RefusedRecord("not_an_image", f"{name} is {type(value).__name__}, not an image or an array")
        try:
            return encode_image(value, self._format)
        except (OSError, ValueError) as error:
            raise RefusedRecord("cannot_encode", f"{name}: {error}") from None
