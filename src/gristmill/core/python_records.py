"""Records that a program holds, as a source, told by their shape: an iterable of dicts or of texts, a table (a frame of
pandas or polars, Arrow tables, whatever hands out Arrow streams), or a dataset of `datasets`.

Looking at the first records does not consume them: what was taken from a generator is given again. Taken as a whole,
a generator is spent; a second time is refused, since it would look like a source without records.
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
    """What `Read(read=...)` was given instead of paths.

    >>> records = PythonRecords.of({"text": text} for text in "abc")
    >>> [part] = records.parts.values()
    >>> part.peek(1), list(part.take_all())
    ([{'text': 'a'}], [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}])
    """

    __slots__ = ("_kind", "has_splits", "parts")

    def __init__(self, kind: str, parts: Mapping[str, RecordIterable], *, has_splits: bool) -> None:
        self._kind = kind
        self.parts = dict(parts)
        """By name: the splits of a DatasetDict, or the one of a Dataset; else `records`."""
        self.has_splits = has_splits

    @classmethod
    def of(cls, given: object) -> PythonRecords:
        kind = type(given).__name__
        if isinstance(given, Mapping):
            if not given or not all(_is_dataset(split) for split in given.values()):
                raise UsageError(f"read: a {kind} is one record or none, not a source", help="put records in a list")
            return cls(kind, {str(name): RecordIterable(split) for name, split in given.items()}, has_splits=True)
        is_records = isinstance(given, Iterable) or is_table(given)
        if not is_records or isinstance(given, (bytes, bytearray, memoryview)):
            hint = "give paths, a table, or an iterable of dicts or texts"
            if hasattr(type(given), "collect"):  # a lazy frame
                hint = "collect it first: read=frame.collect()"
            elif callable(given):
                hint = "call it: read=my_records()"
            raise UsageError(f"read: {given!r:.100} is neither paths nor records", help=hint)
        # `train[:10%]` is a part of a split, `train+test` is neither.
        split = str(getattr(given, "split", None) or TRAIN).partition("[")[0] if _is_dataset(given) else TRAIN
        has_splits = split != TRAIN
        return cls(kind, {split if has_splits else DEFAULT_NAME: RecordIterable(given)}, has_splits=has_splits)

    def __str__(self) -> str:
        return f"<{self._kind} from Python>"

    __repr__ = __str__


class RecordIterable:
    """One iterable of records."""

    __slots__ = ("_ahead", "_batches", "_given", "_is_spent", "_iterator")

    def __init__(self, given: Any) -> None:
        self._given = given
        self._iterator: Iterator[Any] | None = given if isinstance(given, Iterator) else None
        self._ahead: list[Any] = []
        self._batches: RecordIterable | None = None
        self._is_spent = inspect.isgenerator(given) and inspect.getgeneratorstate(given) == inspect.GEN_CLOSED

    @property
    def is_table(self) -> bool:
        """Whether its records are rows of a table: they keep the types of its columns."""
        return is_table(self._given)

    @property
    def dataset(self) -> Any | None:
        """The dataset, if it is one of `datasets` that holds an Arrow table."""
        is_table = _is_dataset(self._given) and hasattr(self._given, "data") and hasattr(self._given, "_indices")
        return self._given if is_table else None

    def as_iterator(self, make: Callable[[Any], Iterator[Any]]) -> RecordIterable:
        """A part over what `make` makes of it, the batches of a table; of a one-time stream, always one."""
        if not hasattr(self._given, "read_next_batch"):
            return RecordIterable(make(self._given))
        if self._batches is None:
            self._batches = RecordIterable(make(self._given))
        return self._batches

    def peek(self, count: int) -> list[Any]:
        """The first records, which come again with `take_all`."""
        self._refuse_spent()
        if self._iterator is None:
            return list(itertools.islice(self._given, count))
        self._ahead += itertools.islice(self._iterator, max(0, count - len(self._ahead)))
        return self._ahead[:count]

    def take_all(self) -> Iterator[Any]:
        self._refuse_spent()
        if self._iterator is None:
            return iter(self._given)
        self._is_spent = True
        ahead, self._ahead = self._ahead, []
        return itertools.chain(ahead, self._iterator)

    def _refuse_spent(self) -> None:
        if self._is_spent:
            raise UsageError(
                "read: this generator or stream has been read to its end already",
                help="make a new one for each run; what an earlier run finished is kept",
            )


def is_table(given: object) -> bool:
    """Whether it hands out its rows as an Arrow stream: a frame of pandas or polars, neither of which is imported."""
    kind = type(given)
    has_columns = hasattr(kind, "columns") or hasattr(kind, "schema")  # a column alone hands out a stream, too
    return hasattr(kind, "__arrow_c_stream__") and has_columns and not _is_dataset(given)


def _is_dataset(given: object) -> bool:
    """Whether it is a Dataset or IterableDataset of `datasets`, which is not imported for this."""
    return all(hasattr(given, name) for name in ("with_format", "features", "__iter__"))
