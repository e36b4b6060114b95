r"""The answers of a conversation in its rendered text, and why they may not be found.

An answer begins where the prompt for it ends in the rendering, even if the two do not agree to the end:

    prompt:     <|user|>2+2?<|end|><|assistant|><think>\n
    rendering:  <|user|>2+2?<|end|><|assistant|>4<|end|>
                                                ^ the answer begins here, and `<think>\n` is missing

A comparison by characters alone would be wrong where an answer happens to begin like the rest of the prompt, or where
the two part in the middle of a token: then the start snaps back to the token's own start.

Answers are found in conversations with marks instead of what was said: `user: "2+2?"` becomes `user: "«0»"` (« » are
two characters that Unicode will never assign). A template writes a mark wherever it would write the message, so the
marks in its output show which text is a message and which is its own. A template that looks into contents may write a
marked conversation differently; therefore the messages are put back, and only if that gives the real rendering are the
marks believed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gristmill.text.chats.shapes import ASSISTANT, SYSTEM, TOOL, USER, Conversation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.text.chats.templates import Message


class HistoryRewritten(Exception):
    """The template does not write earlier turns as it wrote them when they were the last."""


class MessageNotRendered(Exception):
    """The template leaves a message out."""


@dataclass(frozen=True, slots=True)
class Answer:
    r"""One message of the assistant in the rendered text; positions are in characters.

    In `<|user|>2+2?<|end|>\n<|assistant|>4<|end|>\n` the answer starts at `4`, its content ends after `4`, and it ends
    after the last `<|end|>`, which the model has to write as well.
    """

    message: int
    """Index of the message in the conversation."""
    start: int
    content_end: int
    """The end without the end of turn."""
    end: int
    missing: str = ""
    """What the prompt has before the answer and the rendering has not."""
    has_other_history: bool = False
    """Whether the prompt writes earlier messages differently from the rendering."""
    header_end: int = -1
    """Where prompt and rendering part, if not at `start`: a template's tags may include the header. -1: at `start`."""

    @property
    def differs(self) -> bool:
        """Whether the rendering does not begin with the prompt."""
        return bool(self.missing) or self.has_other_history

    def skip_written_prompt(self, text: str) -> Answer:
        """Return the answer without `missing`, if the text has it here after all.

        What is missing is observed once and used for many answers; some of these begin with it themselves.
        """
        header_end = self.start if self.header_end < 0 else self.header_end
        if not self.missing or not text.startswith(self.missing, header_end):
            return self
        start = self.start + len(self.missing) if self.start == header_end else self.start
        return Answer(self.message, start, self.content_end, self.end, has_other_history=self.has_other_history)

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether a span has a part of the answer. An empty span, of an answer without words, is inside of it."""
        return start < self.end and (self.start < end or start == end == self.start)


def append_end_token(text: str, token: str, answers: list[Answer], last: Answer | None) -> tuple[str, list[Answer]]:
    """Append an end token to the answer that ends a text, if there is one; returns the answers with their end tokens.

    What the template writes after that answer is left out.
    """
    if last is not None and not text.endswith(token, 0, last.end):
        text = text[: last.end] + token
    longer = [
        replace(answer, end=answer.end + len(token)) if text.startswith(token, answer.end) else answer
        for answer in answers
    ]
    return text, longer


_MAX_HEADER_SHIFT = 64


class AnswerStart(NamedTuple):
    """The start of an answer in a rendering, and what the prompt holds beyond it."""

    start: int
    missing: str
    is_shifted: bool = False
    """Whether the rendering has something before it that the prompt has not."""


class CommonPrefix:
    """The text that a prompt and a rendering begin with."""

    def __init__(self, prompt: str, text: str, specials: re.Pattern[str]) -> None:
        self._prompt = prompt
        self._text = text
        self._specials = specials
        self.length = find_common_length(prompt, text)

    def find_start(self, history: int, generation_prompt: str) -> AnswerStart:
        """Find the start of the answer.

        Args:
            history: Where in the prompt the last message ends. An answer never starts before it.
            generation_prompt: The end of the prompt that the template adds for an answer.

        A rendering may have the generation prompt a little later than the prompt (one more line end after the last
        message, say). Then the two part before it, and the answer still starts after it.
        """
        begin = len(self._prompt) - len(generation_prompt)
        position = self.length if self.length < begin else begin
        header = self._snap_to_token(self.length, self.length)
        if self.length < begin and generation_prompt:
            window = self._text[position : position + _MAX_HEADER_SHIFT]
            first_token = self._specials.match(generation_prompt)
            shift = window.find(first_token.group() if first_token else generation_prompt[:1])
            if shift >= 0 and not self._specials.sub("", window[:shift]).strip():
                rest = self._text[position + shift : position + shift + len(generation_prompt)]
                length = find_common_length(generation_prompt, rest)
                header = self._snap_to_token(begin + length, position + shift + length)._replace(is_shifted=True)
        header = max(header, self._find_last_words(history, header.start), key=lambda candidate: candidate.start)
        return header if header.start >= history else AnswerStart(history, self._prompt[history:])

    def _find_last_words(self, history: int, parted: int) -> AnswerStart:
        """Find the prompt's last words in the rendering, around the position where the two part.

        A prompt may say more before the assistant's turn begins: `<|turn|>system…<|end|><|turn|>assistant`.
        """
        for token in self._specials.finditer(self._prompt, self.length):
            last_words = self._prompt[token.start() :]
            position = self._text.find(last_words, history, parted + len(last_words))
            if 0 <= position <= parted:
                return AnswerStart(position + len(last_words), self._prompt[self.length :], is_shifted=True)
        return AnswerStart(0, "")

    def _snap_to_token(self, in_prompt: int, in_text: int) -> AnswerStart:
        """Move back to the start of a token that one of the two has there: `<|a` is no common text of two tokens."""
        num_back = 0
        for text, position in ((self._prompt, in_prompt), (self._text, in_text)):
            near = max(0, position - _MAX_HEADER_SHIFT)
            for token in self._specials.finditer(text, near, position + _MAX_HEADER_SHIFT):
                if token.start() < position < token.end():
                    num_back = max(num_back, position - token.start())
        return AnswerStart(in_text - num_back, self._prompt[in_prompt - num_back :])


def find_common_length(first: str, second: str) -> int:
    """Count the characters that two texts begin with in common.

    >>> find_common_length("abcd", "abx")
    2
    """
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is faster than comparing character by character
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


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
    """The role of the message after it; None at the end of the conversation."""

    def is_between(self, text: str, first: str, last: str) -> bool:
        """Tell whether the region begins with `first` and ends with `last`, without an overlap of the two."""
        is_long_enough = len(first) + len(last) <= self.end - self.start
        return is_long_enough and text.startswith(first, self.start) and text.endswith(last, self.start, self.end)


@dataclass(frozen=True, slots=True)
class PromptTail:
    """The template's text between a message and the answer to it."""

    text: str
    missing: str
    """What a prompt has after that text and the rendering has not."""
    has_other_history: bool = False
    """Whether a prompt writes earlier messages differently."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The template's texts before and after answers, by the role of the neighbouring message."""

    tails: dict[str, PromptTail | None] = field(default_factory=dict)
    """The text between a role's message and an answer; None if the prompt is not how the conversation begins."""
    after: dict[str | None, str | None] = field(default_factory=dict)
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


def list_written_forms(value: str) -> Iterator[str]:
    """List the forms in which templates write a text: as it is, stripped, or as the inside of a JSON string."""
    yield value
    yield value.strip()
    yield json.dumps(value, ensure_ascii=False)[1:-1]
