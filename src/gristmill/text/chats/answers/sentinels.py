"""Conversations with marks in place of what was said, and what a template writes between the marks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.text.chats.shapes import ASSISTANT, SYSTEM, TOOL, USER, Conversation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.text.chats.jinja import Message

OPEN, CLOSE = "\ufdd2", "\ufdd3"
"""Around the number of a replaced text. Whatever records hold, what is found is checked against the real rendering."""
SENTINEL = re.compile(f"{OPEN}([0-9]+){CLOSE}")
TOOL_DEFINITION = {
    "type": "function",
    "function": {"name": "call", "description": "a tool", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class TextRegion:
    """Text between two replaced messages, in characters of the real rendering."""

    start: int
    end: int
    marked_end: int
    """In the rendering with marks."""
    answers: list[int]
    next_role: str | None

    def is_between(self, text: str, first: str, last: str) -> bool:
        """Whether it begins and ends so."""
        is_long_enough = len(first) + len(last) <= self.end - self.start
        return is_long_enough and text.startswith(first, self.start) and text.endswith(last, self.start, self.end)


@dataclass(frozen=True, slots=True)
class PromptTail:
    """What stands between a message and the answer to it."""

    text: str
    missing: str
    """What a prompt holds there, too, and the rendering does not."""
    has_other_history: bool = False
    """A prompt writes what is before it otherwise."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a template writes around answers."""

    tails: dict[str, PromptTail | None] = field(default_factory=dict)
    """What follows a role's message in a prompt; None if the prompt is not how the conversation begins."""
    behind: dict[str | None, str | None] = field(default_factory=dict)
    """What stands between an answer and a role's message; None if the answer was written otherwise when it was last."""


@dataclass(frozen=True, slots=True)
class ConversationTraits:
    """What a template may look at in a conversation before it decides how to write it."""

    has_system: bool
    has_tools: bool
    calls_tools: bool
    reasons: bool
    num_questions: int

    @classmethod
    def of(cls, conversation: Conversation) -> ConversationTraits:
        roles = [message["role"] for message in conversation.messages]
        return cls(
            has_system=roles[0] == SYSTEM,
            has_tools=bool(conversation.tools),
            calls_tools=TOOL in roles,
            reasons=any(message.get("reasoning_content") for message in conversation.messages),
            num_questions=min(roles.count(USER), 2),
        )

    def conversation(self) -> Conversation:
        """A small one of this kind."""
        answer: Message = {"role": ASSISTANT, "content": "answer"}
        if self.reasons:
            answer |= {"reasoning_content": "reason", "thinking": "reason"}
        call = {"id": "call00000", "type": "function", "function": {"name": "call", "arguments": {}}}
        messages: list[Message] = [{"role": SYSTEM, "content": "system"}] if self.has_system else []
        for number in range(self.num_questions):
            messages.append({"role": USER, "content": f"question {number}"})
            if self.calls_tools:
                messages.append({"role": ASSISTANT, "content": "call it", "tool_calls": [call]})
                messages.append({"role": TOOL, "name": "call", "tool_call_id": "call00000", "content": "result"})
            messages.append(answer)
        return Conversation(messages, [TOOL_DEFINITION] if self.has_tools else None)


@dataclass(frozen=True, slots=True)
class AnswerSearch:
    """A conversation, its text and what is known of it. Without `replaced` nothing more is rendered to know more."""

    conversation: Conversation
    text: str
    regions: list[TextRegion]
    surroundings: Surroundings
    replaced: MarkedConversation | None = None
    marked: str = ""
    as_rendered: bool = False


class MarkedConversation:
    """A conversation with the texts of all messages but the answers replaced by marks."""

    def __init__(self, conversation: Conversation) -> None:
        self.values: list[str] = []
        self.owners: list[int] = []
        messages = [self._mark_message(index, message) for index, message in enumerate(conversation.messages)]
        self.conversation = Conversation(messages, conversation.tools, conversation.variables)

    def _mark_message(self, index: int, message: Message) -> Message:
        if message["role"] == ASSISTANT:
            return message
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self._mark(index, content)}
        if isinstance(content, list):
            return {**message, "content": [{**part, "text": self._mark(index, part["text"])} for part in content]}
        return message

    def _mark(self, owner: int, value: str) -> str:
        self.values.append(value)
        self.owners.append(owner)
        return f"{OPEN}{len(self.values) - 1}{CLOSE}"

    def regions(self, marked: str, text: str) -> list[TextRegion] | None:
        """The text between the marks, if putting the texts back gives the real rendering."""
        pieces = SENTINEL.split(marked)
        numbers = [int(number) for number in pieces[1::2]]
        if numbers != list(range(len(self.values))):
            return None
        regions, place, marked_place = [], 0, 0
        for number, piece in enumerate(pieces[::2]):
            if number:
                value = next(
                    (form for form in written_forms(self.values[number - 1]) if text.startswith(form + piece, place)),
                    None,
                )
                if value is None:
                    return None
                place += len(value)
                marked_place += len(pieces[2 * number - 1]) + 2
            elif not text.startswith(piece):
                return None
            first = self.owners[number - 1] + 1 if number else 0
            stop = self.owners[number] if number < len(self.owners) else len(self.conversation.messages)
            next_role = self.conversation.messages[stop]["role"] if number < len(self.owners) else None
            marked_place += len(piece)
            regions.append(TextRegion(place, place + len(piece), marked_place, list(range(first, stop)), next_role))
            place += len(piece)
        return regions if place == len(text) else None


def written_forms(value: str) -> Iterator[str]:
    """How a template may write a text."""
    yield value
    yield value.strip()
    yield json.dumps(value, ensure_ascii=False)[1:-1]
