"""Vocabularies whose ids have gaps (cl100k, o200k), for an engine that needs ids without gaps.

Each gap is filled with a token that no text can produce. It holds a space, which byte-level tokenizers write as another
character; in other tokenizers no merge leads to it. If whole words are looked up before they are merged
(`ignore_merges`), only the first argument holds, so only byte-level tokenizers are filled then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gristmill.text.tokenizers.words.byte_lengths import is_byte_level


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
