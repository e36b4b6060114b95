"""Tokenized documents as Arrow batches, packed into training rows.

All documents of a unit are in memory together (their ids: some 20 million for 64 MiB of text, and for chats one more
byte each); rows are made a few MiB at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.core.records import IMAGES, IMAGES_TYPE, INPUT_IDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE
from gristmill.shards.token_rows import (
    LENGTHS,
    ORIGINS,
    check_mask,
    document_lengths,
    has_image_references,
    is_masked,
    rows_schema,
)
from gristmill.steps.pack.rows import count_trained_tokens, fill_rows, find_unfinished_rows, plan_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.pack.rows import Packing

_BLOCK_BYTES = 4 << 20

Values = TypeVar("Values", bound=np.generic)


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """The rows of some documents, and the documents left over for a later packing."""

    pack: Pack
    pad_id: int
    packing: Packing
    """The rows that are written."""
    leftover: Packing
    """Rows that are worth packing again with those of other units."""
    ids: Sequence[NDArray[np.unsignedinteger]]
    """The ids of each batch of documents."""
    mask: NDArray[np.bool_] | None
    """Which of the ids are trained; None: these are not chats."""
    trained: NDArray[np.int64] | None
    """For each document, how many trained tokens a row could hold of it."""
    offsets: NDArray[np.int64]
    origins: pa.StructArray
    images: pa.ListArray | None = None
    """The images of each document; None: these are not chats with images."""

    @property
    def num_trained_tokens(self) -> int | None:
        """The trained tokens in the rows that are written; only for chats, which are never in two pieces."""
        return None if self.trained is None else int(self.trained[self.packing.documents].sum())

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of a fixed number."""
        row_length = self.pack.row_length
        step = max(1, _BLOCK_BYTES // (row_length * self.ids[0].itemsize))
        for first in range(0, self.packing.num_rows, step):
            yield self._make_batch(_slice_rows(self.packing, first, min(first + step, self.packing.num_rows)))

    def make_leftover_documents(self) -> pa.RecordBatch:
        """Return the pieces of documents in leftover rows, each as a document."""
        leftover = self.leftover
        ends = np.cumsum(leftover.lengths, dtype=np.int64)
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        in_one_row = replace(leftover, row_ends=np.array([len(leftover.lengths)]))
        flat = self._flatten(in_one_row, int(ends[-1]) if len(ends) else 0)
        columns = {name: pa.ListArray.from_arrays(offsets, values) for name, values in flat.items()}
        if self.images is not None:
            columns[IMAGES] = self.images.take(pa.array(leftover.documents))
        return pa.RecordBatch.from_pydict({ORIGIN: self.origins.take(pa.array(leftover.documents)), **columns})

    def _make_batch(self, packing: Packing) -> pa.RecordBatch:
        row_length = self.pack.row_length
        ends = pa.array(np.concatenate([[0], packing.row_ends]).astype(np.int32))
        flat = self._flatten(packing, row_length)
        columns = {
            **{name: pa.FixedSizeListArray.from_arrays(values, row_length) for name, values in flat.items()},
            LENGTHS: pa.ListArray.from_arrays(ends, pa.array(packing.lengths)),
            ORIGINS: pa.ListArray.from_arrays(ends, self.origins.take(pa.array(packing.documents))),
        }
        if self.images is not None:  # those of the documents in a row, one after the other
            images = self.images.take(pa.array(packing.documents))
            columns[IMAGES] = pa.ListArray.from_arrays(images.offsets.take(ends), images.flatten())
        schema = rows_schema(
            pa.from_numpy_dtype(self.ids[0].dtype),
            row_length,
            masked=self.mask is not None,
            has_images=self.images is not None,
        )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _flatten(self, packing: Packing, row_length: int) -> dict[str, pa.Array]:
        """Return the ids of rows and, for chats, their masks: padding is not trained."""
        flat = {INPUT_IDS: pa.array(fill_rows(self.ids, self.offsets, packing, row_length, self.pad_id))}
        if self.mask is not None:
            marks = fill_rows([self.mask.view(np.uint8)], self.offsets, packing, row_length, 0)
            bits = pa.py_buffer(np.packbits(marks, bitorder="little"))  # pa.array would take ten times as long
            flat[LOSS_MASK] = pa.Array.from_buffers(pa.bool_(), len(marks), [None, bits])
        return flat


def pack_documents(
    pack: Pack, pad_id: int, batches: Sequence[pa.RecordBatch], *, keeps_unfinished: bool
) -> PackedDocuments:
    """Pack the documents of all batches; with `keeps_unfinished` also into rows that other units could still fill."""
    ids = [batch.column(INPUT_IDS) for batch in batches]
    lengths = np.concatenate([np.empty(0, np.int64), *map(document_lengths, ids)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = _concatenate_masks(batches) if is_masked(batches[0].schema) else None
    trained = count_trained_tokens(mask, offsets, lengths, pack.row_length) if mask is not None else None
    packing = plan_rows(pack, lengths, trained)
    unfinished = np.empty(0, np.int64) if keeps_unfinished else find_unfinished_rows(pack, packing)
    return PackedDocuments(
        pack=pack,
        pad_id=pad_id,
        packing=_select_rows(packing, np.delete(np.arange(packing.num_rows), unfinished))
        if len(unfinished)
        else packing,
        leftover=_select_rows(packing, unfinished),
        ids=[array.flatten().to_numpy() for array in ids],
        mask=mask,
        trained=trained,
        offsets=offsets,
        origins=pa.chunked_array([batch.column(ORIGIN) for batch in batches], ORIGIN_TYPE).combine_chunks(),
        images=pa.chunked_array([batch.column(IMAGES) for batch in batches], IMAGES_TYPE).combine_chunks()
        if has_image_references(batches[0].schema)
        else None,
    )


def _concatenate(arrays: Sequence[NDArray[Values]]) -> NDArray[Values]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _concatenate_masks(batches: Sequence[pa.RecordBatch]) -> NDArray[np.bool_]:
    """Join the loss masks of all batches: a byte a token."""
    masks = [check_mask(batch, document_lengths(batch.column(INPUT_IDS))) for batch in batches]
    return _concatenate([mask.flatten().to_numpy(zero_copy_only=False) for mask in masks])


def _slice_rows(packing: Packing, first: int, stop: int) -> Packing:
    start = int(packing.row_ends[first - 1]) if first else 0
    end = int(packing.row_ends[stop - 1])
    return replace(
        packing,
        documents=packing.documents[start:end],
        starts=packing.starts[start:end],
        lengths=packing.lengths[start:end],
        row_ends=packing.row_ends[first:stop] - start,
    )


def _select_rows(packing: Packing, rows: NDArray[np.int64]) -> Packing:
    """Return the packing of these rows only."""
    starts = np.concatenate([[0], packing.row_ends])
    sizes = packing.row_ends[rows] - starts[rows]
    row_ends = np.cumsum(sizes)
    pieces = np.arange(int(row_ends[-1]) if len(row_ends) else 0) + np.repeat(starts[rows] - (row_ends - sizes), sizes)
    return replace(
        packing,
        documents=packing.documents[pieces],
        starts=packing.starts[pieces],
        lengths=packing.lengths[pieces],
        row_ends=row_ends,
    )
