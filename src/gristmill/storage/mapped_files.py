"""Files in memory: local ones are mapped, so that only what is used is read; those of a store are fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.storage.wait_clock import wait_clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.storage.locations import Location


def open_stream_source(path: Location) -> pa.NativeFile:
    """Open a file for Arrow. One of a store is read in order, with ranges fetched ahead."""
    return pa.memory_map(str(path)) if isinstance(path, Path) else pa.PythonFile(path.open(), mode="r")


def map_array(path: Location, kind: np.dtype[Any] | type) -> NDArray[Any]:
    """Map a file that is not empty as an array."""
    if isinstance(path, Path):
        return np.memmap(path, dtype=kind, mode="r")
    return np.frombuffer(path.read_bytes(), dtype=kind)


def read_array(path: Location, kind: np.dtype[Any] | type, start: int = 0, count: int = -1) -> NDArray[Any]:
    """Read `count` items of a file from byte `start` on; -1: all that follow."""
    if isinstance(path, Path):
        return np.fromfile(path, dtype=kind, count=count, offset=start)
    store, key = path.open_store()
    stop = None if count < 0 else start + count * np.dtype(kind).itemsize
    with wait_clock.waiting():
        data = store.read(key, start, stop)
    wait_clock.count_read(key, len(data))
    return np.frombuffer(data, dtype=kind)


def read_bytes(path: Location, start: int, count: int) -> bytes:
    """Read a range of a file."""
    return read_array(path, np.uint8, start, count).tobytes()
