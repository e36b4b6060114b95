"""Special tokens that people have written into a conversation: found, so that they can be encoded as the text they are.

The texts are rendered once more with marks around each of them. Without the marks that must be the real rendering, and
then the marks say where in it they stand: all other special tokens are the template's own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.shapes import NotAChat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.templates import ChatTemplate

_OPEN, _CLOSE = "\ufdd4", "\ufdd5"
_MARKS = re.compile(f"[{_OPEN}{_CLOSE}]")


class ChatLiterals:
    """Finds these tokens in conversations."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted((token for token in tokens if token), key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def find(self, template: ChatTemplate, conversation: Conversation, text: str) -> list[tuple[int, int]]:
        """Where they stand in the rendered text, in characters."""
        if self._pattern is None:
            return []
        marked = replace(
            conversation, messages=self._marked(conversation.messages), tools=self._marked(conversation.tools)
        )
        if marked.messages == conversation.messages and marked.tools == conversation.tools:
            return []
        found = template.render(marked.messages, marked.tools, **conversation.variables)
        if _MARKS.sub("", found) != text:
            raise NotAChat("special_token", "the template changes a text that holds a special token of the tokenizer")
        places = [mark.start() - number for number, mark in enumerate(_MARKS.finditer(found))]
        return list(zip(places[::2], places[1::2], strict=True))

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(f"{_OPEN}\\g<0>{_CLOSE}", value)
        if isinstance(value, dict):
            return {key: self._marked(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._marked(inner) for inner in value]
        return value
