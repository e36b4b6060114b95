"""How many bytes of a text each token stands for. With these lengths, ids alone tell the position of each token.

Byte-level tokenizers write each byte as one printable character, so a token's length in characters is its length in
bytes. Tokenizers like SentencePiece write a space as `▁`, and a byte without its own token as `<0xE4>`; some put a
`▁` before the text and after each special token, which stands for nothing:

    text    "über 3"   7 bytes
    tokens  ▁über ▁3   "▁über" is 6 bytes less 1 for the mark before the text, "▁3" is 2 bytes

A normaliser, stripped space or a `▁` in the text itself breaks this for a text. Therefore the caller checks that the
lengths sum up to the size of the text, and that the text is in the normal form of Unicode that the tokenizer uses. All
other faults of tokenizers like SentencePiece make the sum too small, so no two of them can cancel out.

Ids to text without an engine, where the vocabulary alone tells it.

To show a few rows, a report would load the reference, which takes 0.1 to 0.7 s. A byte-level tokenizer needs only its
vocabulary: each token spells bytes by printable characters. A token with any other character, such as an added one with
a space, stands for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from gristmill.text.tokenizers.engine import load_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


_SPACE_MARK = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NUM_BYTES = 256
_NUM_ASCII = 128
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
    """Which tokens are searched before the text between them is normalised."""
    prefixed: str
    """Which pieces of text begin with a mark that stands for nothing: `every`, `first` or `none`."""
    unicode_form: str | None
    """The normal form that texts are brought to. In a text that is not in it already, lengths may change."""

    @property
    def marks_text(self) -> bool:
        """Whether a text begins with a mark that stands for nothing, unless an added token begins it."""
        return self.prefixed != _NONE

    @property
    def marks_behind_added(self) -> bool:
        """Whether the text after an added token begins with such a mark."""
        return self.prefixed == _EVERY

    def of(self, ids: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the length of each id; `offsets` tell where texts begin and end in `ids`."""
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
    """Read the lengths of a tokenizer's tokens; None if they do not tell positions."""
    tokenizer = msgspec.json.decode(files.read(), type=_TokenizerPipeline)
    vocab = tokenizer.model.vocab
    added = {token.id: token for token in tokenizer.added_tokens or ()}
    if not isinstance(vocab, dict):
        return None
    words = {token: number for token, number in vocab.items() if number not in added}
    lengths_of = {number: len(token.content.encode()) for number, token in added.items()}
    is_bytes = _writes_bytes(tokenizer.pre_tokenizer) or is_byte_level(words)
    prefixed = _NONE if is_bytes else _find_prefixed_pieces(tokenizer)
    if prefixed is None:
        return None
    if is_bytes:
        alphabet = _make_byte_alphabet()
        # A word with other characters is never in a text (Command R+ has emoji). If it were, no sum would be right.
        lengths_of |= {number: len(token) * alphabet.issuperset(token) for token, number in words.items()}
    else:
        # Gemma also has added tokens of several marks, which stand for runs of spaces.
        plain = {token.content: number for number, token in added.items() if not token.special}
        lengths_of |= {number: _measure_spelled_length(token) for token, number in (words | plain).items()}
    by_id = np.zeros(max(lengths_of, default=-1) + 1, dtype=np.int32)
    by_id[list(lengths_of)] = list(lengths_of.values())
    is_added = np.zeros(len(by_id), dtype=bool)
    is_added[list(added)] = True
    return ByteLengths(by_id, is_added, prefixed, _find_unicode_form(tokenizer.normalizer))


def read_token_bytes(files: TokenizerFiles) -> list[bytes] | None:
    """Read the bytes that each token stands for, by its id; None if the vocabulary does not tell them.

    A mark before a text or after a special token is a space here: the ids alone do not tell it from one.
    """
    tokenizer = msgspec.json.decode(files.read(), type=_TokenizerPipeline)
    vocab = tokenizer.model.vocab
    added = {token.id: token for token in tokenizer.added_tokens or ()}
    if not isinstance(vocab, dict):
        return None
    words = {token: number for token, number in vocab.items() if number not in added}
    is_bytes = _writes_bytes(tokenizer.pre_tokenizer) or is_byte_level(words)
    if not is_bytes and not tokenizer.model.byte_fallback:
        return None
    contents = {number: token.content.encode() for number, token in added.items()}
    if is_bytes:
        byte_of = {char: byte for byte, char in enumerate(list_byte_characters())}
        alphabet = _make_byte_alphabet()
        contents |= {
            number: bytes(map(byte_of.__getitem__, token)) if alphabet.issuperset(token) else token.encode()
            for token, number in words.items()
        }
    else:
        contents |= {number: _spell(token) for token, number in words.items()}
    return [contents.get(number, b"") for number in range(max(contents, default=-1) + 1)]


def _spell(token: str) -> bytes:
    r"""Spell a token of a tokenizer like SentencePiece.

    >>> _spell("▁über").decode(), _spell("<0x0A>")
    (' über', b'\n')
    """
    return bytes([int(token[3:5], 16)]) if _BYTE.fullmatch(token) else token.replace(_SPACE_MARK, " ").encode()


def _find_unicode_form(normalizer: dict[str, Any] | None) -> str | None:
    """Find the normal form of Unicode that a normaliser brings a text to."""
    if normalizer is None:
        return None
    if normalizer["type"] == "Sequence":
        return next(filter(None, map(_find_unicode_form, normalizer["normalizers"])), None)
    return normalizer["type"] if normalizer["type"] in ("NFC", "NFD", "NFKC", "NFKD") else None


def is_byte_level(tokens: Iterable[str]) -> bool:
    """Tell whether all tokens consist of the characters that stand for bytes."""
    alphabet = _make_byte_alphabet()
    return all(alphabet.issuperset(token) for token in tokens)


def _writes_bytes(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Tell whether a pre-tokenizer writes each byte of a text as a character."""
    if pre_tokenizer is None:
        return False
    return pre_tokenizer["type"] == "ByteLevel" or any(map(_writes_bytes, pre_tokenizer.get("pretokenizers", ())))


def has_token_for_each_byte(vocab: Container[str]) -> bool:
    """Tell whether no text is unknown: a vocabulary has `<0x00>` to `<0xFF>`, or the character of the byte instead.

    Gemma has no `<0x09>`, since the tab is a token.
    """
    return all(f"<0x{byte:02X}>" in vocab or (byte < _NUM_ASCII and chr(byte) in vocab) for byte in range(_NUM_BYTES))


def list_normalizers(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """List the normalisers of a sequence, or the only one."""
    if normalizer is None:
        return []
    normalizers: list[dict[str, Any]] = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return normalizers


def _measure_spelled_length(token: str) -> int:
    """Find the length of a token of a tokenizer like SentencePiece.

    >>> _measure_spelled_length("▁über"), _measure_spelled_length("<0x0A>")
    (6, 1)
    """
    return len(_spell(token))


def _find_prefixed_pieces(tokenizer: _TokenizerPipeline) -> str | None:
    """Find where a tokenizer like SentencePiece adds a mark; None for other ones, and without a token per byte."""
    if not tokenizer.model.byte_fallback or not has_token_for_each_byte(tokenizer.model.vocab):
        return None
    normalizers, pre_tokenizer = list_normalizers(tokenizer.normalizer), tokenizer.pre_tokenizer
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    if normalizers == [replaces] and _keeps_lengths(pre_tokenizer):
        return _NONE
    prepends = {"type": "Prepend", "prepend": _SPACE_MARK}
    if normalizers == [prepends, replaces] and _keeps_lengths(pre_tokenizer):
        return _EVERY
    if not normalizers and pre_tokenizer is not None and pre_tokenizer.get("type") == "Metaspace":
        schemes = {"always": _EVERY, "first": _FIRST, "never": _NONE}
        return schemes.get(pre_tokenizer.get("prepend_scheme", "")) if pre_tokenizer["replacement"] == "▁" else None
    return None


def _keeps_lengths(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Tell whether no text is removed here. Gemma splits at spaces, all of which the normaliser has replaced."""
    return pre_tokenizer is None or (pre_tokenizer["type"] == "Split" and pre_tokenizer["behavior"] != "Removed")


@lru_cache(maxsize=1)
def _make_byte_alphabet() -> frozenset[str]:
    return frozenset(list_byte_characters())


def list_byte_characters() -> list[str]:
    """List the characters that stand for the bytes 0 to 255: printable ones for themselves, others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(_NUM_BYTES)]


_REPLACEMENT = "\ufffd"
_MAX_TOKENS_OF_CHARACTER = 4
"""UTF-8 has at most four bytes a character. What is longer is not text, and is shown as it is."""


class TextDecoder(Protocol):
    """Makes a text of ids."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Decode ids to text; special tokens are shown."""


class _ShownToken(msgspec.Struct):
    id: int
    content: str


class _IdsOfTokens(msgspec.Struct):
    vocab: Any


class _DecoderKind(msgspec.Struct):
    type: str


class _DecodingFile(msgspec.Struct):
    model: _IdsOfTokens
    decoder: _DecoderKind | None = None
    added_tokens: list[_ShownToken] | None = None


def load_decoder(files: TokenizerFiles) -> TextDecoder:
    """Load what decodes ids as the reference does: the vocabulary of a byte-level tokenizer, else the reference."""
    try:
        tokenizer = msgspec.json.decode(files.read(), type=_DecodingFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return load_engine(files)  # it says what is wrong
    vocab = tokenizer.model.vocab
    if tokenizer.decoder is None or tokenizer.decoder.type != "ByteLevel" or not isinstance(vocab, dict):
        return load_engine(files)
    tokens = dict(zip(vocab.values(), vocab, strict=True))
    return _ByteLevelDecoder(tokens | {token.id: token.content for token in tokenizer.added_tokens or ()})


def split_by_tokens(decode: Callable[[list[int]], str], ids: list[int]) -> list[str]:
    """Decode ids to one text for each, which joined are the text of them all.

    A token alone may be half a character, or lose its space: so each is decoded after the one before it, and a
    character of several tokens is the text of the last of them. "€" as bytes e2 82 ac in two tokens: "", "€".
    """
    texts: list[str] = []
    context, start = 0, 0  # ids[context:start] are known, ids[start:] are not yet a whole character
    for end in range(1, len(ids) + 1):
        known = decode(ids[context:start])
        text = decode(ids[context:end])
        if text.endswith(_REPLACEMENT) and end - start < _MAX_TOKENS_OF_CHARACTER and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(known) :])
        context, start = start, end
    return texts


class _ByteLevelDecoder:
    def __init__(self, tokens: dict[int, str]) -> None:
        self._tokens = tokens
        self._bytes = {ord(character): byte for byte, character in enumerate(list_byte_characters())}

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Decode ids to text; ids without a token are left out, as the reference does."""
        tokens = (self._tokens.get(int(number), "") for number in ids)
        return b"".join(map(self._spell, tokens)).decode(errors="replace")

    def _spell(self, token: str) -> bytes:
        try:
            return bytes([self._bytes[ord(character)] for character in token])
        except KeyError:
            return token.encode()
