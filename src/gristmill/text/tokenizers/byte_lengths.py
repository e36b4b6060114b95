"""How many bytes of a text each token stands for: with that, ids alone say where they stand.

Byte-level tokenizers write each byte as one printable character, so a token's length in characters is its length in
bytes. SentencePiece's kind writes a space as `▁` and a byte that it has no token for as `<0xE4>`; some put a `▁` before
the text and behind each special token, which stands for nothing.

A normaliser, stripped space or a `▁` in the text itself breaks that for a text; who uses the lengths checks their sum,
and that the text is in the form of Unicode that it is normalised to. In SentencePiece's kind all else makes the sum too
small, so that no two of them can hide each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles

_SPACE_MARK = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NUM_BYTES = 256
_EVERY, _FIRST, _NONE = "every", "first", "none"


class _AddedEntry(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _ModelVocabulary(msgspec.Struct):
    vocab: Any
    byte_fallback: bool = False


class _TokenizerPipeline(msgspec.Struct):
    model: _ModelVocabulary
    added_tokens: list[_AddedEntry] | None = None
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ByteLengths:
    """The length in bytes of every token of a tokenizer."""

    by_id: NDArray[np.int32]
    is_added: NDArray[np.bool_]
    """Tokens that are looked for before the text between them is normalised."""
    prefixed: str
    """Which pieces of text begin with a mark that stands for nothing: `every`, `first` or `none`."""
    unicode_form: str | None
    """To which texts are normalised. In those that are not in it already, letters may grow and shrink."""

    def of(self, ids: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The length of each of the ids of some texts."""
        lengths = self.by_id[ids].astype(np.int64)
        if self.prefixed == _NONE or not len(ids):
            return lengths
        is_added = self.is_added[ids]
        begins_piece = np.zeros(len(ids) + 1, dtype=bool)
        if self.prefixed == _EVERY:
            begins_piece[1:] = is_added
        begins_piece[offsets[:-1]] = True
        lengths[begins_piece[:-1] & ~is_added] -= 1
        return lengths


def read_byte_lengths(files: TokenizerFiles) -> ByteLengths | None:
    """The lengths of a tokenizer's tokens; None if they do not say where tokens stand."""
    tokenizer = msgspec.json.decode(files.read(), type=_TokenizerPipeline)
    vocab = tokenizer.model.vocab
    added = {token.id: token for token in tokenizer.added_tokens or ()}
    if not isinstance(vocab, dict):
        return None
    words = {token: number for token, number in vocab.items() if number not in added}
    lengths_of = {number: len(token.content.encode()) for number, token in added.items()}
    is_bytes = is_byte_level(words)
    prefixed = _NONE if is_bytes else _prefixed_pieces(tokenizer)
    if prefixed is None:
        return None
    if is_bytes:
        lengths_of |= {number: len(token) for token, number in words.items()}
    else:
        # Gemma also adds runs of marks, which come from runs of spaces.
        plain = {token.content: number for number, token in added.items() if not token.special}
        lengths_of |= {number: _spelled_length(token) for token, number in (words | plain).items()}
    by_id = np.zeros(max(lengths_of, default=-1) + 1, dtype=np.int32)
    by_id[list(lengths_of)] = list(lengths_of.values())
    is_added = np.zeros(len(by_id), dtype=bool)
    is_added[list(added)] = True
    return ByteLengths(by_id, is_added, prefixed, _unicode_form(tokenizer.normalizer))


def _unicode_form(normalizer: dict[str, Any] | None) -> str | None:
    """The form of Unicode that a normaliser brings a text to."""
    if normalizer is None:
        return None
    if normalizer["type"] == "Sequence":
        return next(filter(None, map(_unicode_form, normalizer["normalizers"])), None)
    return normalizer["type"] if normalizer["type"] in ("NFC", "NFD", "NFKC", "NFKD") else None


def is_byte_level(tokens: Iterable[str]) -> bool:
    """Whether all of them are made of the characters that stand for bytes."""
    alphabet = _byte_alphabet()
    return all(alphabet.issuperset(token) for token in tokens)


def _spelled_length(token: str) -> int:
    """Of a token of SentencePiece's kind.

    >>> _spelled_length("▁über"), _spelled_length("<0x0A>")
    (6, 1)
    """
    return 1 if _BYTE.fullmatch(token) else len(token.replace(_SPACE_MARK, " ").encode())


def _prefixed_pieces(tokenizer: _TokenizerPipeline) -> str | None:
    """Where SentencePiece's kind puts a mark of its own; None for any other kind, and if it has not a token a byte."""
    num_bytes = sum(_BYTE.fullmatch(token) is not None for token in tokenizer.model.vocab)
    if not tokenizer.model.byte_fallback or num_bytes != _NUM_BYTES:
        return None
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    if normalizer == replaces and _keeps_lengths(pre_tokenizer):
        return _NONE
    prepends = {"type": "Prepend", "prepend": _SPACE_MARK}
    if normalizer == {"type": "Sequence", "normalizers": [prepends, replaces]} and _keeps_lengths(pre_tokenizer):
        return _EVERY
    if normalizer is None and pre_tokenizer is not None and pre_tokenizer.get("type") == "Metaspace":
        schemes = {"always": _EVERY, "first": _FIRST, "never": _NONE}
        return schemes.get(pre_tokenizer.get("prepend_scheme", "")) if pre_tokenizer["replacement"] == "▁" else None
    return None


def _keeps_lengths(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Gemma's file cuts a text at spaces of which none are left."""
    return pre_tokenizer is None or (pre_tokenizer["type"] == "Split" and pre_tokenizer["behavior"] != "Removed")


@lru_cache(maxsize=1)
def _byte_alphabet() -> frozenset[str]:
    """The characters that stand for the 256 bytes: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return frozenset(map(chr, [*printable, *range(0x100, 0x100 + 256 - len(printable))]))
