"""How many bytes of a text each token of a byte-level tokenizer stands for: with that, ids alone say where they stand.

Byte-level tokenizers write each byte as one printable character, so a token's length in characters is its length in
bytes. A normaliser, a prefix or stripped space breaks that for a text; who uses the lengths checks their sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: Any


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] | None = None


def byte_lengths(files: TokenizerFiles) -> NDArray[np.int32] | None:
    """The length of each id in bytes; None if it is no byte-level tokenizer."""
    tokenizer = msgspec.json.decode(files.read(), type=_Tokenizer)
    vocab = tokenizer.model.vocab
    added = {token.id: len(token.content.encode()) for token in tokenizer.added_tokens or ()}
    if not isinstance(vocab, dict):
        return None
    lengths = np.zeros(max([*vocab.values(), *added], default=-1) + 1, dtype=np.int32)
    alphabet = _alphabet()
    for token, number in vocab.items():
        if number in added:
            continue
        if not alphabet.issuperset(token):
            return None
        lengths[number] = len(token)
    for number, length in added.items():
        lengths[number] = length
    return lengths


@lru_cache(maxsize=1)
def _alphabet() -> frozenset[str]:
    """The characters that stand for the 256 bytes: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return frozenset(map(chr, [*printable, *range(0x100, 0x100 + 256 - len(printable))]))
