"""The fast engine: `fastokens`, 100 to 180 MB/s on one core. Runs byte-level BPE and similar models, not every one.

A text on which it fails (its regular expressions run out of stack on a mebibyte of spaces) is encoded by the reference
and counted: other texts are not affected.

For tokenizers like SentencePiece `WordCache` encodes all but very long words. The library's own tokenizer, 3.5 s of CPU
time and 500 MB for Gemma 3, is then loaded when a text first needs it.

Digits that are split off before the text is cut into words (Command R+, StarCoder, SmolLM) take the engine off its fast
way: 6 MB/s. Written as one regular expression the same cuts take a fifth of the time.

Vocabularies whose ids have gaps (cl100k, o200k), for an engine that needs ids without gaps.

Each gap is filled with a token that no text can produce. It holds a space, which byte-level tokenizers write as another
character; in other tokenizers no merge leads to it. If whole words are looked up before they are merged
(`ignore_merges`), only the first argument holds, so only byte-level tokenizers are filled then.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers.byte_lengths import is_byte_level
from gristmill.text.tokenizers.engine import FAST, REFERENCE, Engine, engine_version, load_engine
from gristmill.text.tokenizers.word_cache import WordCache, find_word_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


_CUT_DIGITS_FIRST = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|%s| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?![^\s\p{N}])|\s+"  # a word ends before a digit, so that space before it is like space at the end
)
"""The words of GPT-2's expression between digits; `%s` is what becomes of digits."""


class FastEngine(Engine):
    """The fast engine, on the library `fastokens`."""

    name: ClassVar[str] = FAST

    def __init__(self, files: TokenizerFiles, *, specials_as_text: bool) -> None:
        super().__init__(files, specials_as_text=specials_as_text)
        self.version = engine_version(FAST)
        rules = find_word_rules(files.read(), specials_as_text=specials_as_text)
        self._words = WordCache(rules, self._encode_whole) if rules is not None else None
        if self._words is None:
            self.load_library()

    def load_library(self) -> None:
        """Load the tokenizer of the library, unless it is. Where words are cached most texts never need it.

        Raises:
            UsageError: The library does not understand the tokenizer.
        """
        self._tokenizer  # noqa: B018  (loaded by its first use)

    @cached_property
    def _tokenizer(self) -> Any:
        return self._load()

    def _load(self) -> Any:
        data = self._files.read()
        try:
            try:
                tokenizer = _load_tokenizer(data)
            except ValueError:
                filled = fill_gaps(data)
                if filled is None:
                    raise
                tokenizer = _load_tokenizer(filled)
        except ValueError as error:
            raise UsageError(
                f"{FAST} {self.version} cannot load {self._files.path}: {error}",
                help=f"use engine: auto, which then uses the reference, or engine: {REFERENCE}",
                reason=str(error),
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        if self._words is None:
            return self._encode_whole(texts)
        try:
            return self._words.encode(texts)
        except BaseException as error:  # the cache may hold words without their ids
            self._words.clear()
            if not isinstance(error, UnicodeEncodeError):
                raise
        return self._encode_whole(texts)

    def _encode_whole(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts without the cache of words."""
        try:
            ids, offsets = self._tokenizer.encode_batch_flat(texts, split_special_tokens=self._specials_as_text)
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # a panic of Rust, which may leave locks closed forever
                self._tokenizer = self._load()
            elif not isinstance(error, Exception):
                raise
            return self._encode_without_failing(texts)
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)

    def _encode_without_failing(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode halves of the texts, down to the one that the engine cannot encode, which the reference encodes."""
        if len(texts) == 1:
            self.num_by_reference += 1
            reference = load_engine(self._files, REFERENCE, specials_as_text=self._specials_as_text)
            return reference.encode(texts)
        middle = len(texts) // 2
        ids, offsets = self._encode_whole(texts[:middle])
        more_ids, more_offsets = self._encode_whole(texts[middle:])
        return np.concatenate([ids, more_ids]), np.concatenate([offsets, more_offsets[1:] + offsets[-1]])


def _load_tokenizer(data: bytes) -> Any:
    import fastokens  # noqa: PLC0415

    return fastokens.Tokenizer.from_json_str(join_cuts(data).decode())


def join_cuts(data: bytes) -> bytes:
    """Write a split at digits and the split into GPT-2's words as one; other tokenizers stay as they are."""
    if b'"Digits"' not in data:
        return data
    tokenizer = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    match msgspec.json.decode(tokenizer["pre_tokenizer"]):
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": bool(is_individual)},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True} as byte_level,
            ],
        }:
            pattern = {"Regex": _CUT_DIGITS_FIRST % (r"\p{N}" if is_individual else r"\p{N}+")}
            split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            joined = {"type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]}
            return msgspec.json.encode(tokenizer | {"pre_tokenizer": joined})
    return data


def fill_gaps(data: bytes) -> bytes | None:
    """Fill the gaps of a `tokenizer.json`; None if it has none, or if they cannot be filled safely."""
    tokenizer: dict[str, Any] = msgspec.json.decode(data)
    model = tokenizer["model"]
    vocab = model.get("vocab")
    if model.get("type", "BPE") != "BPE" or not isinstance(vocab, dict) or not vocab:
        return None
    ids = set(vocab.values())
    num_gaps = max(ids) + 1 - len(ids)
    # A hostile file may name an id of 2^32.
    if not 0 < num_gaps <= len(vocab) or min(ids) < 0:
        return None
    added = {token["content"] for token in tokenizer.get("added_tokens") or ()}
    if model.get("ignore_merges") and not is_byte_level(token for token in vocab if token not in added):
        return None
    for number in range(max(ids)):
        if number not in ids:
            vocab[f"\ue000 {number} is no token \ue000"] = number
    return msgspec.json.encode(tokenizer)
