"""Lists of millions of units, which take 330 bytes and more each as objects.

A list holds them pickled and compressed, 512 at a time: about 40 bytes each. A shorter one holds the objects.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

_PACKED_ITEMS = 512


class PackedList(Collection[T]):
    """Items in order, which can be iterated over any number of times; objects of `shared_types` are never copied.

    >>> list(PackedList(range(3), shared_types=()))
    [0, 1, 2]
    """

    def __init__(self, items: Iterable[T] = (), *, shared_types: tuple[type, ...]) -> None:
        self._packed: list[bytes] = []
        self._last: list[T] = []
        self._shared: list[object] = []
        """Objects of the shared types; packed items name them by their places in this list."""
        places: dict[int, int] = {}
        for item in items:
            self._last.append(item)
            if len(self._last) == _PACKED_ITEMS:
                file = io.BytesIO()
                _SharingPickler(file, shared_types, self._shared, places).dump(self._last)
                self._packed.append(zlib.compress(file.getbuffer(), 1))
                self._last = []

    def __len__(self) -> int:
        return len(self._packed) * _PACKED_ITEMS + len(self._last)

    def __contains__(self, item: object) -> bool:
        return any(item == other for other in self)

    def __iter__(self) -> Iterator[T]:
        for packed in self._packed:
            yield from _SharingUnpickler(io.BytesIO(zlib.decompress(packed)), self._shared).load()
        yield from self._last


class _SharingPickler(pickle.Pickler):
    """Pickles items without the objects that they share with others."""

    def __init__(
        self, file: io.BytesIO, shared_types: tuple[type, ...], shared: list[object], places: dict[int, int]
    ) -> None:
        super().__init__(file, protocol=5)
        self._shared_types = shared_types
        self._shared = shared
        self._places = places
        """Where each shared object is, by its identity."""

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._shared_types):
            return None
        place = self._places.setdefault(id(obj), len(self._shared))
        if place == len(self._shared):
            self._shared.append(obj)
        return place


class _SharingUnpickler(pickle.Unpickler):
    """Unpickles what `_SharingPickler` has written in this process."""

    def __init__(self, file: io.BytesIO, shared: list[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> object:
        return self._shared[pid]
