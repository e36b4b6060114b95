"""The index of benchmark items: n-grams by hash, and where documents have enough of an item's n-grams together.

A passage is one text of an item that is looked for: its question or its answer. Its keys are the hashes of its n-grams,
or for a short question that must occur whole its one key. A document is searched in one compiled pass, in which every
n-gram is looked up in a table of bits that is small enough for the processor's cache; only those whose bit is set are
looked up in the sorted hashes. About 140 MB/s a core. 20 bytes for each n-gram, and two bytes of bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.steps.decontaminate.items import ANSWER, QUESTION, BenchmarkItem
from gristmill.text.buffers import get_text_buffers
from gristmill.text.shingles.character_table import make_character_table
from gristmill.text.shingles.kernels import find_listed_shingles, hash_words, shingle_text
from gristmill.text.shingles.minhash import BLOCK
from gristmill.text.shingles.word_spans import find_word_spans, find_words_with_letters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

HIT = np.dtype([("row", "<u4"), ("word", "<u4"), ("key", "<u4")])
"""A key that occurs in a document, and the number of its first word there."""
MATCH = np.dtype([("row", "<u4"), ("passage", "<u4"), ("coverage", "<f8"), ("first", "<u4"), ("stop", "<u4")])
"""A passage that was found, and the words of the document that hold it."""

MAX_ITEMS = 10
"""An n-gram of more items is part of a template, and says nothing about one of them."""
_BITS_PER_KEY = 16
_MIN_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of an item that is looked for."""

    item: int
    part: str
    text: str
    num_words: int


@dataclass(frozen=True)
class ItemIndex:
    """All passages, and the keys they have. Made by `build_index`."""

    names: list[str]
    """The names of the items."""
    passages: list[Passage]
    ngram: int
    min_words: int
    hashes: NDArray[np.uint64]
    """The hashes of the n-grams that count, sorted: the number of one is its key."""
    posting_keys: NDArray[np.int64]
    posting_passages: NDArray[np.int64]
    """The passages that have each key, sorted by key."""
    beginnings: NDArray[np.uint64]
    """The hashes of the first `min_words` words of short passages, sorted."""
    short_passages: list[list[tuple[int, int, NDArray[np.uint64]]]]
    """For each beginning: the key, the passage and the hashes of all words of passages that must occur whole."""
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    """The items without a passage, by reason."""

    @property
    def num_keys(self) -> int:
        return len(self.hashes) + sum(map(len, self.short_passages))

    def find_hits(self, texts: pa.Array) -> NDArray[Any]:
        """Find all keys in a column of texts, as `HIT` records by row and word."""
        data, offsets = get_text_buffers(texts)
        places, shingles = self._find_candidates(data, offsets)
        is_short = places[:, 2] == 1
        long_places, long_shingles = places[~is_short], shingles[~is_short]
        keys = np.searchsorted(self.hashes, long_shingles)
        is_listed = self.hashes[np.minimum(keys, len(self.hashes) - 1)] == long_shingles if len(self.hashes) else []
        hits = np.zeros(int(np.count_nonzero(is_listed)), HIT)
        if len(hits):
            hits["row"], hits["word"] = long_places[is_listed, 0], long_places[is_listed, 1]
            hits["key"] = keys[is_listed]
        whole = list(self._find_whole(data, offsets, places[is_short], shingles[is_short]))
        hits = np.concatenate([hits, np.array(whole, HIT)])
        return hits[np.lexsort((hits["key"], hits["word"], hits["row"]))]

    def _find_candidates(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Find the n-grams whose bits are set: all that are listed, and a few others."""
        lengths = [self.ngram, self.min_words] if len(self.beginnings) else [self.ngram]
        bits, shift = self._bits
        words, shingles = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
        room = 1024
        while True:
            places, listed = np.empty((room, 3), np.int64), np.empty(room, np.uint64)
            count = find_listed_shingles(
                data, offsets, make_character_table(), np.array(lengths), bits, shift, words, shingles, places, listed
            )
            if count <= room:
                return places[:count], listed[:count]
            room = count

    @cached_property
    def _bits(self) -> tuple[NDArray[np.uint8], np.uint64]:
        """The table of bits, by length of n-gram, and how many low bits of a hash it does not use."""
        return _make_bits(self.hashes, self.beginnings)

    def _find_whole(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        places: NDArray[np.int64],
        shingles: NDArray[np.uint64],
    ) -> Iterator[tuple[int, int, int]]:
        """Find the short passages that occur whole, among places where the first words of one may be."""
        words_of: tuple[int, NDArray[np.uint64]] = (-1, np.empty(0, np.uint64))
        for (row, word, _), shingle in zip(places.tolist(), shingles, strict=True):
            number = int(np.searchsorted(self.beginnings, shingle))
            if number == len(self.beginnings) or self.beginnings[number] != shingle:
                continue
            if words_of[0] != row:
                words_of = row, _hash_all_words(data, int(offsets[row]), int(offsets[row + 1]))
            for key, _, words in self.short_passages[number]:
                if np.array_equal(words_of[1][word : word + len(words)], words):
                    yield row, word, key

    def count_keys(self, is_common: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the keys of each passage that are not common in a source."""
        counts = np.bincount(self.posting_passages, weights=~is_common[self.posting_keys], minlength=len(self.passages))
        return counts.astype(np.int64)

    def find_matches(
        self, hits: NDArray[Any], is_common: NDArray[np.bool_], min_coverage: float, window: float
    ) -> NDArray[Any]:
        """Find the passages of which enough keys are together in a document, as `MATCH` records by row.

        A passage that occurs several times is found each time.
        """
        hits = hits[~is_common[hits["key"]]]
        num_keys = self.count_keys(is_common)
        starts = np.searchsorted(self.posting_keys, np.arange(self.num_keys + 1))
        counts = starts[hits["key"] + 1] - starts[hits["key"]] if len(hits) else np.empty(0, np.int64)
        which = np.repeat(np.arange(len(hits)), counts)
        first_of_run = np.repeat(np.cumsum(counts) - counts, counts)
        postings = starts[hits["key"][which]] + np.arange(len(which)) - first_of_run
        passages = self.posting_passages[postings]
        order = np.lexsort((hits["word"][which], passages, hits["row"][which]))
        rows, passages = hits["row"][which][order], passages[order]
        words, keys = hits["word"][which][order].astype(np.int64), hits["key"][which][order]
        changes = np.flatnonzero((np.diff(rows, prepend=-1) != 0) | (np.diff(passages, prepend=-1) != 0))
        bounds = [*changes.tolist(), len(rows)]
        matches = []
        for start, stop in pairwise(bounds):
            passage = int(passages[start])
            total = int(num_keys[passage])
            if stop - start < min_coverage * total:
                continue
            num_words = self.passages[passage].num_words
            span = min(self.ngram, num_words)  # the words of one key
            for coverage, first, last in _find_windows(
                words[start:stop].tolist(),
                keys[start:stop].tolist(),
                max_distance=int(window * num_words) - span,
                min_found=min_coverage * total,
                total=total,
            ):
                matches.append((int(rows[start]), passage, coverage, first, last + span))
        return np.array(matches, MATCH)


def _find_windows(
    words: list[int], keys: list[int], *, max_distance: int, min_found: float, total: int
) -> Iterator[tuple[float, int, int]]:
    """Find the windows with the most different keys: coverage, first and last word. They do not share a word."""
    while words:
        counts: Counter[int] = Counter()
        best, left = (0, 0, 0), 0
        for right, key in enumerate(keys):
            counts[key] += 1
            while words[right] - words[left] > max_distance:
                counts[keys[left]] -= 1
                if not counts[keys[left]]:
                    del counts[keys[left]]
                left += 1
            if len(counts) > best[0]:
                best = len(counts), left, right
        num_found, left, right = best
        if num_found < min_found:
            return
        yield num_found / total, words[left], words[right]
        words, keys = words[:left] + words[right + 1 :], keys[:left] + keys[right + 1 :]


def build_index(items: Sequence[BenchmarkItem], *, ngram: int, min_words: int) -> ItemIndex:
    """Build the index of all items."""
    passages = list(_make_passages(items, ngram, min_words))
    long_numbers = [number for number, passage in enumerate(passages) if passage.num_words >= ngram]
    hashes, owners = _hash_ngrams(passages, long_numbers, ngram)
    pairs = np.unique(np.stack([hashes, owners.astype(np.uint64)], axis=1), axis=0)
    hashes, owners = pairs[:, 0], pairs[:, 1].astype(np.int64)
    items_of = np.array([passage.item for passage in passages], np.int64)
    is_template = _find_templates(hashes, items_of[owners] if len(owners) else owners)
    hashes, owners = hashes[~is_template], owners[~is_template]
    unique_hashes, posting_keys = np.unique(hashes, return_inverse=True)
    beginnings, short_passages, short_postings = _index_short(passages, ngram, min_words, len(unique_hashes))
    posting_passages = np.concatenate([owners, [passage for _, passage in short_postings]]).astype(np.int64)
    checked = {passages[passage].item for passage in posting_passages.tolist()}
    with_passage = {passage.item for passage in passages}
    unchecked: dict[str, list[str]] = {"too_short_to_check": [], "only_shared_words": []}
    for number, item in enumerate(items):
        if number not in checked:
            unchecked["only_shared_words" if number in with_passage else "too_short_to_check"].append(item.name)
    return ItemIndex(
        names=[item.name for item in items],
        passages=passages,
        ngram=ngram,
        min_words=min_words,
        hashes=unique_hashes,
        posting_keys=np.concatenate([posting_keys, [key for key, _ in short_postings]]).astype(np.int64),
        posting_passages=posting_passages,
        beginnings=beginnings,
        short_passages=short_passages,
        unchecked=unchecked,
    )


def _make_passages(items: Sequence[BenchmarkItem], ngram: int, min_words: int) -> Iterator[Passage]:
    """Make the passages of all items that are long enough: questions, and answers of at least `ngram` words."""
    answers = [item.texts.get(ANSWER, "") for item in items]
    lengths = map(len, find_words_with_letters([item.texts[QUESTION] for item in items]))
    answer_lengths = map(len, find_words_with_letters(answers))
    for number, (item, num_words, num_answer_words) in enumerate(zip(items, lengths, answer_lengths, strict=True)):
        question = item.texts[QUESTION]
        if num_words < min_words and item.choices:
            question = f"{question}\n{item.choices}"
            num_words = len(find_word_spans(question))  # noqa: PLW2901
        if num_words >= min_words:
            yield from _make_spellings(Passage(number, QUESTION, question, num_words))
        if num_answer_words >= ngram:
            yield from _make_spellings(Passage(number, ANSWER, answers[number], num_answer_words))


def _make_spellings(passage: Passage) -> Iterator[Passage]:
    """Make the passage, and the one with `ss` for `ß`: so it is written in capitals and in Switzerland."""
    yield passage
    text = passage.text.replace("ß", "ss").replace("ẞ", "SS")
    if text != passage.text:
        yield Passage(passage.item, passage.part, text, passage.num_words)


def _hash_ngrams(
    passages: Sequence[Passage], numbers: Sequence[int], ngram: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash the n-grams with a letter of some passages; returns the passage of each beside them."""
    texts = [passages[number].text for number in numbers]
    data, offsets = get_text_buffers(pa.array(texts, TEXT_TYPE))
    words = np.empty(BLOCK, np.uint64)
    hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for row, (number, has_letter) in enumerate(zip(numbers, find_words_with_letters(texts), strict=True)):
        shingles = np.empty(passages[number].num_words, np.uint64)
        start, stop = int(offsets[row]), int(offsets[row + 1])
        count = shingle_text(data, start, stop, make_character_table(), ngram, words, shingles)
        num_with_letter = np.concatenate([[0], np.cumsum(has_letter)])
        counts = num_with_letter[ngram:] > num_with_letter[:-ngram]
        hashes.append(shingles[:count][counts])
        owners.append(np.full(len(hashes[-1]), number, np.int64))
    return np.concatenate(hashes), np.concatenate(owners)


def _find_templates(hashes: NDArray[np.uint64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each n-gram of a passage whether it is in more than `MAX_ITEMS` items."""
    pairs = np.unique(np.stack([hashes, items.astype(np.uint64)], axis=1), axis=0)
    unique_hashes, num_items = np.unique(pairs[:, 0], return_counts=True)
    return np.isin(hashes, unique_hashes[num_items > MAX_ITEMS])


def _index_short(
    passages: Sequence[Passage], ngram: int, min_words: int, first_key: int
) -> tuple[NDArray[np.uint64], list[list[tuple[int, int, NDArray[np.uint64]]]], list[tuple[int, int]]]:
    """Index the passages that must occur whole, by their first words: beginnings, passages of each, and postings.

    Passages with equal words have one key.
    """
    by_words: dict[bytes, list[int]] = {}
    for number, passage in enumerate(passages):
        if passage.num_words < ngram and any(map(str.isalpha, passage.text)):
            data, offsets = get_text_buffers(pa.array([passage.text], TEXT_TYPE))
            by_words.setdefault(_hash_all_words(data, 0, int(offsets[1])).tobytes(), []).append(number)
    by_beginning: dict[int, list[tuple[int, int, NDArray[np.uint64]]]] = {}
    postings = []
    for number, (content, owners) in enumerate(by_words.items()):
        words = np.frombuffer(content, np.uint64)
        data, offsets = get_text_buffers(pa.array([passages[owners[0]].text], TEXT_TYPE))
        shingles = np.empty(len(words), np.uint64)
        block = np.empty(BLOCK, np.uint64)
        shingle_text(data, 0, int(offsets[1]), make_character_table(), min_words, block, shingles)
        by_beginning.setdefault(int(shingles[0]), []).append((first_key + number, owners[0], words))
        if len(owners) <= MAX_ITEMS:
            postings += [(first_key + number, owner) for owner in owners]
    beginnings = sorted(by_beginning)
    return np.array(beginnings, np.uint64), [by_beginning[beginning] for beginning in beginnings], postings


def _hash_all_words(data: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint64]:
    words = np.empty(stop - start + 3, np.uint64)
    _, count = hash_words(data, start, stop, make_character_table(), words, 0)
    return words[:count]


def _make_bits(*hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], np.uint64]:
    """Make a table of bits for each array of hashes, addressed by their high bits."""
    num_bits = max(_MIN_BITS, 1 << (_BITS_PER_KEY * max(map(len, hashes))).bit_length())
    shift = np.uint64(64 - (num_bits.bit_length() - 1))
    bits = np.zeros((len(hashes), num_bits // 8), np.uint8)
    for row, values in enumerate(hashes):
        places = values >> shift
        masks = np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
        np.bitwise_or.at(bits[row], (places >> np.uint64(3)).astype(np.int64), masks)
    return bits, shift
