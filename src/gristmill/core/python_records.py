"""Python objects as a source of records, recognized by their shape: an iterable of dicts or of texts, a table (a frame
of pandas or polars, Arrow tables, anything that exports Arrow streams), or a dataset of `datasets`.

Peeking at the first records does not consume them: a later read of all records returns them again. Reading all records
consumes a generator. A second read of it is refused, since it would look like a source without records.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gristmill.core.errors import UsageError
from gristmill.core.splits import TRAIN

DEFAULT_NAME = "records"


class PythonRecords:
    """The records that `Read(read=...)` got instead of paths.

    >>> records = PythonRecords.of({"text": text} for text in "abc")
    >>> [part] = records.parts.values()
    >>> part.peek(1), list(part.take_all())
    ([{'text': 'a'}], [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}])
    """

    __slots__ = ("_kind", "has_splits", "parts")

    def __init__(self, kind: str, parts: Mapping[str, RecordIterable], *, has_splits: bool) -> None:
        self._kind = kind
        self.parts = dict(parts)
        """Iterables by name: the splits of a DatasetDict, or the split of a Dataset; else `records`."""
        self.has_splits = has_splits

    @classmethod
    def of(cls, value: object) -> PythonRecords:
        """Recognize an object as a source of records. Raises `UsageError` if it is none."""
        kind = type(value).__name__
        if isinstance(value, Mapping):
            if not value or not all(_is_dataset(split) for split in value.values()):
                raise UsageError(f"read: a {kind} is not a source of records", help="put records in a list")
            return cls(kind, {str(name): RecordIterable(split) for name, split in value.items()}, has_splits=True)
        is_records = isinstance(value, Iterable) or is_table(value)
        if not is_records or isinstance(value, (bytes, bytearray, memoryview)):
            hint = "pass paths, a table, or an iterable of dicts or texts"
            if hasattr(type(value), "collect"):  # a lazy frame
                hint = "collect it first: read=frame.collect()"
            elif callable(value):
                hint = "call it: read=my_records()"
            raise UsageError(f"read: {value!r:.100} is neither paths nor records", help=hint)
        # `train[:10%]` is a part of a split, `train+test` is neither.
        split = str(getattr(value, "split", None) or TRAIN).partition("[")[0] if _is_dataset(value) else TRAIN
        has_splits = split != TRAIN
        return cls(kind, {split if has_splits else DEFAULT_NAME: RecordIterable(value)}, has_splits=has_splits)

    def __str__(self) -> str:
        return f"<{self._kind} from Python>"

    __repr__ = __str__


class RecordIterable:
    """An iterable of records that can be peeked at."""

    __slots__ = ("_ahead", "_batches", "_is_spent", "_iterator", "_source")

    def __init__(self, value: Any) -> None:
        self._source = value
        self._iterator: Iterator[Any] | None = value if isinstance(value, Iterator) else None
        self._ahead: list[Any] = []
        self._batches: RecordIterable | None = None
        self._is_spent = inspect.isgenerator(value) and inspect.getgeneratorstate(value) == inspect.GEN_CLOSED

    @property
    def is_table(self) -> bool:
        """Whether its records are rows of a table, which keep the types of its columns."""
        return is_table(self._source)

    @property
    def dataset(self) -> Any | None:
        """The dataset, if it is one of `datasets` with an Arrow table."""
        is_table = _is_dataset(self._source) and hasattr(self._source, "data") and hasattr(self._source, "_indices")
        return self._source if is_table else None

    def as_iterator(self, make: Callable[[Any], Iterator[Any]]) -> RecordIterable:
        """Return an iterable over what `make` returns, such as batches of a table. A stream always has the same one."""
        if not hasattr(self._source, "read_next_batch"):
            return RecordIterable(make(self._source))
        if self._batches is None:
            self._batches = RecordIterable(make(self._source))
        return self._batches

    def peek(self, count: int) -> list[Any]:
        """Return the first records; `take_all` returns them again."""
        self._refuse_spent()
        if self._iterator is None:
            return list(itertools.islice(self._source, count))
        self._ahead += itertools.islice(self._iterator, max(0, count - len(self._ahead)))
        return self._ahead[:count]

    def take_all(self) -> Iterator[Any]:
        """Return all records, those that were peeked at included. A generator or stream can be read only once."""
        self._refuse_spent()
        if self._iterator is None:
            return iter(self._source)
        self._is_spent = True
        ahead, self._ahead = self._ahead, []
        return itertools.chain(ahead, self._iterator)

    def _refuse_spent(self) -> None:
        if self._is_spent:
            raise UsageError(
                "read: this generator or stream has already been read to its end",
                help="create a new one for each run; finished work of an earlier run is kept",
            )


def is_table(value: object) -> bool:
    """Whether it exports its rows as an Arrow stream, such as a frame of pandas or polars. Neither is imported."""
    kind = type(value)
    has_columns = hasattr(kind, "columns") or hasattr(kind, "schema")  # a single column exports a stream, too
    return hasattr(kind, "__arrow_c_stream__") and has_columns and not _is_dataset(value)


def _is_dataset(value: object) -> bool:
    """Whether it is a Dataset or IterableDataset of `datasets`, which is not imported."""
    return all(hasattr(value, name) for name in ("with_format", "features", "__iter__"))
