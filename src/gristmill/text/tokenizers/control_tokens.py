"""Control tokens that a tokenizer does not mark as special: `<tool_call>`, `</think>`.

They are tokens wherever they stand in a text, and no engine can be told otherwise. So where somebody has written one,
its text is encoded by a copy of the tokenizer that marks them: then they can be taken for the letters they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gristmill.text.tokenizers.reference import ReferenceEngine

if TYPE_CHECKING:
    from gristmill.text.tokenizers.facts import TokenizerFacts
    from gristmill.text.tokenizers.files import TokenizerFiles

_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


def is_unmarked_control(token: str, *, special: bool) -> bool:
    """Whether an added token is one. Runs of spaces and words that are added are none."""
    return not special and _LOOKS_LIKE_CONTROL.fullmatch(token) is not None


def find_unmarked_controls(facts: TokenizerFacts) -> dict[str, int]:
    """All of a tokenizer, with their ids."""
    return {
        token: number
        for token, number in facts.added_tokens.items()
        if is_unmarked_control(token, special=token in facts.special_tokens)
    }


class PlainTextEngine(ReferenceEngine):
    """The reference, to which no control token in a text is one, marked or not."""

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
