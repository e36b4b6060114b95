"""A cache of words for tokenizers like SentencePiece, which the fast engine takes as one word from end to end.

Gemma's and Llama 2's tokenizers write spaces as `▁` and have no pre-tokenizer. So the engine's own cache of words is of
no use, and each text takes as long as if all its words were new. But no merge reaches over a border between two bytes
that no token of the vocabulary has side by side, so the ids of a text are those of its words:

    "The cat sat"   ids of "The", of "▁cat", of "▁sat", if no token has a "▁" after a letter

Words are looked up by their bytes, and new ones are encoded here, by the merges of the vocabulary. At most 131,072
words of 2 MiB in all, about 20 MiB; then the cache begins again. Ids never depend on what is in it. Like those of the
engine itself they are compared with the reference, in the plan and in the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.text.tokenizers.byte_lengths import has_token_for_each_byte, list_normalizers
from gristmill.text.tokenizers.cut_words import (
    NO_TOKEN,
    NUM_WORDS,
    copy_ids,
    count_ids,
    cut_texts,
    encode_words,
    fill_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


if TYPE_CHECKING:
    EncodeTexts = Callable[[list[str]], tuple[NDArray[np.uint32], NDArray[np.int64]]]

_MARK = "\u2581"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
_PREPEND = {"type": "Prepend", "prepend": _MARK}
_SPLIT_AT_SPACES = {"String": " "}
_NUM_SLOTS = 1 << 19
_MAX_SYMBOLS = 256
_NEVER_IN_TEXT = b"\xff"


class CacheSizes(msgspec.Struct, frozen=True):
    """The sizes of a cache of words, and of the text that is cut at once."""

    num_words: int = 1 << 17
    pool_bytes: int = 2 << 20
    chunk_bytes: int = 4 << 20


DEFAULT_SIZES = CacheSizes()


class _MatchedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


class _ModelSettings(msgspec.Struct):
    type: str | None = None
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class _TokenizerSettings(msgspec.Struct):
    """All but the vocabulary and its merges, which take five times as long to decode as to skip."""

    model: _ModelSettings
    added_tokens: list[_MatchedToken] | None = None
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class _MergeModel(msgspec.Struct):
    vocab: dict[str, int]
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _TokenizerModel(msgspec.Struct):
    model: _MergeModel


@dataclass(frozen=True, slots=True)
class WordRules:
    """The rules by which texts of a tokenizer are cut into words, and words are encoded."""

    prepends: bool
    """Whether each piece of text gets a mark before it."""
    tokens: list[tuple[bytes, int]]
    """The added tokens that are looked for, with their ids."""
    joins: NDArray[np.bool_]
    """Which two bytes are side by side in a token."""
    char_ids: NDArray[np.int64]
    """By code point; -1 for those that are no token."""
    byte_ids: NDArray[np.int64]
    pair_keys: NDArray[np.int64]
    pair_values: NDArray[np.int64]


def find_word_rules(data: bytes, *, specials_as_text: bool) -> WordRules | None:
    """Find how the texts of a tokenizer can be cut into words; None if that could change their ids."""
    tokenizer = msgspec.json.decode(data, type=_TokenizerSettings)
    settings = tokenizer.model
    normalizers = list_normalizers(tokenizer.normalizer)
    pre_tokenizer = tokenizer.pre_tokenizer
    is_understood = (
        settings.type == "BPE"
        and not (settings.dropout or settings.continuing_subword_prefix or settings.end_of_word_suffix)
        and not settings.ignore_merges
        and settings.byte_fallback
        and normalizers in ([_REPLACE], [_PREPEND, _REPLACE])
        and (pre_tokenizer is None or pre_tokenizer.get("pattern") == _SPLIT_AT_SPACES)  # which it never meets
    )
    if not is_understood:
        return None
    model = msgspec.json.decode(data, type=_TokenizerModel).model
    if not has_token_for_each_byte(model.vocab):
        return None
    added = tokenizer.added_tokens or ()
    if any(token.single_word or token.lstrip or token.rstrip or token.normalized for token in added):
        return None
    tokens = [token for token in added if token.content and not (token.special and specials_as_text)]
    pair_keys, pair_values = _tabulate_merges(model)
    return WordRules(
        prepends=len(normalizers) > 1,
        tokens=[(token.content.encode(), token.id) for token in tokens],
        joins=_find_joined_bytes(model.vocab),
        char_ids=_tabulate_characters(model.vocab),
        byte_ids=np.array([model.vocab.get(f"<0x{byte:02X}>", -1) for byte in range(256)], dtype=np.int64),
        pair_keys=pair_keys,
        pair_values=pair_values,
    )


def _find_joined_bytes(vocab: dict[str, int]) -> NDArray[np.bool_]:
    """Find which bytes are side by side in tokens, with spaces instead of marks.

    The token of a byte (`<0x41>`) stands for no characters, unless two other tokens spell it.
    """
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    are_spelled = any(name[:cut] in vocab and name[cut:] in vocab for name in names for cut in range(1, len(names[0])))
    left_out = frozenset() if are_spelled else frozenset(names)
    spelled = _NEVER_IN_TEXT.join(token.replace(_MARK, " ").encode() for token in vocab if token not in left_out)
    data = np.frombuffer(spelled, dtype=np.uint8)
    joins = np.zeros((256, 256), dtype=bool)
    joins[data[:-1], data[1:]] = True
    return joins


def _tabulate_characters(vocab: dict[str, int]) -> NDArray[np.int64]:
    characters = {ord(" " if token == _MARK else token): number for token, number in vocab.items() if len(token) == 1}
    char_ids = np.full(max(characters, default=0) + 1, -1, dtype=np.int64)
    char_ids[list(characters)] = list(characters.values())
    if _MARK not in vocab:
        char_ids[ord(" ")] = -1  # a space is never left in a text
    return char_ids


def _tabulate_merges(model: _MergeModel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    vocab = model.vocab
    try:
        pairs = msgspec.json.decode(model.merges, type=list[tuple[str, str]])
    except msgspec.ValidationError:  # as older versions write them: "th e"
        merges = msgspec.json.decode(model.merges, type=list[str])
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    # Maps call no Python function: a third of the time of a comprehension for half a million pairs.
    firsts, seconds = zip(*pairs, strict=True) if pairs else ((), ())
    lefts, rights, merged = (
        np.fromiter(map(vocab.__getitem__, tokens), np.int64, len(pairs))
        for tokens in (firsts, seconds, map(add, firsts, seconds))
    )
    num_slots = 1 << (2 * len(pairs) | 15).bit_length()
    pair_keys, pair_values = np.full(num_slots, -1, dtype=np.int64), np.zeros(num_slots, dtype=np.int64)
    fill_pairs(lefts, rights, merged, pair_keys, pair_values)
    return pair_keys, pair_values


class WordCache:
    """The ids of words, and texts encoded with them."""

    def __init__(self, rules: WordRules, encode: EncodeTexts, sizes: CacheSizes = DEFAULT_SIZES) -> None:
        """`encode` is the engine: it encodes new words, and texts that cannot be cut."""
        self._rules = rules
        self._encode = encode
        self._sizes = sizes
        # By their first two bytes, the longest first: of two tokens at the same position tokenizers choose the longer.
        tokens = sorted(rules.tokens, key=lambda token: (len(token[0]) == 1, token[0][:2], -len(token[0]), token[0]))
        self._token_data = np.frombuffer(b"".join(content for content, _ in tokens), dtype=np.uint8)
        self._token_offsets = _sum_up([len(content) for content, _ in tokens])
        self._token_ids = np.array([number for _, number in tokens], dtype=np.uint32)
        pairs = [int.from_bytes(content[:2], "big") for content, _ in tokens if len(content) > 1]
        self._first_tokens = np.searchsorted(np.array(pairs, dtype=np.int64), np.arange((1 << 16) + 1)).astype(np.int64)
        self._single_tokens = np.full(256, NO_TOKEN, dtype=np.int64)
        for index, (content, _) in enumerate(tokens):
            self._single_tokens[content[0]] = index if len(content) == 1 else -1
        self._items = np.empty(0, dtype=np.int32)
        self._hashes = np.empty(sizes.num_words, dtype=np.uint64)
        self._words = np.empty((sizes.num_words, 2), dtype=np.int64)
        self._pool = np.empty(sizes.pool_bytes, dtype=np.uint8)
        self._slots = np.empty(_NUM_SLOTS, dtype=np.int32)
        self._counts = np.zeros(2, dtype=np.int64)
        self._word_ids = np.empty(sizes.pool_bytes, dtype=np.uint32)  # a word has at most one id a byte
        self._id_offsets = np.zeros(sizes.num_words + 1, dtype=np.int64)
        self._symbols, self._merges = np.empty((2, _MAX_SYMBOLS), dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all words and their ids."""
        self._slots[:] = -1
        self._counts[:] = 0

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts; returns the ids of all texts, and where each begins and ends in them.

        Raises:
            UnicodeEncodeError: A text has a lone surrogate.
        """
        encoded = [text.encode() for text in texts]
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        lengths = np.zeros(len(texts), dtype=np.int64)
        parts: list[NDArray[np.uint32]] = []
        start = 0
        while start < len(texts):
            stop = start + max(1, int(np.searchsorted(np.cumsum(sizes[start:]), self._sizes.chunk_bytes, side="right")))
            self._encode_chunk(texts[start:stop], encoded[start:stop], lengths[start:stop], parts)
            start = stop
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)
        return ids, _sum_up(lengths)

    def _encode_chunk(
        self,
        texts: Sequence[str],
        encoded: list[bytes],
        lengths: NDArray[np.int64],
        parts: list[NDArray[np.uint32]],
    ) -> None:
        data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        offsets = _sum_up([len(text) for text in encoded])
        if len(self._items) < len(data):
            self._items = np.empty(len(data), dtype=np.int32)
        item_offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        is_refused = np.zeros(len(texts), dtype=bool)
        row = 0
        while row < len(texts):
            item_offsets[row] = 0
            num_before = int(self._counts[NUM_WORDS])
            stop = cut_texts(
                data,
                offsets,
                row,
                int(self._rules.prepends),
                self._rules.joins,
                self._token_data,
                self._token_offsets,
                self._first_tokens,
                self._single_tokens,
                self._slots,
                self._hashes,
                self._words,
                self._pool,
                self._counts,
                self._items,
                item_offsets,
                is_refused,
            )
            self._encode_new_words(num_before)
            self._collect(texts, row, stop, item_offsets, is_refused, lengths, parts)
            if stop < len(texts):
                if stop == row and not num_before:  # more words than fit, in one text
                    is_refused[row] = True
                self.clear()
            row = stop

    def _encode_new_words(self, first: int) -> None:
        stop = int(self._counts[NUM_WORDS])
        rules = self._rules
        while first < stop:
            first = encode_words(
                *(first, stop, self._words, self._pool, rules.char_ids, rules.byte_ids),
                *(rules.pair_keys, rules.pair_values, self._symbols, self._merges),
                *(self._word_ids, self._id_offsets),
            )
            if first < stop:  # a long one
                word = self._pool[slice(*self._words[first].tolist())].tobytes().decode()
                # The engine puts the mark before the text itself. No long word is a lone space.
                ids, _ = self._encode([word[1:] if rules.prepends else word])
                begin = int(self._id_offsets[first])
                self._word_ids[begin : begin + len(ids)] = ids
                self._id_offsets[first + 1] = begin + len(ids)
                first += 1

    def _collect(
        self,
        texts: Sequence[str],
        first: int,
        stop: int,
        item_offsets: NDArray[np.int64],
        is_refused: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        parts: list[NDArray[np.uint32]],
    ) -> None:
        """Add the ids of some texts to `parts`, and their number to `lengths`."""
        count_ids(self._items, item_offsets, first, stop, self._id_offsets, lengths)
        row = first
        for refused in [*(first + np.flatnonzero(is_refused[first:stop])).tolist(), stop]:
            ids = np.empty(int(lengths[row:refused].sum()), dtype=np.uint32)
            copy_ids(self._items, item_offsets, row, refused, self._word_ids, self._id_offsets, self._token_ids, ids)
            parts.append(ids)
            if refused < stop:
                text_ids, _ = self._encode([texts[refused]])
                parts.append(text_ids)
                lengths[refused] = len(text_ids)
            row = refused + 1


def _sum_up(sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.asarray(sizes, dtype=np.int64))])
