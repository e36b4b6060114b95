"""Stages that find documents with equal digests, and pairs of similar ones: from a band in common to equal sketches.

Partitions of digests and of band keys know only numbers of documents. The order within groups of more than `ALL_PAIRS`
depends on more than that: ranges send the sketches and ranks of the members, and each group is paired where these come
together. So nothing is looked up document by document.

No sketch is looked up for a pair either. The range of the first document has all of its pairs, each once by then, and
sends the first documents' sketches to the ranges of the second ones (116 bytes, once for each range). There they are
read in order, a piece at a time, alongside the range's own sketches, which are read whole. What sketches do not reject
is written twice: as pairs with their estimates, for the range; and as edges of the graph whose components are clusters,
for the ranges of both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.pipeline.barriers.record_files import CROWDED, PAIR, SIMILAR, make_records
from gristmill.steps.deduplicate.candidates import (
    ALL_PAIRS,
    KeyGroups,
    Pairs,
    find_candidate_pairs,
    group_by_key,
    mark_repeated,
)
from gristmill.steps.deduplicate.clusters import classify_pairs, compare_sketches, find_copies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15


def find_equal_texts(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Find documents with equal digests: pairs of the one that stays and its copy."""
    digests, numbers = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    for start, records in partition.pieces("digests"):
        digests.append(np.stack([records["high"], records["low"]], axis=1))
        numbers.append(start + records["row"])
    copies = find_copies(np.concatenate(digests), np.concatenate(numbers), documents.rank_equal_texts)
    pairs = make_records(PAIR, first=copies.survivors, second=copies.documents)
    return {"by_survivor": pairs, "by_copy": pairs}


def mark_copies(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Note which documents of a range are exact copies: one bit for each document."""
    start, stop = documents.range_starts[partition.number : partition.number + 2].tolist()
    is_copy = np.zeros(stop - start, dtype=bool)
    is_copy[partition["copies"]["second"] - start] = True
    return {"bits": np.packbits(is_copy)}


def find_candidates(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Find pairs of originals that share a band; of groups too large to take all pairs of, their members."""
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for start, records in partition.pieces("keys"):
        keys.append(records["key"].copy())
        numbers.append(start + records["row"])
    all_keys, all_numbers = np.concatenate(keys), np.concatenate(numbers)
    del keys, numbers  # these arrays are large: the pieces must not stay in memory next to the whole
    is_repeated = mark_repeated(all_keys)  # most are not, and need no further look
    all_keys, all_numbers = all_keys[is_repeated], all_numbers[is_repeated]
    is_original = ~_read_copy_bits(documents, partition)[all_numbers]
    groups = group_by_key(all_keys[is_original], all_numbers[is_original])
    sizes = np.diff(groups.starts)
    is_crowded = np.repeat(sizes > ALL_PAIRS, sizes)
    starts = np.append(0, np.cumsum(sizes[sizes <= ALL_PAIRS]))
    small = KeyGroups(groups.documents[~is_crowded], starts, groups.keys[~is_crowded])
    return {
        "pairs": _select_removable(find_candidate_pairs(small), documents),
        "crowded": make_records(CROWDED, key=groups.keys[is_crowded], document=groups.documents[is_crowded]),
        "num_groups": len(sizes),
        "largest_group": int(sizes.max(initial=0)),
        "num_capped": int(np.count_nonzero(sizes > ALL_PAIRS)),
    }


def _read_copy_bits(documents: Documents, partition: Partition) -> NDArray[np.bool_]:
    """Read which documents are exact copies: a byte for each document, for the time of the task."""
    sizes = np.diff(documents.range_starts).tolist()
    bits = [np.unpackbits(packed, count=sizes[number]) for number, packed in partition.pieces("bits")]
    return np.concatenate([np.empty(0, np.uint8), *bits]).view(np.bool_)


def _select_removable(pairs: Pairs, documents: Documents) -> NDArray[Any]:
    """Select the pairs of which one may be removed: of two reference documents neither is."""
    is_removable = pairs.second >= documents.num_reference
    return make_records(PAIR, first=pairs.first[is_removable], second=pairs.second[is_removable])


def make_sent_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of members of large groups, with sketches of this size."""
    fields = [("key", "<u8"), ("document", "<i8"), ("rank", "<u8"), ("sketch", "u1", (num_permutations,))]
    return np.dtype(fields)


def send_sketches(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Send the sketches and ranks of the documents of a range to the large groups that they are in."""
    crowded = partition["crowded"]
    members, indices = np.unique(crowded["document"], return_inverse=True)
    sent = make_records(
        make_sent_type(documents.num_permutations),
        key=crowded["key"],
        document=crowded["document"],
        rank=documents.ranks(members)[indices],
        sketch=documents.sketches(members)[indices],
    )
    return {"sent": (sent, crowded["key"])}


def pair_large_groups(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Pair the members of large groups by what ranges have sent."""
    sent = partition["sent"]
    partition.report(records=len(sent))
    members, firsts = np.unique(sent["document"], return_index=True)

    def find(numbers: NDArray[np.int64], name: str) -> NDArray[Any]:
        return sent[name][firsts[np.searchsorted(members, numbers)]]

    groups = group_by_key(sent["key"], sent["document"], lambda numbers: find(numbers, "rank"))
    pairs = find_candidate_pairs(groups, lambda numbers: find(numbers, "sketch"), documents.num_reference)
    return {"pairs": _select_removable(pairs, documents)}


def make_carried_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of documents whose sketches are carried, with sketches of this size."""
    return np.dtype([("document", "<i8"), ("sketch", "u1", (num_permutations,))])


def carry_sketches(documents: Documents, partition: Partition) -> dict[str, Any]:
    """Give each candidate once to the range of its second document, with the sketch of the first one."""
    candidates = partition["pairs"]
    pairs = Pairs.of(candidates["first"], candidates["second"])
    ranges = documents.find_ranges(pairs.second)
    start, stop = documents.range_starts[partition.number : partition.number + 2].tolist()
    is_apart = ranges != partition.number
    # By range and document, each once.
    carried = np.unique(ranges[is_apart] * (stop - start) + pairs.first[is_apart] - start)
    carried_ranges, firsts = carried // (stop - start), carried % (stop - start) + start
    sketches = _read_sketches(documents, firsts)
    kind = make_carried_type(documents.num_permutations)

    def read_chunks() -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for number, first in enumerate(range(0, len(carried), _PAIRS_AT_ONCE)):
            partition.at(number)
            chunk = slice(first, first + _PAIRS_AT_ONCE)
            records = make_records(kind, document=firsts[chunk], sketch=sketches.find(firsts[chunk]))
            yield records, carried_ranges[chunk]

    partition.report(records=len(pairs))
    return {"carried": read_chunks(), "pairs": make_records(PAIR, first=pairs.first, second=pairs.second)}


def compare_candidates(step: Deduplicate, documents: Documents, partition: Partition) -> dict[str, Any]:
    """Compare the candidates of a range by their sketches; what these do not reject is similar."""
    pairs = partition["pairs"]
    pairs = pairs[np.argsort(pairs["first"], kind="stable")]
    own_start, own_stop = np.searchsorted(
        pairs["first"], documents.range_starts[partition.number : partition.number + 2]
    ).tolist()
    own_pairs = pairs[own_start:own_stop]
    own = _read_sketches(documents, np.concatenate([own_pairs["first"], pairs["second"]]))
    similar = [np.empty(0, SIMILAR), *_compare_pairs(step, own_pairs, own, own, partition)]
    for _, carried in partition.pieces("carried"):
        # Documents are in order, and each is in one piece: the pairs of a piece are side by side.
        start = np.searchsorted(pairs["first"], carried["document"][0])
        stop = np.searchsorted(pairs["first"], carried["document"][-1], side="right")
        sketches = _Sketches(carried["document"], carried["sketch"])
        similar += _compare_pairs(step, pairs[start:stop], sketches, own, partition)
    left = np.concatenate(similar)
    left = left[np.lexsort((left["first"], left["second"]))]
    edges = make_records(PAIR, first=left["first"], second=left["second"])
    return {"similar": left, "edges": edges, "num_pairs": len(pairs), "num_similar": len(left)}


@dataclass(frozen=True, slots=True)
class _Sketches:
    """The sketches of some documents, in order."""

    documents: NDArray[np.int64]
    sketches: NDArray[np.uint8]

    def find(self, documents: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.sketches[np.searchsorted(self.documents, documents)]


def _read_sketches(documents: Documents, numbers: NDArray[np.int64]) -> _Sketches:
    """Read the sketches of documents of one range, each once."""
    needed = np.unique(numbers)
    return _Sketches(needed, documents.sketches(needed))


def _compare_pairs(
    step: Deduplicate, pairs: NDArray[Any], first: _Sketches, second: _Sketches, partition: Partition
) -> Iterator[NDArray[Any]]:
    """Compare pairs, some at a time; yield those that are not rejected."""
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        partition.at(number)
        chunk = pairs[start : start + _PAIRS_AT_ONCE]
        estimates = compare_sketches(step, first.find(chunk["first"]), second.find(chunk["second"]))
        classified = classify_pairs(step, estimates)
        compared = make_records(SIMILAR, first=chunk["first"], second=chunk["second"], estimate=estimates)
        yield compared[classified.alike | classified.undecided]
        partition.report(records=len(chunk))
