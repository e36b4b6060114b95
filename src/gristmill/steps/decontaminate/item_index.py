"""The index of benchmark items: n-grams by hash, and where documents have enough of an item's words together.

A passage is one text of an item that is looked for: its question or its answer. Its keys are the hashes of its n-grams,
or for a short question that must occur whole its one key. A document is searched in the form in which it reads
(`plain_text.py`), in one compiled pass, in which every n-gram is looked up in a table of bits that is small enough for
the processor's cache; only those whose bit is set are looked up in the sorted hashes. 28 bytes for each n-gram, and two
bytes of bits.

Each n-gram that a document shares with a passage covers its words there. Words say more than n-grams: with 8-grams, a
changed word in every 20 takes away 8 of 20 n-grams, but 1 of 20 words, and half an item of 16 words has 1 of its 9
n-grams, but 8 of its 16 words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.runtime.kernels import kernel
from gristmill.steps.decontaminate.items import ANSWER, QUESTION, BenchmarkItem
from gristmill.steps.decontaminate.plain_text import find_plain_words, read_plain_text, read_plain_texts
from gristmill.text.buffers import get_text_buffers
from gristmill.text.comparison_words import ALONE, find_word_spans, find_words_with_letters, make_character_table
from gristmill.text.minhash import BLOCK
from gristmill.text.shingle_kernels import find_listed_shingles, hash_words, shingle_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

HIT = np.dtype([("row", "<u4"), ("word", "<u4"), ("key", "<u4")])
"""A key that occurs in a document, and the number of its first word there."""
MATCH = np.dtype([("row", "<u4"), ("passage", "<u4"), ("coverage", "<f8"), ("first", "<u4"), ("stop", "<u4")])
"""A passage that was found, and the words of the document that hold it."""

MAX_ITEMS = 10
"""An n-gram of more items is part of a template, and says nothing about one of them."""
MIN_COVERED = {QUESTION: 10, ANSWER: 20}
"""Fewer words than these say nothing about a passage that has more. Many answers share a formula or a loop.

Of letters that are words by themselves, as in Chinese, it takes half as many again.
"""
MIN_ANSWER_WORDS = 13
"""Shorter answers are in many texts."""
_BITS_PER_KEY = 16
_MIN_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of an item that is looked for."""

    item: int
    part: str
    text: str
    """The text as it reads: see `plain_text.py`."""
    num_words: int

    @property
    def min_covered(self) -> float:
        """The number of words that a document must have of it, or all if it has fewer."""
        share_of_letters = 0.0 if self.text.isascii() else _count_letters(self.text) / self.num_words
        return MIN_COVERED[self.part] * (1 + share_of_letters / 2)


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
    posting_words: NDArray[np.int64]
    """The passages that have each key, sorted by key, and the number of the key's first word there."""
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
        data, offsets = read_plain_texts(*get_text_buffers(texts))
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

    def count_words(self, is_common: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the words of each passage that are in a key that is not common in a source."""
        counts = np.zeros(len(self.passages), np.int64)
        counts_keys = ~is_common[self.posting_keys]
        passages, words = self.posting_passages[counts_keys], self.posting_words[counts_keys]
        order = np.lexsort((words, passages))
        count_covered(passages[order], words[order], self._spans, counts)
        return counts

    @cached_property
    def _min_covered(self) -> NDArray[np.float64]:
        return np.array([passage.min_covered for passage in self.passages], np.float64)

    @cached_property
    def _spans(self) -> NDArray[np.int64]:
        """For each passage the number of words in one of its keys."""
        return np.array([min(self.ngram, passage.num_words) for passage in self.passages], np.int64)

    def find_matches(
        self, hits: NDArray[Any], is_common: NDArray[np.bool_], min_coverage: float, window: float
    ) -> NDArray[Any]:
        """Find the passages of which enough words are together in a document, as `MATCH` records by row.

        A passage that occurs several times is found each time.
        """
        hits = hits[~is_common[hits["key"]]]
        starts = np.searchsorted(self.posting_keys, np.arange(self.num_keys + 1))
        counts = starts[hits["key"] + 1] - starts[hits["key"]] if len(hits) else np.empty(0, np.int64)
        which = np.repeat(np.arange(len(hits)), counts)
        first_of_run = np.repeat(np.cumsum(counts) - counts, counts)
        postings = starts[hits["key"][which]] + np.arange(len(which)) - first_of_run
        passages = self.posting_passages[postings]
        order = np.lexsort((hits["word"][which], passages, hits["row"][which]))
        rows, words = (hits[name][which][order].astype(np.int64) for name in ("row", "word"))
        lengths = np.array([passage.num_words for passage in self.passages], np.int64)
        totals = self.count_words(is_common)
        least = np.maximum(min_coverage * totals, np.minimum(totals, self._min_covered))
        windows, num_covered = np.empty((len(rows), 4), np.int64), np.empty(len(rows), np.int64)
        count = find_windows(
            rows,
            passages[order],
            words,
            self.posting_words[postings][order],
            self._spans,
            (window * lengths).astype(np.int64) - self._spans,
            least,
            np.zeros(max(lengths, default=0), np.int64),
            windows,
            num_covered,
        )
        matches = np.empty(count, MATCH)
        for column, name in enumerate(("row", "passage", "first", "stop")):
            matches[name] = windows[:count, column]
        matches["coverage"] = num_covered[:count] / totals[matches["passage"]]
        return matches


def _count_letters(text: str) -> int:
    """Count the letters that are words by themselves, below 2^16."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    table = make_character_table()
    return int(np.count_nonzero(table[codes[codes < len(table)]] >= ALONE))


@kernel
def count_covered(
    passages: NDArray[np.int64], words: NDArray[np.int64], spans: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Count the words of each passage that are in one of its keys, which are sorted by passage and first word."""
    stop, last = np.int64(0), np.int64(-1)
    for number in range(len(passages)):
        passage = passages[number]
        if passage != last:
            stop, last = np.int64(0), passage
        counts[passage] += words[number] + spans[passage] - max(stop, words[number])
        stop = words[number] + spans[passage]


@kernel
def find_windows(
    rows: NDArray[np.int64],
    passages: NDArray[np.int64],
    words: NDArray[np.int64],
    passage_words: NDArray[np.int64],
    spans: NDArray[np.int64],
    max_distances: NDArray[np.int64],
    least: NDArray[np.float64],
    times: NDArray[np.int64],
    windows: NDArray[np.int64],
    num_covered: NDArray[np.int64],
) -> int:
    """Find the windows of documents that cover the most words of a passage, if these are enough.

    Keys are sorted by row, passage and word. `times` is a buffer for the longest passage, all zero: how often each of
    its words is covered in the window. `windows` gets row, passage, first word and the one after the last. A window is
    as short as its words allow, and the next one begins after it, so each key comes into a window about twice.
    """
    count = left = right = 0
    while right < len(rows):
        row, passage = rows[right], passages[right]
        span, left, covered, best = spans[passage], right, 0, 0
        best_left = best_right = right
        while right < len(rows) and rows[right] == row and passages[right] == passage:
            if best and words[right] - words[best_right] > max_distances[passage]:
                break
            for place in range(passage_words[right], passage_words[right] + span):
                covered += times[place] == 0
                times[place] += 1
            while True:
                is_needed = words[right] - words[left] <= max_distances[passage]
                if is_needed:
                    is_needed = False
                    for place in range(passage_words[left], passage_words[left] + span):
                        is_needed |= times[place] == 1
                if is_needed:
                    break
                for place in range(passage_words[left], passage_words[left] + span):
                    times[place] -= 1
                    covered -= times[place] == 0
                left += 1
            if covered > best and covered >= least[passage]:
                best, best_left, best_right = covered, left, right
            right += 1
        for number in range(left, right):
            times[passage_words[number] : passage_words[number] + span] = 0
        if best:
            windows[count, 0] = row
            windows[count, 1] = passage
            windows[count, 2] = words[best_left]
            windows[count, 3] = words[best_right] + span
            num_covered[count] = best
            count += 1
            right = best_right + 1
    return count


def build_index(items: Sequence[BenchmarkItem], *, ngram: int, min_words: int) -> ItemIndex:
    """Build the index of all items."""
    passages = list(_make_passages(items, ngram, min_words))
    long_numbers = [number for number, passage in enumerate(passages) if passage.num_words >= ngram]
    hashes, owners, words = _hash_ngrams(passages, long_numbers, ngram)
    items_of = np.array([passage.item for passage in passages], np.int64)
    # N-grams of more than `MAX_ITEMS` items are part of a template.
    pairs = np.unique(np.stack([hashes, items_of[owners].astype(np.uint64)], axis=1), axis=0)
    hashes_of_items, num_items = np.unique(pairs[:, 0], return_counts=True)
    is_template = np.isin(hashes, hashes_of_items[num_items > MAX_ITEMS])
    unique_hashes, posting_keys = np.unique(hashes[~is_template], return_inverse=True)
    order = np.argsort(posting_keys, kind="stable")
    posting_keys, owners, words = posting_keys[order], owners[~is_template][order], words[~is_template][order]
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
        posting_words=np.concatenate([words, np.zeros(len(short_postings), np.int64)]),
        beginnings=beginnings,
        short_passages=short_passages,
        unchecked=unchecked,
    )


def _make_passages(items: Sequence[BenchmarkItem], ngram: int, min_words: int) -> Iterator[Passage]:
    """Make the passages of all items that are long enough: questions and answers."""
    questions = [read_plain_text(item.texts[QUESTION]) for item in items]
    answers = [read_plain_text(item.texts.get(ANSWER, "")) for item in items]
    lengths = map(len, find_words_with_letters(questions))
    answer_lengths = map(len, find_words_with_letters(answers))
    for number, (item, num_words, num_answer_words) in enumerate(zip(items, lengths, answer_lengths, strict=True)):
        question = questions[number]
        if num_words < min_words and item.choices:
            question = f"{question}\n{read_plain_text(item.choices)}"
            num_words = len(find_word_spans(question))  # noqa: PLW2901
        if num_words >= min_words:
            yield from _make_spellings(Passage(number, QUESTION, question, num_words))
        if num_answer_words >= max(ngram, MIN_ANSWER_WORDS):
            yield from _make_spellings(Passage(number, ANSWER, answers[number], num_answer_words))


def _make_spellings(passage: Passage) -> Iterator[Passage]:
    """Make the passage, and the one with `ss` for `ß`: so it is written in capitals and in Switzerland."""
    yield passage
    text = passage.text.replace("ß", "ss").replace("ẞ", "SS")
    if text != passage.text:
        yield Passage(passage.item, passage.part, text, passage.num_words)


def _hash_ngrams(
    passages: Sequence[Passage], numbers: Sequence[int], ngram: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Hash the n-grams with a letter of some passages; returns the passage and the first word of each with them."""
    texts = [passages[number].text for number in numbers]
    data, offsets = get_text_buffers(pa.array(texts, TEXT_TYPE))
    words = np.empty(BLOCK, np.uint64)
    hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    first_words = [np.empty(0, np.int64)]
    for row, (number, has_letter) in enumerate(zip(numbers, find_words_with_letters(texts), strict=True)):
        shingles = np.empty(passages[number].num_words, np.uint64)
        start, stop = int(offsets[row]), int(offsets[row + 1])
        count = shingle_text(data, start, stop, make_character_table(), ngram, words, shingles)
        num_with_letter = np.concatenate([[0], np.cumsum(has_letter)])
        counts = num_with_letter[ngram:] > num_with_letter[:-ngram]
        first_words.append(np.flatnonzero(counts))
        hashes.append(shingles[:count][counts])
        owners.append(np.full(len(hashes[-1]), number, np.int64))
    return np.concatenate(hashes), np.concatenate(owners), np.concatenate(first_words)


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


def call_kernels() -> None:
    """Search a text for a question and locate it, so that a run compiles the functions before its workers start."""
    items = [BenchmarkItem("a/1", {QUESTION: "one two three"}), BenchmarkItem("a/2", {QUESTION: "one two"})]
    index = build_index(items, ngram=3, min_words=2)
    hits = index.find_hits(pa.array(["zero one two three"], TEXT_TYPE))
    index.find_matches(hits, np.zeros(index.num_keys, np.bool_), 1.0, 1.0)
    find_plain_words("one", 0, 1)
