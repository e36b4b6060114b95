"""Special tokens that someone wrote into a conversation. They are found so that they are encoded as plain text.

A user who writes `<|im_end|>` must not end the turn. The conversation is rendered once more with marks around each such
token. Without the marks that must be the real rendering, and then the marks show where the tokens are: all others are
the template's own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.shapes import TOOL, USER, NotAChat
from gristmill.text.tokenizers.special_tokens import MAX_BEGINNINGS, compile_tokens, find_beginnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.chats.templates import ChatTemplate, Message

_OPEN, _CLOSE, _BORDER = "\ufdd4", "\ufdd5", "\ufdd8"
_MARKS = re.compile(f"[{_OPEN}{_CLOSE}{_BORDER}]")


class ChatLiterals:
    """Finds literal special tokens in conversations."""

    def __init__(self, tokens: Iterable[str], unmarked: Iterable[str] = ()) -> None:
        """`unmarked` are control tokens that are not marked as special: assistants may write them, users may not."""
        special = list(tokens)
        self._special = compile_tokens(special)
        self._pattern = compile_tokens([*special, *unmarked])
        beginnings = find_beginnings([token for token in (*special, *unmarked) if token])
        self._beginnings = beginnings if len(beginnings) <= MAX_BEGINNINGS else [""]

    def find(self, template: ChatTemplate, conversation: Conversation, text: str) -> list[tuple[int, int]]:
        """Find the tokens in the rendered text; spans are in characters."""
        if self._pattern is None:
            return []
        messages = [self._mark_message(message) for message in conversation.messages]
        tools = self._mark_values(conversation.tools, self._special)
        if messages == conversation.messages and tools == conversation.tools:
            return []
        marked = template.render(messages, tools, conversation.variables)
        if _MARKS.sub("", marked) != text:
            raise NotAChat("special_token", "the template changes a text that holds a special token of the tokenizer")
        # The marks before it are not in the text, so each position moves back by their number.
        positions = [(mark.group(), mark.start() - number) for number, mark in enumerate(_MARKS.finditer(marked))]
        literals, gaps = self._pair_marks(text, [(mark, position) for mark, position in positions if mark != _BORDER])
        borders = sorted([*gaps, *(position for mark, position in positions if mark == _BORDER)])
        return sorted([*literals, *self._find_across(text, borders)]) if borders else literals

    def occur_in(self, texts: Sequence[str]) -> bool:
        """Tell whether one of the texts holds a token: 50 ns a text without the first character of a token."""
        if self._pattern is None:
            return False
        for beginning in self._beginnings:
            first = beginning[:1]
            for text in texts:
                if first in text and beginning in text and self._pattern.search(text):
                    return True
        return False

    def spans(self, words: str) -> list[tuple[int, int]]:
        """Find the tokens in words of the assistant."""
        return [token.span() for token in self._special.finditer(words)] if self._special is not None else []

    def _pair_marks(self, text: str, positions: list[tuple[str, int]]) -> tuple[list[tuple[int, int]], list[int]]:
        """Find the tokens between two marks, and the gaps where a template took a token out.

        A mark without its other half is left of a token that the template took out, such as a thought of an earlier
        turn: the text before or after it is what the template kept. So are two marks with nothing between them.
        """
        assert self._pattern is not None
        literals, gaps = [], []
        for (opening, start), (closing, end) in pairwise(positions):
            if (opening, closing) != (_OPEN, _CLOSE):
                continue
            if start == end:
                gaps.append(start)
                continue
            if self._pattern.fullmatch(text, start, end) is None:
                raise NotAChat("special_token", "the template changes a special token of the tokenizer in a text")
            literals.append((start, end))
        return literals, gaps

    def _find_across(self, text: str, borders: list[int]) -> Iterator[tuple[int, int]]:
        """Find tokens that begin in one part of a message and end in another, or around a gap."""
        assert self._pattern is not None
        for match in self._pattern.finditer(text):
            start, end = match.span()
            after = bisect_right(borders, start)
            if after < len(borders) and borders[after] < end:
                yield start, end

    def _mark_message(self, message: Message) -> Message:
        content = message.get("content")
        pattern = self._pattern if message["role"] in (USER, TOOL) else self._special
        marked: Message = self._mark_values(message, pattern)
        if isinstance(content, list):  # a template writes parts one after the other
            marked = dict(marked)
            marked["content"] = [
                {**part, "text": _mark_borders(part["text"])} if isinstance(part.get("text"), str) else part
                for part in marked["content"]
            ]
        return marked

    def _mark_values(self, value: Any, pattern: re.Pattern[str] | None) -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            for beginning in self._beginnings:
                if beginning in value:
                    return pattern.sub(f"{_OPEN}\\g<0>{_CLOSE}", value)
            return value
        if isinstance(value, dict):
            return {self._mark_values(key, pattern): self._mark_values(inner, pattern) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._mark_values(inner, pattern) for inner in value]
        return value


def _mark_borders(text: str) -> str:
    """Mark where the text of a part begins and ends, inside of the space around it: templates strip it."""
    words = text.strip()
    if not words:
        return text
    before, _, after = text.partition(words)
    return f"{before}{_BORDER}{words}{_BORDER}{after}"
