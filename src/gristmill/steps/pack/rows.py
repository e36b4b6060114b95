"""The plan of rows: which piece of which document is where in which row, from the lengths of all documents of a unit.

No token is read. O(n log L) for n documents and rows of L tokens, in compiled code; about 40 bytes a document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.steps.pack.kernels import copy_pieces, count_trained, pack_best_fit, pad_rows
from gristmill.steps.pack.pack import BEST_FIT, CONCAT, DROP, PAD, TRUNCATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.steps.pack.pack import Pack


_MAX_UNFINISHED = 16
"""How many rows of a unit may be packed again with those of other units."""
_WELL_FILLED = 15 / 16
"""The share of tokens from which on a row is not packed again."""


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
        row_ends = _end_full_rows(piece_lengths, pack.row_length)
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
    mask: NDArray[np.bool_], offsets: NDArray[np.int64], lengths: NDArray[np.int64], row_length: int
) -> NDArray[np.int64]:
    """Count the trained tokens that a row could hold of each document: of a longer document, those in its beginning.

    >>> count_trained_tokens(np.array([True, False, False, True]), np.array([0, 1, 4]), np.array([1, 3]), row_length=2)
    array([1, 0])
    """
    counts = np.empty(len(lengths), dtype=np.int64)
    count_trained(_as_read_only(mask.view(np.uint8)), offsets[:-1], np.minimum(lengths, row_length), counts)
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
    """Return the ids (or marks) of all rows, one after the other. Document d has `ids[offsets[d]:offsets[d + 1]]`.

    The ids are in one array or several, which are read as one; no document is in two. They are not joined: for a unit
    that would be one more copy of everything, in memory that is new to the process.

    >>> from gristmill.steps.pack.pack import Pack
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


def _end_full_rows(piece_lengths: NDArray[np.int32], row_length: int) -> NDArray[np.int64]:
    """Return where rows end among pieces that fill them one after the other."""
    ends = np.cumsum(piece_lengths, dtype=np.int64)
    is_last = ends % row_length == 0
    if len(is_last):
        is_last[-1] = True
    return np.flatnonzero(is_last) + 1
