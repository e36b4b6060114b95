r"""The parts of a rendered conversation: which of its characters are whose, and of which kind.

All texts of all messages are replaced by marks, and the conversation is rendered once more. Putting the texts back must
give the real rendering; then each text is where its mark was. With « » as marks:

    rendering:  <|user|>2+2?<|assistant|><think>Two and two.</think>4<|end|>
    with marks: <|user|>«0»<|assistant|><think>«1»</think>«2»<|end|>
    kinds:              user              reasoning . . .  assistant, end

Inside an answer nothing is the template's: what it writes around reasoning and calls is for the model to write, so it
has their kind. Where a template looks into what the assistant said, answers keep their texts, and an answer that has
more than one part stays `template`: a border that is not known is not guessed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core import token_kinds as kinds
from gristmill.text.chats.answers import CLOSE, OPEN, SENTINEL, list_written_forms
from gristmill.text.chats.options import Example, TextPart
from gristmill.text.chats.reasoning import find_inline_reasoning
from gristmill.text.chats.shapes import ASSISTANT, SYSTEM, TOOL, USER, Conversation
from gristmill.text.chats.templates import TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gristmill.text.chats.answers import Answer
    from gristmill.text.chats.templates import Message


KIND_OF_ROLE = {
    SYSTEM: kinds.SYSTEM,
    "developer": kinds.SYSTEM,
    USER: kinds.USER,
    TOOL: kinds.RESULT,
    ASSISTANT: kinds.ASSISTANT,
}
_REASONING_KEYS = ("reasoning_content", "thinking")
_CLOSING_TAG = re.compile(r"\s*[<\[][^<>\[\]\s]{1,40}[>\]]\s*")


class MessageText(NamedTuple):
    """A text of a message in a rendering."""

    start: int
    end: int
    message: int
    kind: int


class MessageTexts(NamedTuple):
    """The texts of a rendering that were found, in order."""

    found: list[MessageText]
    has_answers: bool = True
    """Whether those of the assistant are among them."""


def find_texts(render: Callable[[Conversation], str], conversation: Conversation, text: str) -> MessageTexts:
    """Find the texts of all messages in a rendering. `render` renders a conversation as `text` was rendered."""
    for has_answers in (True, False):
        marked = _MarkedTexts(conversation, has_answers=has_answers)
        with suppress(TemplateError):
            texts = marked.find(render(marked.conversation), text)
            if texts is not None:
                return MessageTexts(texts, has_answers)
    return MessageTexts([], has_answers=False)


def divide_content(text: str, start: int, end: int, message: int, role: str) -> Iterator[MessageText]:
    """Divide a content that was written as it is: reasoning in tags is a part of its own."""
    kind = KIND_OF_ROLE[role]
    if kind == kinds.ASSISTANT:
        inline = find_inline_reasoning(text[start:end])
        if inline is not None:
            yield MessageText(start + inline.start, start + inline.end, message, kinds.REASONING)
            start += inline.words
    yield MessageText(start, end, message, kind)


def find_parts(
    conversation: Conversation, text: str, texts: MessageTexts, answers: Sequence[Answer], chosen: Sequence[Answer]
) -> list[TextPart]:
    """Find the parts of a rendering, in order. What is left is the template's.

    Args:
        conversation: The conversation.
        text: Its rendering.
        texts: What is known of the texts of its messages.
        answers: All answers that were found in it.
        chosen: Those that are trained, with their ends as these are trained.
    """
    starts = {answer.start for answer in chosen}
    others = [answer for answer in answers if answer.start not in starts]
    parts = [TextPart(answer.start, answer.end, kinds.CONTEXT) for answer in others]
    spans = sorted((answer.start, answer.end) for answer in (*chosen, *others))
    own: dict[int, list[MessageText]] = {}
    for written in texts.found:
        before = bisect_left(spans, (written.end,)) - 1  # the last answer that begins before the text ends
        if before >= 0 and written.start < spans[before][1]:
            own.setdefault(written.message, []).append(written)
        else:
            is_answer = conversation.messages[written.message]["role"] == ASSISTANT
            parts.append(TextPart(written.start, written.end, kinds.CONTEXT if is_answer else written.kind))
    for answer in chosen:
        message = conversation.messages[answer.message]
        inside = [
            TextPart(max(start, answer.start), min(end, answer.content_end), kind)
            for start, end, _, kind in own.get(answer.message, ())
            if start < answer.content_end and answer.start < end
        ]
        parts += _divide_answer(message, text, answer, inside, is_known=texts.has_answers)
        parts.append(TextPart(answer.content_end, answer.end, kinds.END))
    return sorted(part for part in parts if part.start < part.end)


def _divide_answer(
    message: Message, text: str, answer: Answer, own: list[TextPart], *, is_known: bool
) -> Iterator[TextPart]:
    """Divide an answer up to its end of turn: its texts, and what is written around them."""
    calls = message.get("tool_calls") or ()
    start, end = answer.start, answer.content_end
    if not is_known:
        content = message.get("content") or ""
        contents = [part.get("text", "") for part in content] if isinstance(content, list) else [content]
        if message.get("reasoning_content") or any(map(find_inline_reasoning, contents)) or (calls and any(contents)):
            return
        yield TextPart(start, end, kinds.CALL if calls else kinds.ASSISTANT)
        return
    borders = [start, *chain.from_iterable((part.start, part.end) for part in own), end]
    gaps = list(zip(borders[::2], borders[1::2], strict=True))
    call_gap = _find_call_gap(text, gaps, calls) if calls else None
    if calls and call_gap is None and own:
        yield from own
        return
    for number, (gap_start, gap_end) in enumerate(gaps):
        before = own[number - 1].kind if number else None
        after = own[number].kind if number < len(own) else None
        if number == call_gap:
            tag = _CLOSING_TAG.match(text, gap_start, gap_end) if before == kinds.REASONING else None
            if tag is not None and tag.end() < gap_end:
                yield TextPart(gap_start, tag.end(), kinds.REASONING)
                gap_start = tag.end()  # noqa: PLW2901
            yield TextPart(gap_start, gap_end, kinds.CALL)
        else:
            yield TextPart(
                gap_start, gap_end, next(kind for kind in (before, after, kinds.ASSISTANT) if kind is not None)
            )
        if number < len(own):
            yield own[number]


def _find_call_gap(text: str, gaps: Sequence[tuple[int, int]], calls: Sequence[Mapping[str, Any]]) -> int | None:
    """Find the one gap between texts that names all tools that are called; None if it is not clear which it is."""
    names = [call.get("function", call)["name"] for call in calls]
    holding = [
        number for number, (start, end) in enumerate(gaps) if all(text.find(name, start, end) >= 0 for name in names)
    ]
    return holding[0] if len(holding) == 1 else None


class _MarkedTexts:
    """A conversation with marks in place of all texts, but of those without words."""

    def __init__(self, conversation: Conversation, *, has_answers: bool) -> None:
        self._values: list[str] = []
        self._owners: list[tuple[int, int]] = []
        self._has_answers = has_answers
        messages = [self._mark_message(index, message) for index, message in enumerate(conversation.messages)]
        self.conversation = Conversation(messages, conversation.tools, conversation.variables)

    def _mark_message(self, index: int, message: Message) -> Message:
        kind = KIND_OF_ROLE[message["role"]]
        if kind == kinds.ASSISTANT and not self._has_answers:
            return message
        marked = dict(message)
        reasoning = message.get("reasoning_content")
        if kind == kinds.ASSISTANT and isinstance(reasoning, str):
            mark = self._mark(index, reasoning, kinds.REASONING)
            marked |= {key: mark for key in _REASONING_KEYS if message.get(key) == reasoning}
        content = message.get("content")
        if isinstance(content, list):
            marked["content"] = [
                {**part, "text": self._mark_content(index, message["role"], part["text"])} if "text" in part else part
                for part in content
            ]
        elif isinstance(content, str):
            marked["content"] = self._mark_content(index, message["role"], content)
        return marked

    def _mark_content(self, index: int, role: str, content: str) -> str:
        marked, end = "", 0
        for text in divide_content(content, 0, len(content), index, role):
            marked += content[end : text.start] + self._mark(index, content[text.start : text.end], text.kind)
            end = text.end
        return marked

    def _mark(self, owner: int, value: str, kind: int) -> str:
        if not value.strip():
            return value
        self._values.append(value)
        self._owners.append((owner, kind))
        return f"{OPEN}{len(self._values) - 1}{CLOSE}"

    def find(self, marked: str, text: str) -> list[MessageText] | None:
        """Find where the texts are that the marks stand for; None if putting them back does not give the text."""
        pieces = SENTINEL.split(marked)
        if not text.startswith(pieces[0]):
            return None
        position, texts = len(pieces[0]), list[MessageText]()
        for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            number = int(mark)
            if number >= len(self._values):
                return None
            for form in _list_forms(self._values[number]):
                end = position + len(form)
                if text.startswith(form, position) and text.startswith(piece, end):
                    break
            else:
                return None
            texts.append(MessageText(position, end, *self._owners[number]))
            position = end + len(piece)
        return texts if position == len(text) else None


def _list_forms(value: str) -> Iterator[str]:
    """List the forms in which templates write a text: the usual ones, and without space on one side."""
    yield from list_written_forms(value)
    yield value.lstrip()
    yield value.rstrip()


def list_spans(parts: Sequence[TextPart], names: Collection[str], num_chars: int) -> list[tuple[int, int]]:
    """List the spans of some kinds in a text of that many characters.

    >>> list_spans([TextPart(3, 7, kinds.USER)], ["user"], 9), list_spans([TextPart(3, 7, kinds.USER)], ["template"], 9)
    ([(3, 7)], [(0, 3), (7, 9)])
    """
    chosen = [(part.start, part.end) for part in parts if kinds.TOKEN_KINDS[part.kind] in names]
    if kinds.TOKEN_KINDS[kinds.TEMPLATE] in names:
        borders = [0, *chain.from_iterable(part[:2] for part in parts), num_chars]
        chosen += zip(borders[::2], borders[1::2], strict=True)
    return sorted(chosen)


def list_changes(example: Example) -> list[tuple[int, int]]:
    """List where the code of an example's characters changes, and to which: kind, whether it is trained, and weight.

    >>> parts = [TextPart(3, 7, kinds.USER), TextPart(10, 11, kinds.ASSISTANT)]
    >>> list_changes(Example("<u>2+2?<a>4", [(10, 11)], [], 10, parts=parts))
    [(3, 5), (7, 0), (10, 23)]
    """
    spans: list[tuple[int, int, int]] = [*example.parts]
    spans += [(start, end, kinds.TRAINED) for start, end in example.trained]
    table = list_weights(example)
    spans += [(start, end, (1 + table.index(weight)) << kinds.CODE_BITS) for start, end, weight in example.weights]
    # Spans of one sort do not overlap, so the code of a character is the sum of those that it is in.
    steps: dict[int, int] = {}
    for start, end, code in spans:
        steps[start] = steps.get(start, 0) + code
        steps[end] = steps.get(end, 0) - code
    changes: list[tuple[int, int]] = []
    code = 0
    for position in sorted(steps):
        code += steps[position]
        if steps[position] and position < len(example.text):
            changes.append((position, code))
    return changes


def list_weights(example: Example) -> list[float]:
    """List the weights of an example, each once."""
    return list(dict.fromkeys(weight for _, _, weight in example.weights))
