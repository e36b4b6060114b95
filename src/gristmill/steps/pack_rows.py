"""Tokenized documents as Arrow batches, packed into training rows.

All documents of a unit are in memory together (their ids: some 20 million for 64 MiB of text, and for chats one more
byte each); rows are made a few MiB at a time.

The plan of rows (which piece of which document is where in which row) is made from their lengths; no token is read. O(n
log L) for n documents and rows of L tokens, in compiled code; about 40 bytes a document.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.core.records import IMAGES, IMAGES_TYPE, INPUT_IDS, KINDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE, WEIGHTS
from gristmill.core.token_kinds import KIND_BITS, PADDING, TRAINED
from gristmill.shards.token_rows import (
    LENGTHS,
    ORIGINS,
    check_marks,
    document_lengths,
    encode_kinds,
    find_token_columns,
    has_image_references,
    has_kinds,
    has_weights,
    is_masked,
    pack_bits,
    rows_schema,
)
from gristmill.steps.pack import BEST_FIT, CONCAT, DROP, PAD, TRUNCATE, Pack
from gristmill.steps.packing_kernels import copy_pieces, count_trained, pack_best_fit, pad_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray


_BLOCK_BYTES = 4 << 20
_RUNS = pa.list_(pa.float32())

Values = TypeVar("Values", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Rows of pieces of documents. Rows are in the order of their first pieces, pieces in that of documents and starts.

    All tokens = those in rows + `truncated_tokens` + `dropped_tokens`.
    """

    documents: NDArray[np.int64]
    """For each piece, row after row: the number of its document."""
    starts: NDArray[np.int64]
    """For each piece: its first token in the document."""
    lengths: NDArray[np.int32]
    row_ends: NDArray[np.int64]
    """The pieces of row r are those from `row_ends[r - 1]` (0 for the first row) to `row_ends[r]`."""
    num_split_documents: int
    """The number of documents in more than one piece."""
    num_truncated_documents: int
    truncated_tokens: int
    num_dropped_documents: int
    """The number of documents dropped for their length; those without tokens are counted in `num_empty`."""
    num_untrained_documents: int
    """The number of documents dropped because no token that a row could hold of them is trained."""
    dropped_tokens: int
    """The tokens of both kinds of dropped documents."""
    num_empty: int

    @property
    def num_rows(self) -> int:
        return len(self.row_ends)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in rows."""
        return int(self.lengths.sum(dtype=np.int64))

    def tokens_in_rows(self) -> NDArray[np.int64]:
        """Return how many tokens each row holds."""
        total = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return np.diff(total[self.row_ends], prepend=0)

    def rows(self) -> list[list[int]]:
        """Return the documents of each row as lists, for people."""
        return [row.tolist() for row in np.split(self.documents, self.row_ends[:-1])] if self.num_rows else []


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
    codes: NDArray[np.uint8] | None
    """The kind of each id, and whether it is trained (`core/token_kinds.py`); None: these are not chats."""
    has_kinds: bool
    """Whether the kinds are known."""
    trained: NDArray[np.int64] | None
    """For each document, how many trained tokens a row could hold of it."""
    offsets: NDArray[np.int64]
    origins: pa.StructArray
    weights: list[list[float]] | None = None
    """The runs of weights of each document; None: there are none."""
    images: pa.ListArray | None = None
    """The images of each document; None: these are not chats with images."""
    token_columns: Mapping[str, Sequence[NDArray[np.generic]]] = field(default_factory=dict)
    """Other columns with a number for each id, for each batch of documents."""

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
        if self.weights is not None:
            columns[WEIGHTS] = pa.array(
                _join_weights(self.weights, replace(leftover, row_ends=1 + np.arange(len(ends)))), _RUNS
            )
        if self.images is not None:
            columns[IMAGES] = self.images.take(pa.array(leftover.documents))
        return pa.RecordBatch.from_pydict({ORIGIN: self.origins.take(pa.array(leftover.documents)), **columns})

    def _make_batch(self, packing: Packing) -> pa.RecordBatch:
        row_length = self.pack.row_length
        ends = pa.array(np.concatenate([[0], packing.row_ends]).astype(np.int32))
        flat = self._flatten(packing, row_length)
        columns = {
            **{
                name: pa.FixedSizeListArray.from_arrays(flat[name], row_length)
                for name in flat
                if not (self.has_kinds and name == KINDS)
            },
            LENGTHS: pa.ListArray.from_arrays(ends, pa.array(packing.lengths)),
            ORIGINS: pa.ListArray.from_arrays(ends, self.origins.take(pa.array(packing.documents))),
        }
        if self.has_kinds:
            columns[KINDS] = encode_kinds(flat[KINDS].to_numpy(), np.full(packing.num_rows, row_length))
        if self.weights is not None:
            columns[WEIGHTS] = pa.array(_join_weights(self.weights, packing), _RUNS)
        if self.images is not None:  # those of the documents in a row, one after the other
            images = self.images.take(pa.array(packing.documents))
            columns[IMAGES] = pa.ListArray.from_arrays(images.offsets.take(ends), images.flatten())
        schema = rows_schema(
            pa.from_numpy_dtype(self.ids[0].dtype),
            row_length,
            masked=self.codes is not None,
            has_kinds=self.has_kinds,
            has_weights=self.weights is not None,
            has_images=self.images is not None,
            token_columns={name: pa.from_numpy_dtype(each[0].dtype) for name, each in self.token_columns.items()},
        )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _flatten(self, packing: Packing, row_length: int) -> dict[str, pa.Array]:
        """Return the ids of rows and, for chats, their masks and kinds: padding is not trained."""
        flat = {INPUT_IDS: pa.array(fill_rows(self.ids, self.offsets, packing, row_length, self.pad_id))}
        if self.codes is not None:
            codes = fill_rows([self.codes], self.offsets, packing, row_length, PADDING)
            flat[LOSS_MASK] = pack_bits(codes >= TRAINED)
            if self.has_kinds:
                flat[KINDS] = pa.array(codes & KIND_BITS)
        for name, arrays in self.token_columns.items():
            dtype = arrays[0].dtype
            as_bits = [array.view(f"u{dtype.itemsize}") for array in arrays]  # the padding of each type is zero bits
            flat[name] = pa.array(fill_rows(as_bits, self.offsets, packing, row_length, 0).view(dtype))
        return flat


def pack_documents(
    pack: Pack, pad_id: int, batches: Sequence[pa.RecordBatch], *, keeps_unfinished: bool
) -> PackedDocuments:
    """Pack the documents of all batches; with `keeps_unfinished` also into rows that other units could still fill."""
    ids = [batch.column(INPUT_IDS) for batch in batches]
    lengths = np.concatenate([np.empty(0, np.int64), *map(document_lengths, ids)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    codes = _concatenate_codes(batches) if is_masked(batches[0].schema) else None
    trained = count_trained_tokens(codes, offsets, lengths, pack.row_length) if codes is not None else None
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
        codes=codes,
        has_kinds=has_kinds(batches[0].schema),
        trained=trained,
        offsets=offsets,
        origins=pa.chunked_array([batch.column(ORIGIN) for batch in batches], ORIGIN_TYPE).combine_chunks(),
        weights=[runs for batch in batches for runs in batch.column(WEIGHTS).to_pylist()]
        if has_weights(batches[0].schema)
        else None,
        images=pa.chunked_array([batch.column(IMAGES) for batch in batches], IMAGES_TYPE).combine_chunks()
        if has_image_references(batches[0].schema)
        else None,
        token_columns={name: _flatten_column(batches, name) for name in find_token_columns(batches[0].schema)},
    )


def _flatten_column(batches: Sequence[pa.RecordBatch], name: str) -> list[NDArray[np.generic]]:
    """Return the numbers of a token column of each batch, one for each id."""
    checked = [check_marks(batch, name, document_lengths(batch.column(INPUT_IDS))) for batch in batches]
    return [column.flatten().to_numpy() for column in checked]


def _join_weights(weights: Sequence[list[float]], packing: Packing) -> list[list[float]]:
    """Join the runs of weights of the documents in each row; empty where no document has any."""
    rows: list[list[float]] = []
    first = 0
    for end in packing.row_ends.tolist():
        documents, lengths = packing.documents[first:end].tolist(), packing.lengths[first:end].tolist()
        row: list[float] = []
        if any(weights[document] for document in documents):
            for document, length in zip(documents, lengths, strict=True):
                rest = length  # a chat may be truncated to the beginning that fits into a row
                runs = weights[document] or [length, 1.0]
                for tokens, weight in zip(runs[::2], runs[1::2], strict=True):
                    if rest > 0:
                        row += min(tokens, rest), weight
                    rest -= tokens
        rows.append(row)
        first = end
    return rows


def _concatenate(arrays: Sequence[NDArray[Values]]) -> NDArray[Values]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _concatenate_codes(batches: Sequence[pa.RecordBatch]) -> NDArray[np.uint8]:
    """Join the loss masks and kinds of all batches: a byte a token."""
    return _concatenate([_make_codes(batch) for batch in batches])


def _make_codes(batch: pa.RecordBatch) -> NDArray[np.uint8]:
    sizes = document_lengths(batch.column(INPUT_IDS))
    mask = check_marks(batch, LOSS_MASK, sizes).flatten().to_numpy(zero_copy_only=False)
    codes: NDArray[np.uint8] = mask.view(np.uint8) * np.uint8(TRAINED)
    if has_kinds(batch.schema):
        codes |= check_marks(batch, KINDS, sizes).flatten().to_numpy()
    return codes


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


_MAX_UNFINISHED = 16
"""How many rows of a unit may be packed again with those of other units."""
_WELL_FILLED = 15 / 16
"""The share of tokens from which on a row is not packed again."""


def plan_rows(pack: Pack, lengths: NDArray[np.int64], trained: NDArray[np.int64] | None = None) -> Packing:
    """Plan the rows of documents of these lengths; documents without a `trained` token are dropped (None: none is)."""
    is_long = lengths > pack.row_length
    packed_lengths = lengths
    if pack.long_documents == TRUNCATE:
        packed_lengths = np.minimum(lengths, pack.row_length)
    elif pack.long_documents == DROP:
        packed_lengths = np.where(is_long, 0, lengths)
    num_too_long = int(np.count_nonzero(is_long & (packed_lengths == 0)))
    num_untrained = 0
    if trained is not None:
        is_untrained = (packed_lengths > 0) & (trained == 0)
        num_untrained = int(np.count_nonzero(is_untrained))
        packed_lengths = np.where(is_untrained, 0, packed_lengths)
    is_truncated = (packed_lengths > 0) & (packed_lengths < lengths)
    cut = _cut_anywhere if pack.strategy == CONCAT else _cut_long
    documents, starts, piece_lengths = cut(packed_lengths, pack.row_length)
    if pack.strategy == BEST_FIT:
        # An aligned piece takes up more of a row than it has tokens: 5 of 16 tokens with `align` 16, and 11 stay free.
        spans = -(-piece_lengths // pack.align) * pack.align if pack.align > 1 else piece_lengths
        pieces, row_ends = pack_best_fit(spans, pack.row_length)
        documents, starts, piece_lengths = documents[pieces], starts[pieces], piece_lengths[pieces]
    elif pack.strategy == CONCAT:
        # Pieces fill rows one after the other.
        ends = np.cumsum(piece_lengths, dtype=np.int64)
        is_last = ends % pack.row_length == 0
        if len(is_last):
            is_last[-1] = True
        row_ends = np.flatnonzero(is_last) + 1
    else:
        row_ends = np.arange(1, len(piece_lengths) + 1, dtype=np.int64)
    num_pieces = np.bincount(documents, minlength=len(lengths))
    return Packing(
        documents=documents,
        starts=starts,
        lengths=piece_lengths,
        row_ends=row_ends,
        num_split_documents=int(np.count_nonzero(num_pieces > 1)),
        num_truncated_documents=int(np.count_nonzero(is_truncated)),
        truncated_tokens=int((lengths - packed_lengths)[is_truncated].sum()),
        num_dropped_documents=num_too_long,
        num_untrained_documents=num_untrained,
        dropped_tokens=int(lengths[packed_lengths == 0].sum()),
        num_empty=int(np.count_nonzero(lengths == 0)),
    )


def count_trained_tokens(
    codes: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64], row_length: int
) -> NDArray[np.int64]:
    """Count the trained tokens that a row could hold of each document: of a longer document, those in its beginning.

    >>> codes = np.array([23, 0, 5, 23], np.uint8)
    >>> count_trained_tokens(codes, np.array([0, 1, 4]), np.array([1, 3]), row_length=2)
    array([1, 0])
    """
    counts = np.empty(len(lengths), dtype=np.int64)
    count_trained(_as_read_only(codes), offsets[:-1], np.minimum(lengths, row_length), counts)
    return counts


def find_unfinished_rows(pack: Pack, packing: Packing) -> NDArray[np.int64]:
    """Find the rows that are worth packing again together with those of other units, in order.

    For `best_fit` these are the least filled ones, at most `_MAX_UNFINISHED` and only with space worth filling; for
    `concat` the last one if it is not full. `pad` has none: its rows hold one document.
    """
    if pack.strategy == PAD:
        return np.empty(0, dtype=np.int64)
    filled = packing.tokens_in_rows()
    if pack.strategy == CONCAT:
        return np.flatnonzero(filled < pack.row_length)
    emptiest = np.argsort(filled, kind="stable")[:_MAX_UNFINISHED]
    return np.sort(emptiest[filled[emptiest] < _WELL_FILLED * pack.row_length])


def fill_rows(
    ids: Sequence[NDArray[np.unsignedinteger]],
    offsets: NDArray[np.int64],
    packing: Packing,
    row_length: int,
    pad_id: int,
) -> NDArray[np.unsignedinteger]:
    """Return the ids (or codes) of all rows, one after the other. Document d has `ids[offsets[d]:offsets[d + 1]]`.

    The ids are in one array or several, which are read as one; no document is in two. They are not joined: for a unit
    that would be one more copy of everything, in memory that is new to the process.

    >>> from gristmill.steps.pack import Pack
    >>> packing = plan_rows(Pack(row_length=4), np.array([3, 2]))
    >>> ids = [np.array([1, 2, 3], dtype=np.uint16), np.array([4, 5], dtype=np.uint16)]
    >>> fill_rows(ids, np.array([0, 3, 5]), packing, 4, pad_id=0)
    array([1, 2, 3, 0, 4, 5, 0, 0], dtype=uint16)
    """
    first = offsets[packing.documents] + packing.starts
    filled = packing.tokens_in_rows()
    padding = row_length - filled
    padding_before = np.repeat(np.cumsum(padding) - padding, np.diff(packing.row_ends, prepend=0))
    places = np.cumsum(packing.lengths, dtype=np.int64) - packing.lengths + padding_before
    rows = np.empty(packing.num_rows * row_length, dtype=ids[0].dtype)
    pad_rows(filled, row_length, rows, rows.dtype.type(pad_id))
    array_starts = np.cumsum([0, *map(len, ids)])
    array_of = np.searchsorted(array_starts, first, side="right") - 1
    in_order = np.argsort(array_of, kind="stable")
    borders = np.searchsorted(array_of[in_order], np.arange(len(ids) + 1))
    for number, array in enumerate(ids):
        pieces = in_order[borders[number] : borders[number + 1]]
        copy_pieces(
            _as_read_only(array), first[pieces] - array_starts[number], packing.lengths[pieces], places[pieces], rows
        )
    return rows


def call_kernels() -> None:
    """Pack three documents into rows of 4 tokens, so that a run compiles the functions before its workers start."""
    lengths, offsets = np.array([3, 1, 2]), np.array([0, 3, 4, 6])
    packing = plan_rows(Pack(row_length=4), lengths)
    for kind in (np.uint16, np.uint32, np.uint8):  # ids of both widths, and codes
        fill_rows([np.arange(6, dtype=kind)], offsets, packing, 4, 0)
    count_trained_tokens(np.ones(6, dtype=np.uint8), offsets, lengths, 4)


def _as_read_only(values: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """Return a read-only view, since Arrow's arrays are read-only: a kernel is compiled once more for writable ones."""
    view = values.view()
    view.flags.writeable = False
    return view


Pieces = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int32]"]


def _cut_long(lengths: NDArray[np.int64], row_length: int) -> Pieces:
    """Return documents as pieces; those longer than a row as full rows and the rest."""
    num_pieces = -(-lengths // row_length)
    documents = np.repeat(np.arange(len(lengths)), num_pieces)
    first_piece = np.cumsum(num_pieces) - num_pieces
    starts = (np.arange(len(documents)) - first_piece[documents]) * row_length
    return documents, starts, np.minimum(lengths[documents] - starts, row_length).astype(np.int32)


def _cut_anywhere(lengths: NDArray[np.int64], row_length: int) -> Pieces:
    """Return documents one after the other, cut where they end and where a row ends."""
    document_ends = np.cumsum(lengths)
    total = int(document_ends[-1]) if len(lengths) else 0
    ends = np.concatenate([document_ends, np.arange(row_length, total, row_length)])
    ends.sort(kind="stable")  # two sorted runs: merged in O(n)
    ends = ends[np.diff(ends, prepend=0) > 0]
    piece_lengths = np.diff(ends, prepend=0)
    documents = np.searchsorted(document_ends, ends)
    document_starts = document_ends - lengths
    return documents, ends - piece_lengths - document_starts[documents], piece_lengths.astype(np.int32)
