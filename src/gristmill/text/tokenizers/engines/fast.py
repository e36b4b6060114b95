"""The fast engine: `fastokens`, 100 to 180 MB/s on one core. Runs byte-level BPE and similar models, not every one.

A text on which it fails (its regular expressions run out of stack on a mebibyte of spaces) is encoded by the reference
and counted: other texts are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers.engines.engine import FAST, REFERENCE, Engine, engine_version, load_engine
from gristmill.text.tokenizers.engines.fast_loading import load_tokenizer
from gristmill.text.tokenizers.words.gaps import fill_gaps
from gristmill.text.tokenizers.words.word_cache import WordCache, find_word_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


class FastEngine(Engine):
    """The fast engine, on the library `fastokens`."""

    name: ClassVar[str] = FAST

    def __init__(self, files: TokenizerFiles, *, specials_as_text: bool) -> None:
        super().__init__(files, specials_as_text=specials_as_text)
        self.version = engine_version(FAST)
        self._tokenizer = self._load()
        rules = find_word_rules(files.read(), specials_as_text=specials_as_text)
        self._words = WordCache(rules, self._encode_whole) if rules is not None else None

    def _load(self) -> Any:
        data = self._files.read()
        try:
            try:
                tokenizer = load_tokenizer(data)
            except ValueError:
                filled = fill_gaps(data)
                if filled is None:
                    raise
                tokenizer = load_tokenizer(filled)
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
