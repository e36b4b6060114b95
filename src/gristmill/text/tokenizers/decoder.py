"""Ids to text without an engine, where the vocabulary alone tells it.

To show a few rows, a report would load the reference, which takes 0.1 to 0.7 s. A byte-level tokenizer needs only its
vocabulary: each token spells bytes by printable characters. A token with any other character, such as an added one with
a space, stands for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gristmill.text.tokenizers.engines.engine import load_engine
from gristmill.text.tokenizers.words.byte_lengths import list_byte_characters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return load_engine(files)  # it says what is wrong
    vocab = tokenizer.model.vocab
    if tokenizer.decoder is None or tokenizer.decoder.type != "ByteLevel" or not isinstance(vocab, dict):
        return load_engine(files)
    tokens = dict(zip(vocab.values(), vocab, strict=True))
    return _ByteLevelDecoder(tokens | {token.id: token.content for token in tokenizer.added_tokens or ()})


def split_by_tokens(decode: Callable[[list[int]], str], ids: list[int]) -> list[str]:
    """Decode ids to one text for each, which joined are the text of them all.

    A token alone may be half a character, or lose its space: so each is decoded behind the one before it, and a
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
