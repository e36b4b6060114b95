"""Small batches of documents, for the examples in docstrings and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.records import ORIGIN, TEXT, TEXT_TYPE, make_origins

if TYPE_CHECKING:
    from collections.abc import Sequence


def documents(texts: Sequence[str], *, first: int = 0, **columns: Sequence[object] | pa.Array) -> pa.RecordBatch:
    """Make a batch of these texts and columns, numbered from `first` in one file.

    >>> documents(["hi", "hello"], url=["a.org", "b.org"]).column_names
    ['origin', 'text', 'url']
    """
    arrays = {name: pa.array(values) for name, values in columns.items()}
    positions = pa.array(range(first, first + len(texts)), pa.uint64())
    return pa.RecordBatch.from_pydict({ORIGIN: make_origins(1, positions), TEXT: pa.array(texts, TEXT_TYPE), **arrays})


def texts(batch: pa.RecordBatch) -> list[str]:
    """Return the texts of a batch as a list."""
    values: list[str] = batch.column(TEXT).to_pylist()
    return values
