"""The documents of some shards of a dataset: what they are, what they hold, and in which rows they lie.

Every shard is read once. A document takes 28 bytes: hashes of its origin and of its content, and where it lies. Each of
its pieces in rows of tokens takes 37.

A document that is longer than a row lies in several, and each piece has the same origin. Where the pieces belong
follows from how rows are packed. `best_fit` and `pad` cut only into full rows and a rest: the full ones are in the
order of the rows, and the rest, which is wherever it fitted, comes last. `concat` cuts at the ends of full rows, and
all pieces are in the order of the rows. Copies of a document (of a mixture with several epochs) have the same origin,
too, and are kept separate. O(n + k log k) for n pieces, k of which are of documents that were cut.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN
from gristmill.shards.canonical import ORIGINS_SCHEMA
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.token_rows import LENGTHS, ORIGINS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
"""Makes keys of the copies of one document."""
_BASE = np.uint64(0xD1342543DE82EF95)
"""The base of the hash of tokens; odd, so that its powers are units of the ring of 64-bit integers."""


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


class LaneDocuments:
    """The documents of some shards: their keys, hashes of their content, and where each begins.

    The hash of the tokens t of a document is the sum of h(t) * base^i over their places i, modulo 2^64. So that of a
    document follows from those of its pieces, however it was cut into rows.
    """

    def __init__(self, dataset: Dataset, shards: list[Shard], *, ignored: Collection[str] = ()) -> None:
        self.dataset = dataset
        self._ignored = ignored
        """Columns that are not compared."""
        self._first_rows = _find_first_rows(dataset)
        origins, digests, rows = array("Q"), array("Q"), array("Q")
        numbers, lengths, is_last = array("I"), array("I"), array("b")
        read_pieces = self._read_token_pieces if dataset.manifest.holds_rows else self._read_records
        for shard in shards:
            with open_file(dataset, shard) as path:
                for row, pieces in read_pieces(shard, path):
                    for number, (digest, origin, length, ends_row) in enumerate(pieces):
                        origins.append(
                            xxhash.xxh3_64_intdigest(
                                np.array([origin["file"], origin["position"], origin["part"]], np.uint64).tobytes()
                            )
                        )
                        digests.append(digest)
                        rows.append(row)
                        numbers.append(number)
                        lengths.append(length)
                        is_last.append(ends_row)
        keys, sizes = np.frombuffer(origins, np.uint64), np.frombuffer(lengths, np.uint32)
        self._piece_rows, self._piece_numbers = np.frombuffer(rows, np.uint64), np.frombuffer(numbers, np.uint32)
        self._pieces = join_pieces(
            keys,
            sizes == (dataset.manifest.row_length or -1),
            np.frombuffer(is_last, np.bool_),
            is_concat=is_cut_anywhere(dataset.manifest),
        )
        firsts = self._pieces.order[self._pieces.starts]
        self.keys = number_copies(keys[firsts])
        self.digests = _join_digests(np.frombuffer(digests, np.uint64), sizes, self._pieces)
        self.rows, self.numbers = self._piece_rows[firsts], self._piece_numbers[firsts]

    def _read_token_pieces(
        self, shard: Shard, path: Path
    ) -> Iterator[tuple[int, list[tuple[int, Mapping[str, int], int, bool]]]]:
        """Yield each row with its pieces: hash, origin, number of tokens, and whether it ends where a full row does."""
        powers = np.empty(0, np.uint64)
        for row, record in enumerate(open_shard_rows(self.dataset, path), self._first_rows[shard.path]):
            lengths, ids, mask = record[LENGTHS].astype(np.int64), record[INPUT_IDS], record.get(LOSS_MASK)
            ends = np.cumsum(lengths)
            total = int(ends[-1]) if len(ends) else 0
            if total > len(powers):
                powers = _raise_base(np.arange(total))
            values = ids[:total].astype(np.uint64) * np.uint64(2) + np.uint64(1)
            if mask is not None:
                values += mask[:total].astype(np.uint64) << np.uint64(33)
            places = np.arange(total) - np.repeat(ends - lengths, lengths)
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(values) * powers[places], dtype=np.uint64)])
            digests = sums[ends] - sums[ends - lengths]
            is_full_row = total == len(ids)
            yield (
                row,
                [
                    (digest, origin, length, is_full_row and end == total)
                    for digest, origin, length, end in zip(
                        digests.tolist(), record[ORIGINS], lengths.tolist(), ends.tolist(), strict=True
                    )
                ],
            )

    def _read_records(
        self, shard: Shard, path: Path
    ) -> Iterator[tuple[int, list[tuple[int, Mapping[str, int], int, bool]]]]:
        """Yield each record as a row of one piece."""
        records = open_shard_rows(self.dataset, path)
        if shard.origins is not None:
            with open_file(self.dataset, shard.origins) as origins_path:
                origins = open_shard(origins_path, "arrow", "documents", ORIGINS_SCHEMA).rows()
            pairs = ((record, origin[ORIGIN]) for record, origin in zip(records, origins, strict=True))
        else:
            pairs = ((record, record.pop(ORIGIN)) for record in records)
        for row, (record, origin) in enumerate(pairs, self._first_rows[shard.path]):
            # A null and a column that is not there are the same: other records may have given the schema a column.
            content = {name: value for name, value in record.items() if value is not None and name not in self._ignored}
            encoded = msgspec.json.encode(content, order="sorted", enc_hook=repr)
            yield row, [(xxhash.xxh3_64_intdigest(encoded), origin, 0, False)]

    def place(self, index: int) -> str:
        """Name the input of a document."""
        origin = self.dataset.origins(int(self.rows[index]))[int(self.numbers[index])]
        return f"{origin.source}:{origin.path}@{origin.position}" + (f"/{origin.part}" if origin.part else "")

    def tokens(self, index: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]:
        """Return the ids of a document, from all rows that hold pieces of it, and which are trained."""
        order, starts = self._pieces
        end = starts[index + 1] if index + 1 < len(starts) else len(order)
        pieces = [self._read_piece(int(piece)) for piece in order[starts[index] : end]]
        return np.concatenate([ids for ids, _ in pieces]), np.concatenate([trained for _, trained in pieces])

    def _read_piece(self, piece: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]:
        record = self.dataset[int(self._piece_rows[piece])]
        number = int(self._piece_numbers[piece])
        end = int(np.cumsum(record[LENGTHS])[number])
        start = end - int(record[LENGTHS][number])
        mask = record.get(LOSS_MASK)
        return record[INPUT_IDS][start:end], np.ones(end - start, np.bool_) if mask is None else mask[start:end]


def open_shard_rows(dataset: Dataset, path: Path) -> Iterator[dict[str, Any]]:
    """Open the records or rows of a shard, one after the other."""
    manifest = dataset.manifest
    schema = dataset.schema if manifest.format == "webdataset" else manifest.shard_schema()
    return open_shard(path, manifest.format, manifest.kind, schema).rows()


def _find_first_rows(dataset: Dataset) -> dict[str, int]:
    rows, first = {}, 0
    for _, _, shard in dataset.manifest.shards():
        rows[shard.path] = first
        first += shard.rows
    return rows


def _join_digests(
    digests: NDArray[np.uint64], lengths: NDArray[np.uint32], pieces: DocumentPieces
) -> NDArray[np.uint64]:
    """Return the hash of each document: the sum of those of its pieces, each times base^(tokens before it)."""
    order, starts = pieces
    if not len(order):
        return digests
    ends = np.cumsum(lengths[order], dtype=np.int64)
    before = ends - lengths[order]
    sizes = np.diff(np.append(starts, len(order)))
    before -= np.repeat(before[starts], sizes)
    return np.add.reduceat(digests[order] * _raise_base(before), starts)


def _raise_base(exponents: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return powers of the base, modulo 2^64.

    >>> _raise_base(np.array([0, 1, 2])) == np.array([1, int(_BASE), int(_BASE) ** 2 % 2**64], np.uint64)
    array([ True,  True,  True])
    """
    powers = np.ones(len(exponents), np.uint64)
    square = np.array([_BASE])  # an array: products of scalars would warn of the overflow that is wanted
    while exponents.any():
        powers = np.where(exponents & 1, powers * square, powers)
        square = square * square
        exponents = exponents >> 1
    return powers


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread each value over all bits, so that small ids do not make small sums."""
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def number_copies(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give each copy of a document a separate key: the n-th copy the same one in every dataset."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1]) if len(keys) else np.empty(0, np.bool_)
    positions = np.arange(len(keys), dtype=np.uint64)
    copies = np.empty_like(positions)
    copies[order] = positions - np.maximum.accumulate(np.where(is_first, positions, np.uint64(0)))
    return keys + copies * _STRIDE
