"""Control tokens that a tokenizer does not mark as special: `<tool_call>`, `</think>`.

Engines encode them as tokens wherever they occur in a text, with no option against it. So a text in which somebody has
written one is encoded by a copy of the tokenizer that marks them as special: then they can be encoded as plain letters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gristmill.text.tokenizers.engines.reference import ReferenceEngine

if TYPE_CHECKING:
    from gristmill.text.tokenizers.facts import TokenizerFacts
    from gristmill.text.tokenizers.files import TokenizerFiles

_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


def is_unmarked_control(token: str, *, special: bool) -> bool:
    """Tell whether an added token is such a control token. Added runs of spaces and words are not."""
    return not special and _LOOKS_LIKE_CONTROL.fullmatch(token) is not None


def find_unmarked_controls(facts: TokenizerFacts) -> dict[str, int]:
    """Find all such tokens of a tokenizer, with their ids."""
    return {
        token: number
        for token, number in facts.added_tokens.items()
        if is_unmarked_control(token, special=token in facts.special_tokens)
    }


class PlainTextEngine(ReferenceEngine):
    """The reference engine with all control tokens encoded as plain text, marked as special or not."""

    def __init__(self, files: TokenizerFiles) -> None:
        import tokenizers  # noqa: PLC0415

        super().__init__(files, specials_as_text=True)
        described = msgspec.json.decode(files.read())
        for token in described.get("added_tokens") or ():
            token["special"] = token["special"] or is_unmarked_control(token["content"], special=False)
        self._tokenizer = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(described))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
