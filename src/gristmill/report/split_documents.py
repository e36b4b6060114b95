"""Documents of packed rows: which pieces in which rows are one document.

A document that is longer than a row lies in several, and each piece has the same origin. Where the pieces belong
follows from how rows are packed. `best_fit` and `pad` cut only into full rows and a rest: the full ones are in the
order of the rows, and the rest, which is wherever it fitted, comes last. `concat` cuts at the ends of full rows, and
all pieces are in the order of the rows. Copies of a document (of a mixture with several epochs) have the same origin,
too, and are kept apart.

O(n + k log k) for n pieces, k of which are of documents that were cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.shards.manifests.manifest import Manifest


class DocumentPieces(NamedTuple):
    """The pieces of documents, document after document."""

    order: NDArray[np.int64]
    """Numbers of pieces: all of the first document, from its beginning on, then all of the next."""
    starts: NDArray[np.int64]
    """Where each document begins in `order`."""


def join_pieces(
    keys: NDArray[np.uint64], is_full: NDArray[np.bool_], is_last: NDArray[np.bool_], *, is_concat: bool
) -> DocumentPieces:
    """Find the documents among pieces in the order of their rows; `keys` are hashes of their origins.

    `is_full` says whether a piece fills its row alone, `is_last` whether it ends where a full row does.

    >>> keys = np.array([7, 8, 7, 7], np.uint64)
    >>> is_full = np.array([False, False, True, True])
    >>> join_pieces(keys, is_full, is_full, is_concat=False)
    DocumentPieces(order=array([1, 2, 3, 0]), starts=array([0, 1]))
    """
    cut = np.flatnonzero(_find_cut(keys, is_last if is_concat else is_full))
    wholes = np.delete(np.arange(len(keys)), cut)
    order, starts = _join_cut(keys[cut], is_full[cut], is_last[cut], is_concat=is_concat)
    order, starts = np.append(wholes, cut[order]), np.append(np.arange(len(wholes)), len(wholes) + starts)
    # Documents in the order in which they begin in the rows.
    firsts = np.argsort(order[starts], kind="stable")
    sizes = np.diff(np.append(starts, len(order)))[firsts]
    ends = np.cumsum(sizes)
    places = np.arange(len(order)) - np.repeat(ends - sizes, sizes) + np.repeat(starts[firsts], sizes)
    return DocumentPieces(order[places], ends - sizes)


def _find_cut(keys: NDArray[np.uint64], is_continued: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the pieces that may have others: those with the key of a piece that another one may follow.

    Only the last bits of keys are compared, so that a few whole documents are found, too. Most documents are whole, and
    sorting costs far more than this.
    """
    bits = np.uint64((1 << max(16, len(keys).bit_length() + 1)) - 1)
    is_met = np.zeros(int(bits) + 1, np.bool_)
    is_met[keys[is_continued] & bits] = True
    is_cut: NDArray[np.bool_] = is_met[keys & bits]
    return is_cut


def _join_cut(
    keys: NDArray[np.uint64], is_full: NDArray[np.bool_], is_last: NDArray[np.bool_], *, is_concat: bool
) -> DocumentPieces:
    """Find the documents among pieces, in any order of documents."""
    if not len(keys):
        return DocumentPieces(np.empty(0, np.int64), np.empty(0, np.int64))
    is_rest = np.zeros(len(keys), np.bool_) if is_concat else ~is_full
    order = np.lexsort((is_rest, keys))
    begins = _find_changes(keys[order])
    group = np.cumsum(begins) - 1
    firsts = np.flatnonzero(begins)
    if is_concat:
        is_end = (~is_last[order]).astype(np.int64)
        ended: NDArray[np.int64] = np.cumsum(is_end) - is_end  # the pieces before each that end a document
        copies = ended - ended[firsts][group]
    else:
        num_full = np.add.reduceat(is_full[order].astype(np.int64), firsts)[group]
        num_rests = np.add.reduceat(is_rest[order].astype(np.int64), firsts)[group]
        number = np.arange(len(keys)) - firsts[group]
        # Every copy has as many full pieces. If they cannot be divided, some are in shards that were not read.
        each = np.where(num_full % np.maximum(num_rests, 1) == 0, num_full // np.maximum(num_rests, 1), num_full)
        copies = np.where(number < num_full, number // np.maximum(each, 1), number - num_full)
    by_copy = np.lexsort((copies, group))
    order, copies, group = order[by_copy], copies[by_copy], group[by_copy]
    starts = np.flatnonzero(_find_changes(group) | _find_changes(copies))
    return DocumentPieces(order, starts)


def is_cut_anywhere(manifest: Manifest) -> bool:
    """Whether rows were packed with `concat`, as far as the recipe says."""
    steps = manifest.recipe.get("steps")
    packs = [step.get("pack") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return any(isinstance(pack, dict) and pack.get("strategy") == "concat" for pack in packs)


def _find_changes(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    return np.append(True, values[1:] != values[:-1])
