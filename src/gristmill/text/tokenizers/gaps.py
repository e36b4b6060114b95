"""Vocabularies whose ids have gaps (cl100k, o200k), for an engine that wants ids without any.

Each gap gets a token that no text can give. It holds a space, which byte-level tokenizers write as another character;
in others no merge leads to it. Where whole words are looked up before they are merged (`ignore_merges`) only the first
holds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gristmill.text.tokenizers.byte_lengths import is_byte_level


def fill_gaps(data: bytes) -> bytes | None:
    """A `tokenizer.json` whose gaps are filled; None if it has none, or if they cannot be filled safely."""
    tokenizer: dict[str, Any] = msgspec.json.decode(data)
    model = tokenizer["model"]
    vocab = model.get("vocab")
    if model.get("type", "BPE") != "BPE" or not isinstance(vocab, dict) or not vocab:
        return None
    taken = set(vocab.values())
    num_gaps = max(taken) + 1 - len(taken)
    # A hostile file may name an id of 2^32.
    if not 0 < num_gaps <= len(vocab) or min(taken) < 0:
        return None
    added = {token["content"] for token in tokenizer.get("added_tokens") or ()}
    if model.get("ignore_merges") and not is_byte_level(token for token in vocab if token not in added):
        return None
    for number in range(max(taken)):
        if number not in taken:
            vocab[f"\ue000 {number} is no token \ue000"] = number
    return msgspec.json.encode(tokenizer)
