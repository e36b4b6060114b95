"""Records that a program holds, as a source: an iterable of dicts, or a dataset of `datasets`, told by its shape.

Looking at the first records does not consume them: what was taken from a generator is given again. Taken as a whole,
a generator is spent; a second time is refused, since it would look like a source without records.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gristmill.core.errors import UsageError
from gristmill.core.names import one_of

ONLY_PART = "records"


class PythonRecords:
    """What `Read(read=...)` was given instead of paths.

    >>> records = PythonRecords.of({"text": text} for text in "abc")
    >>> [part] = records.parts(None).values()
    >>> part.first(1), list(part.take_all())
    ([{'text': 'a'}], [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}])
    """

    __slots__ = ("_kind", "_parts")

    def __init__(self, kind: str, parts: Mapping[str, RecordPart]) -> None:
        self._kind = kind
        self._parts = dict(parts)

    @classmethod
    def of(cls, given: object) -> PythonRecords:
        kind = type(given).__name__
        if isinstance(given, Mapping):
            if not given or not all(_is_dataset(split) for split in given.values()):
                raise UsageError(f"read: a {kind} is one record or none, not a source", help="put records in a list")
            return cls(kind, {str(split): RecordPart(dataset) for split, dataset in given.items()})
        if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray, memoryview)):
            hint = "call it: read=my_records()" if callable(given) else "give paths, or an iterable of dicts"
            raise UsageError(f"read: {given!r:.100} is neither paths nor records", help=hint)
        return cls(kind, {ONLY_PART: RecordPart(given)})

    def parts(self, split: str | None) -> dict[str, RecordPart]:
        """By name: the splits of a DatasetDict, or one of them; else `records`."""
        if split is None:
            return self._parts
        if list(self._parts) == [ONLY_PART]:
            raise UsageError("split: these records have no splits", help="leave it out")
        one_of("split", split, list(self._parts))
        return {split: self._parts[split]}

    def __str__(self) -> str:
        return f"<{self._kind} from Python>"

    __repr__ = __str__


class RecordPart:
    """One iterable of records."""

    __slots__ = ("_ahead", "_given", "_is_spent", "_iterator")

    def __init__(self, given: Iterable[Any]) -> None:
        self._given = given
        self._iterator: Iterator[Any] | None = given if isinstance(given, Iterator) else None
        self._ahead: list[Any] = []
        self._is_spent = inspect.isgenerator(given) and inspect.getgeneratorstate(given) == inspect.GEN_CLOSED

    @property
    def table(self) -> Any | None:
        """The dataset, if it is one of `datasets` that holds an Arrow table."""
        is_table = _is_dataset(self._given) and hasattr(self._given, "data") and hasattr(self._given, "_indices")
        return self._given if is_table else None

    def first(self, count: int) -> list[Any]:
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
                "read: this generator has been read to its end already",
                help="make a new one for each run; what an earlier run finished is kept",
            )


def _is_dataset(given: object) -> bool:
    """Whether it is a Dataset or IterableDataset of `datasets`, which is not imported for this."""
    return all(hasattr(given, name) for name in ("with_format", "features", "__iter__"))
