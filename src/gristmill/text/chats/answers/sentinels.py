"""Conversations with marks in place of what was said, and what a template writes between the marks.

`user: "2+2?"` becomes `user: "«0»"` (« » are two characters that Unicode will never assign). A template writes a mark
wherever it would write the message, so the marks in its output show which text is a message and which is its own. A
template that looks into contents may write a marked conversation differently; therefore the messages are put back, and
only if that gives the real rendering are the marks believed.
"""

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
"""Around the number of a replaced text. Records may hold these characters, too: every result is checked against the
real rendering."""
SENTINEL = re.compile(f"{OPEN}([0-9]+){CLOSE}")
TOOL_DEFINITION = {
    "type": "function",
    "function": {"name": "call", "description": "a tool", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class TextRegion:
    """The text between two replaced messages. Positions are in characters of the real rendering."""

    start: int
    end: int
    marked_end: int
    """The end in the rendering with marks."""
    answers: list[int]
    """Indexes of the messages that are in it: answers, because all other texts are replaced."""
    next_role: str | None
    """The role of the message behind it; None at the end of the conversation."""

    def is_between(self, text: str, first: str, last: str) -> bool:
        """Tell whether the region begins with `first` and ends with `last`, without an overlap of the two."""
        is_long_enough = len(first) + len(last) <= self.end - self.start
        return is_long_enough and text.startswith(first, self.start) and text.endswith(last, self.start, self.end)


@dataclass(frozen=True, slots=True)
class PromptTail:
    """The template's text between a message and the answer to it."""

    text: str
    missing: str
    """What a prompt has behind that text and the rendering has not."""
    has_other_history: bool = False
    """Whether a prompt writes earlier messages differently."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The template's texts before and behind answers, by the role of the neighbouring message."""

    tails: dict[str, PromptTail | None] = field(default_factory=dict)
    """The text between a role's message and an answer; None if the prompt is not how the conversation begins."""
    behind: dict[str | None, str | None] = field(default_factory=dict)
    """The text between an answer and a role's message; None if the answer was written differently when it was last."""


@dataclass(frozen=True, slots=True)
class ConversationTraits:
    """The traits of a conversation that a template may look at before it decides how to write it.

    Conversations with the same traits have the same surroundings, with most templates. So these are observed once, in a
    made-up conversation, and each real one is checked against them.
    """

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
        """Make a small conversation with these traits."""
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
    """A search for the answers of one conversation, and what is known for it."""

    conversation: Conversation
    text: str
    regions: list[TextRegion]
    surroundings: Surroundings
    replaced: MarkedConversation | None = None
    """The conversation with marks, to observe surroundings that are not known yet; None: known ones must do."""
    marked: str = ""
    """The rendering of `replaced`."""
    as_rendered: bool = False
    """Whether it does not matter how an answer was written when it was the last."""


class MarkedConversation:
    """A conversation with the texts of all messages but the answers replaced by marks."""

    def __init__(self, conversation: Conversation) -> None:
        self.values: list[str] = []
        """The text that each mark stands for."""
        self.owners: list[int] = []
        """The message that each mark is in."""
        messages = [self._mark_message(index, message) for index, message in enumerate(conversation.messages)]
        self.conversation = Conversation(messages, conversation.tools, conversation.variables)

    def _mark_message(self, index: int, message: Message) -> Message:
        if message["role"] == ASSISTANT:
            return message
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self._mark(index, content)}
        if isinstance(content, list):
            parts = [{**part, "text": self._mark(index, part["text"])} if "text" in part else part for part in content]
            return {**message, "content": parts}
        return message

    def _mark(self, owner: int, value: str) -> str:
        self.values.append(value)
        self.owners.append(owner)
        return f"{OPEN}{len(self.values) - 1}{CLOSE}"

    def regions(self, marked: str, text: str) -> list[TextRegion] | None:
        """Find the text between the marks; None if putting the texts back does not give the real rendering.

        Args:
            marked: The rendering of `conversation`.
            text: The real rendering.
        """
        pieces = SENTINEL.split(marked)
        numbers = [int(number) for number in pieces[1::2]]
        if numbers != list(range(len(self.values))):
            return None
        regions, position, marked_position = [], 0, 0
        for number, piece in enumerate(pieces[::2]):
            if number:
                forms = list_written_forms(self.values[number - 1])
                value = next((form for form in forms if text.startswith(form + piece, position)), None)
                if value is None:
                    return None
                position += len(value)
                marked_position += len(pieces[2 * number - 1]) + 2  # the number and two marks
            elif not text.startswith(piece):
                return None
            first = self.owners[number - 1] + 1 if number else 0
            stop = self.owners[number] if number < len(self.owners) else len(self.conversation.messages)
            next_role = self.conversation.messages[stop]["role"] if number < len(self.owners) else None
            marked_position += len(piece)
            end = position + len(piece)
            regions.append(TextRegion(position, end, marked_position, list(range(first, stop)), next_role))
            position = end
        return regions if position == len(text) else None


def list_written_forms(value: str) -> Iterator[str]:
    """List the forms in which templates write a text: as it is, stripped, or as the inside of a JSON string."""
    yield value
    yield value.strip()
    yield json.dumps(value, ensure_ascii=False)[1:-1]
