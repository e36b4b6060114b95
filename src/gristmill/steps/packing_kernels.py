"""The compiled loops of packing: best-fit decreasing in O(n log L), and the copying of pieces into rows.

Best-fit decreasing goes through pieces from the longest to the shortest and puts each into the row that it fills best:
the one with the least space that is enough. Only if no row has enough space does it open a new one. So at most one row
can end up half empty or more: if there were two, the first piece of the later one would have fitted into the earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.token_kinds import TRAINED
from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def _sort_longest_first(
    lengths: NDArray[np.int32], row_length: int, slots: NDArray[np.int64], order: NDArray[np.int64]
) -> None:
    """Sort piece numbers by a stable counting sort. `slots` is scratch memory for row_length + 2 zeros."""
    for length in lengths:
        slots[row_length - length + 1] += 1
    for index in range(1, row_length + 2):
        slots[index] += slots[index - 1]
    for piece in range(len(lengths)):
        key = row_length - lengths[piece]
        order[slots[key]] = piece
        slots[key] += 1


@kernel
def _choose_rows(
    lengths: NDArray[np.int32],
    order: NDArray[np.int64],
    row_length: int,
    filled: NDArray[np.bool_],
    top: NDArray[np.int64],
    below: NDArray[np.int64],
    row_of: NDArray[np.int64],
) -> int:
    """Write the row of each piece, with rows numbered as they are opened; return how many there are.

    Open rows are in one stack for each amount of free space: `top[free]` is the top row, and `below[row]` the next one.
    `filled` is a binary tree over the amounts, whose leaves are a power of two: a node is set if a stack under it holds
    a row. The best row for a piece is in the first stack at or right of its length, found by climbing until a right
    neighbour is set and then descending to the left end of that neighbour.
    """
    leaves = len(filled) // 2
    num_rows = 0
    for piece in order:
        length = lengths[piece]
        node = leaves + length
        if not filled[node]:
            # An odd node is a right child: its right neighbour has another parent, so climb further.
            while node > 1 and (node % 2 == 1 or not filled[node + 1]):
                node //= 2
            if node > 1:
                node += 1
                while node < leaves:
                    node = 2 * node if filled[2 * node] else 2 * node + 1
        if node > 1:
            free = node - leaves
            row = top[free]
            top[free] = below[row]
            if top[free] < 0:
                # The last row of this stack: a parent stays set only while its other child (`node ^ 1`) is.
                filled[node] = False
                while node > 1 and not filled[node ^ 1]:
                    node //= 2
                    filled[node] = False
        else:
            free = row_length
            row = num_rows
            num_rows += 1
        row_of[piece] = row
        free -= length
        # A full row is in no stack: no later piece is compared with it.
        if free > 0:
            below[row] = top[free]
            top[free] = row
            node = leaves + free
            while node >= 1 and not filled[node]:
                filled[node] = True
                node //= 2
    return num_rows


@kernel
def _group_by_row(
    row_of: NDArray[np.int64], rank: NDArray[np.int64], row_ends: NDArray[np.int64], pieces: NDArray[np.int64]
) -> None:
    """Write piece numbers row after row, and where each row ends; rows are in the order of their first pieces.

    For each row, `rank` must be -1 and `row_ends` 0.
    """
    num_seen = 0
    for row in row_of:
        if rank[row] < 0:
            rank[row] = num_seen
            num_seen += 1
        row_ends[rank[row]] += 1
    position = 0
    for row in range(len(row_ends)):  # counts become starts, and the loop below moves each start to its end
        count = row_ends[row]
        row_ends[row] = position
        position += count
    for piece in range(len(row_of)):
        row = rank[row_of[piece]]
        pieces[row_ends[row]] = piece
        row_ends[row] += 1


def pack_best_fit(lengths: NDArray[np.int32], row_length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return piece numbers row after row, and the end of each row among them.

    Rows are in the order of their first pieces, and the pieces of a row in their own order.
    """
    num_pieces = len(lengths)
    order = np.empty(num_pieces, dtype=np.int64)
    _sort_longest_first(lengths, row_length, np.zeros(row_length + 2, dtype=np.int64), order)
    filled = np.zeros(2 << row_length.bit_length(), dtype=np.bool_)
    top = np.full(row_length + 1, -1, dtype=np.int64)
    row_of = np.empty(num_pieces, dtype=np.int64)
    num_rows = _choose_rows(lengths, order, row_length, filled, top, np.empty(num_pieces, dtype=np.int64), row_of)
    row_ends = np.zeros(num_rows, dtype=np.int64)
    pieces = order  # reuse its memory
    _group_by_row(row_of, np.full(num_rows, -1, dtype=np.int64), row_ends, pieces)
    return pieces, row_ends


@kernel
def count_trained(
    codes: NDArray[np.uint8], first: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Count the trained tokens of each piece, which has `lengths` tokens from `first` on."""
    for piece in range(len(first)):
        count = 0
        for code in codes[first[piece] : first[piece] + lengths[piece]]:
            count += code >= TRAINED
        counts[piece] = count


@kernel
def copy_pieces(
    ids: NDArray[np.unsignedinteger],
    first: NDArray[np.int64],
    lengths: NDArray[np.int32],
    places: NDArray[np.int64],
    rows: NDArray[np.unsignedinteger],
) -> None:
    """Copy the pieces that begin at `first` to their places in the rows."""
    for piece in range(len(first)):
        start, place, length = first[piece], places[piece], lengths[piece]
        # Slices first: an index that may be negative is looked at one by one, five times as slow.
        source, target = ids[start : start + length], rows[place : place + length]
        for index in range(len(target)):
            target[index] = source[index]


@kernel
def pad_rows(filled: NDArray[np.int64], row_length: int, rows: NDArray[np.unsignedinteger], pad_id: int) -> None:
    """Write the padding after the tokens of each row."""
    for row in range(len(filled)):
        padding = rows[row * row_length + filled[row] : (row + 1) * row_length]
        for index in range(len(padding)):
            padding[index] = pad_id
