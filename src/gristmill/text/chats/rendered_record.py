"""What becomes of one record: its examples, what was dropped and why, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.text.chats.shapes import TOOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.shapes import Conversation

PLAIN, CALL, AFTER_RESULT = ANSWER_KINDS = ("plain", "call", "after_result")
"""Kinds of answers: plain words, a call of tools, or what follows a tool's result."""


class DroppedChat(Exception):
    """A conversation that cannot be trained on; its argument is the reason."""


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered conversation. Positions are in characters."""

    text: str
    trained: list[tuple[int, int]]
    """Spans that are trained on."""
    literals: list[tuple[int, int]]
    """Spans of special tokens that somebody has written: they are encoded as plain text."""
    last_answer: int
    """Where the last answer begins."""
    images: tuple[str, ...] = ()
    """The names of the images in it, in order."""


@dataclass(slots=True)
class RenderedRecord:
    """The examples of one record, and an account of the rest."""

    examples: list[Example] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """The reason of each example that was dropped."""
    counts: list[tuple[str, int]] = field(default_factory=list)
    """Counters. Lists, because most records add nothing: a Counter costs more than its record."""

    def drop_answers(self, reason: str, conversation: Conversation, messages: Sequence[int]) -> None:
        """Drop an example, and count its answers by their kind."""
        self.dropped.append(reason)
        self.counts += [(f"lost_{classify_answer(conversation, message)}", 1) for message in messages]


def classify_answer(conversation: Conversation, message: int) -> str:
    """Tell what kind of answer a message is."""
    if conversation.messages[message].get("tool_calls"):
        return CALL
    return AFTER_RESULT if message and conversation.messages[message - 1]["role"] == TOOL else PLAIN
