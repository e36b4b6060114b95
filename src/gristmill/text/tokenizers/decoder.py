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
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


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
