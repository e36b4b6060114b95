"""Skeletons: what a template writes around the messages of a conversation, cached by the sequence of roles.

Most chats have nothing but roles and contents, and templates write the same around "user, assistant" for any contents:

    rendering:  <|user|>2+2?<|assistant|>4<|end|>
    skeleton:   <|user|> … <|assistant|> … <|end|>        three pieces around two messages
    answer:     starts at the end of piece 1, its content ends at the start of piece 2, its turn after `<|end|>`

A skeleton, with the positions of answers in it, is worked out once for each sequence of roles, from a conversation
whose contents are marks. A record is then rendered only once, and its text compared with the skeleton piece by piece.
If it fits, the answers are where the skeleton has them. If not (the template looks into contents), the record is
searched by itself. So the answers of a record never depend on other records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from gristmill.core.token_kinds import REASONING
from gristmill.text.chats.answers import Answer, HistoryRewritten, MessageNotRendered
from gristmill.text.chats.parts import MessageText, MessageTexts, divide_content, find_texts
from gristmill.text.chats.shapes import Conversation
from gristmill.text.chats.templates import TemplateError
from gristmill.text.chats.turns import TurnFinder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.templates import ChatTemplate


_OPEN, _CLOSE = "\ufdd6", "\ufdd7"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_MAX_MESSAGES = 64
"""A longer sequence of roles hardly occurs twice."""
_MAX_CACHED = 512


class AnswerFinder:
    """Finds answers in the renderings of one template, by skeletons if possible."""

    def __init__(self, template: ChatTemplate, special_tokens: Sequence[str] = ()) -> None:
        self.turns = TurnFinder(template, special_tokens)
        self.template = template
        self._skeleton = lru_cache(maxsize=_MAX_CACHED)(self._make_skeleton)

    def answers(self, conversation: Conversation, text: str) -> tuple[list[Answer], str]:
        """Find all answers, like `TurnFinder.answers`."""
        skeleton, starts = self._find_fitting(conversation, text)
        if skeleton is None:
            return self.turns.answers(conversation, text)
        if skeleton.answers is None:
            raise HistoryRewritten("the template writes earlier turns differently from when they were the last")
        return [answer.at(starts).skip_written_prompt(text) for answer in skeleton.answers], skeleton.method

    def last_answer(self, conversation: Conversation, text: str) -> list[Answer]:
        """Find what is trained on of a conversation's last message, like `TurnFinder.last_answer`."""
        skeleton, starts = self._find_fitting(conversation, text)
        if skeleton is not None:
            return [answer.at(starts).skip_written_prompt(text) for answer in skeleton.last]
        return self.turns.last_answer(conversation, text)

    def answers_as_rendered(self, conversation: Conversation, text: str) -> list[Answer]:
        """Find all answers in the rendering, like `TurnFinder.answers_as_rendered`."""
        return self.turns.answers_as_rendered(conversation, text)

    def find_texts(self, conversation: Conversation, text: str) -> MessageTexts:
        """Find the texts of all messages, like `parts.find_texts`."""
        skeleton, starts = self._find_fitting(conversation, text)
        if skeleton is None:
            return find_texts(self.turns.render, conversation, text)
        ends = starts[1:]
        texts: list[MessageText] = []
        for index, (message, piece, end) in enumerate(zip(conversation.messages, skeleton.pieces, ends, strict=False)):
            texts += divide_content(text, starts[index] + len(piece), end, index, message["role"])
        return MessageTexts(texts)

    def find_prompted_texts(
        self, conversation: Conversation, text: str, prompt: str, thought: str, shift: int
    ) -> MessageTexts:
        """Find the texts of an example that is a prompt, a thought and the rendered answer.

        `shift` is how far the rendered answer moved from its place in `text`.
        """
        last = len(conversation.messages) - 1
        before = conversation.first(last)
        asked = find_texts(partial(self.turns.render, add_generation_prompt=True), before, prompt)
        rendered = self.find_texts(conversation, text)
        start = len(prompt) + len(thought)
        texts = [*asked.found, *([MessageText(len(prompt), start, last, REASONING)] if thought else ())]
        texts += [
            MessageText(max(written.start + shift, start), written.end + shift, last, written.kind)
            for written in rendered.found
            if written.message == last and written.end + shift > start
        ]
        return MessageTexts(texts, rendered.has_answers)

    def find_skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        """Find the skeleton of a sequence of roles, if it has one, and its answers are known."""
        skeleton = self._skeleton(roles) if len(roles) <= _MAX_MESSAGES else None
        return skeleton if skeleton is not None and skeleton.answers is not None else None

    def _find_fitting(self, conversation: Conversation, text: str) -> tuple[Skeleton | None, list[int]]:
        """Find the skeleton that a text fits, and where its pieces begin in the text."""
        messages = conversation.messages
        if conversation.tools or conversation.variables or len(messages) > _MAX_MESSAGES:
            return None, []
        values = []
        for message in messages:
            content = message.get("content")
            if len(message) != 2 or not isinstance(content, str) or not content:
                return None, []
            values.append(content)
        skeleton = self._skeleton(tuple(message["role"] for message in messages))
        starts = skeleton.find_starts(text, values) if skeleton is not None else None
        return (skeleton, starts) if starts is not None else (None, [])

    def _make_skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        """Make the skeleton of a sequence of roles; None if the template does not write each message once, in order."""
        messages = [{"role": role, "content": f"{_OPEN}{index}{_CLOSE}"} for index, role in enumerate(roles)]
        conversation = Conversation(messages)
        try:
            text = self.template.render(messages)
            pieces = _SkeletonPieces(text)
            if pieces.numbers != list(range(len(roles))):
                return None
            # Find the last message, if it is an answer.
            ends_with_answer = conversation.answers()[-1:] == [len(conversation.messages) - 1]
            last_answers = self.turns.last_answer(conversation, text) if ends_with_answer else []
            if any(answer.has_other_history for answer in last_answers):
                return None
            last = [pieces.locate(answer) for answer in last_answers]
            try:
                answers, method = self.turns.answers(conversation, text)
                located = [pieces.locate(answer) for answer in answers]
            except HistoryRewritten:
                return Skeleton(pieces.texts, None, last, "")
        except (TemplateError, MessageNotRendered, HistoryRewritten, ValueError):
            return None
        return Skeleton(pieces.texts, located, last, method)


@dataclass(frozen=True, slots=True)
class LocatedAnswer:
    """An answer in a skeleton: each position is the number of a piece, and an offset in it."""

    message: int
    start: tuple[int, int]
    content_end: tuple[int, int]
    end: tuple[int, int]
    missing: str
    header_end: tuple[int, int] | None

    def at(self, starts: Sequence[int]) -> Answer:
        """Return the answer in a text whose pieces begin at `starts`."""
        positions = (self.start, self.content_end, self.end)
        start, content_end, end = (starts[piece] + offset for piece, offset in positions)
        header_end = starts[self.header_end[0]] + self.header_end[1] if self.header_end is not None else -1
        return Answer(self.message, start, content_end, end, self.missing, header_end=header_end)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The pieces of text around messages: one before the first, one after each."""

    pieces: list[str]
    answers: list[LocatedAnswer] | None
    """None: the template rewrites history."""
    last: list[LocatedAnswer]
    """The answer that ends the conversation, as it is trained on alone."""
    method: str
    """The method that found the answers."""

    def find_starts(self, text: str, values: Sequence[str]) -> list[int] | None:
        """Find where each piece begins in a text; None if the text is not the pieces with these values between them."""
        if not text.startswith(self.pieces[0]):
            return None
        starts, position = [0], len(self.pieces[0])
        for piece, value in zip(self.pieces[1:], values, strict=True):
            for form in (value, value.strip()):  # many templates strip contents
                end = position + len(form)
                if text.startswith(form, position) and text.startswith(piece, end):
                    break
            else:
                return None
            starts.append(end)
            position = end + len(piece)
        return starts if position == len(text) else None


class _SkeletonPieces:
    """A rendering with marks as contents, cut at the marks."""

    def __init__(self, text: str) -> None:
        parts = _MARK.split(text)
        self.texts = parts[::2]
        self.numbers = [int(number) for number in parts[1::2]]
        self._starts = [0]
        for piece, number in zip(self.texts, parts[1::2], strict=False):
            self._starts.append(self._starts[-1] + len(piece) + len(number) + 2)  # the number and two marks

    def locate(self, answer: Answer) -> LocatedAnswer:
        """Locate an answer in the pieces. The end of a piece is where its message begins."""
        # An answer begins in the piece before its message, at the latest at its end, and ends after it.
        before, after = answer.message, answer.message + 1
        return LocatedAnswer(
            answer.message,
            self._locate(answer.start, before),
            self._locate(answer.content_end, after),
            self._locate(answer.end, after),
            answer.missing,
            self._locate(answer.header_end, before) if answer.header_end >= 0 else None,
        )

    def _locate(self, position: int, piece: int) -> tuple[int, int]:
        offset = position - self._starts[piece]
        if not 0 <= offset <= len(self.texts[piece]):
            raise ValueError("an answer that begins or ends within a message")
        return piece, offset
