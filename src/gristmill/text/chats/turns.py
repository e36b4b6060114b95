"""Where in a rendered conversation the assistant speaks, to the character.

An answer begins where the prompt for it would end, whatever else the template writes there (a channel, a tool call), and
ends with its end-of-turn token. Three ways lead to it, the first that is open is taken:

* *tags*: the template says it itself, with `{% generation %}`.
* *sentinels*: all other messages are replaced by short marks and rendered once more. Putting the messages back must
  give the real rendering; then the text between two marks is one answer and what the template writes around it. What
  that is, is seen where a role is first answered, by rendering just so far. Linear in the number of turns.
* *prefixes*: each answer is bordered by the rendering up to it and the one including it. Quadratic.

A template that writes history otherwise than it wrote it at first (old reasoning left out, tools moved to the last
question) has no such borders: `HistoryRewritten`. Then only the last answer of a conversation can be trained on as the
model will see it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.shapes import ASSISTANT, USER, Conversation
from gristmill.text.templates import GENERATION_END, GENERATION_START, TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.text.templates import ChatTemplate, Message

TAGS, SENTINELS, PREFIXES = WAYS = ("tags", "sentinels", "prefixes")

_OPEN, _CLOSE = "\ufdd2", "\ufdd3"
"""Around the number of a replaced text. Whatever a record holds, what is found is checked against the real rendering."""
_SENTINEL = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")
_TOKEN_LIKE = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_/]{1,40}\]")
_SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates put a finished or an empty reasoning into the prompt."""


class HistoryRewritten(Exception):
    """The template does not write earlier turns as it wrote them when they were the last."""


class MessageNotRendered(Exception):
    """The template leaves a message out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One message of the assistant in the rendered text, in characters."""

    message: int
    start: int
    words_end: int
    """Without its end of turn."""
    end: int


@dataclass(frozen=True, slots=True)
class Ending:
    """What a template writes behind the last answer: the token that ends the turn, and the rest."""

    token: str
    rest: str


class TurnFinder:
    """Finds answers in the renderings of one template."""

    def __init__(self, template: ChatTemplate, special_tokens: Sequence[str] = ()) -> None:
        self.template = template
        self.ending = self._find_ending(special_tokens)
        self._supplied = self._supplied_beginnings()

    def answers(self, conversation: Conversation, text: str) -> tuple[list[Answer], str]:
        """All answers of a conversation that was rendered as `text`, and the way in which they were found.

        Raises:
            HistoryRewritten: Not all of them have borders.
            MessageNotRendered: One of the messages is not in the text.
        """
        if self.template.marks_generation and (spans := self._tagged(conversation, text)) is not None:
            self._refuse_left_out(conversation)
            return spans, TAGS
        fast = self._between_sentinels(conversation, text, as_rendered=False)
        return (fast, SENTINELS) if fast is not None else (self._by_prefixes(conversation, text), PREFIXES)

    def answers_as_rendered(self, conversation: Conversation, text: str) -> list[Answer]:
        """All answers as the whole rendering has them, even if the template would have written them otherwise."""
        found = self._between_sentinels(conversation, text, as_rendered=True)
        if found is None:
            raise HistoryRewritten("the answers cannot be found in the text")
        return found

    def last_answer(self, conversation: Conversation, text: str) -> list[Answer]:
        """What is trained on of the answer that ends a conversation; needs nothing of the history but the prompt."""
        message = len(conversation.messages) - 1
        if self.template.marks_generation and (tagged := self._tagged(conversation, text)) is not None:
            return [answer for answer in tagged if answer.message == message]
        return [self._last_answer(conversation, text, message)]

    def _tagged(self, conversation: Conversation, text: str) -> list[Answer] | None:
        """From `{% generation %}`; None if its marks change what the template writes."""
        marked = self.template.render_marked(conversation.messages, conversation.tools, **conversation.variables)
        if _MARK.sub("", marked) != text:
            return None
        spans, open_at, removed = [], None, 0
        for mark in _MARK.finditer(marked):
            place = mark.start() - removed
            removed += 1
            if mark.group() == GENERATION_START:
                open_at = place
            elif open_at is not None:
                spans.append((open_at, place))
                open_at = None
        messages = conversation.answers()
        if len(spans) != len(messages):
            return self._by_message(conversation, text, spans)
        return [self._with_ending(text, message, *span) for message, span in zip(messages, spans, strict=True)]

    def _by_message(self, conversation: Conversation, text: str, spans: Sequence[tuple[int, int]]) -> list[Answer]:
        """Spans that are not one a message, each to the message in whose borders it lies."""
        borders = self._between_sentinels(conversation, text, as_rendered=False) or self._by_prefixes(conversation, text)
        answers = []
        for start, end in spans:
            owner = next((answer for answer in borders if answer.start <= end and start < answer.end), None)
            if owner is not None:
                answers.append(self._with_ending(text, owner.message, start, end))
        return answers

    def _with_ending(self, text: str, message: int, start: int, end: int) -> Answer:
        token = self.ending.token
        inside = text[start:end].rstrip()
        if token and inside.endswith(token):
            words_end = start + len(inside) - len(token)
            return Answer(message, start, words_end, words_end + len(token))
        follows = bool(token) and text.startswith(token, end)
        return Answer(message, start, end, end + len(token) if follows else end)

    def _between_sentinels(self, conversation: Conversation, text: str, *, as_rendered: bool) -> list[Answer] | None:
        """None where the text is not the marks with their messages put back, or what is between them is not clear."""
        replaced = _Replaced(conversation)
        if not replaced.has_all:
            return None
        marked = self._render(replaced.conversation)
        regions = replaced.regions(marked, text)
        if regions is None:
            return None
        answers = []
        for region in regions:
            if not region.answers:
                continue
            if len(region.answers) > 1 or not self._holds_reasoning(conversation, region, text):
                return None
            [message] = region.answers
            tail = self._prompt_tail(replaced, message, marked)
            if message == len(conversation.messages) - 1:
                behind: str | None = self.ending.rest
            elif as_rendered:
                behind = self._behind_last_token(text, region)
            else:
                behind = self._behind(replaced, message, region, marked)
            if tail is None or behind is None or not region.is_between(text, tail, self.ending.token + behind):
                return None
            start = self._after_supplied(text, region.start + len(tail))
            answers.append(self._answer(message, start, region.end - len(behind), text))
        return answers

    def _prompt_tail(self, replaced: _Replaced, message: int, marked: str) -> str | None:
        """What the template writes between the message before an answer and the answer; seen once a role."""
        if not message:
            return None
        role = replaced.conversation.messages[message - 1]["role"]
        if role not in replaced.tails:
            prompt = self._render(replaced.conversation.first(message), add_generation_prompt=True)
            replaced.tails[role] = prompt.rpartition(_CLOSE)[2] if marked.startswith(prompt) else None
        return replaced.tails[role]

    def _behind(self, replaced: _Replaced, message: int, region: _Region, marked: str) -> str | None:
        """What the template writes between the end of an answer and the message behind it; seen once a role."""
        if region.next_role not in replaced.behind:
            so_far = self._render(replaced.conversation.first(message + 1)).removesuffix(self.ending.rest)
            is_prefix = marked.startswith(so_far) and len(so_far) <= region.marked_end
            replaced.behind[region.next_role] = marked[len(so_far) : region.marked_end] if is_prefix else None
        return replaced.behind[region.next_role]

    def _behind_last_token(self, text: str, region: _Region) -> str | None:
        """The same, for who does not ask how the answer was written when it was the last."""
        place = text.rfind(self.ending.token, region.start, region.end) if self.ending.token else -1
        return text[place + len(self.ending.token) : region.end] if place >= 0 else None

    @staticmethod
    def _holds_reasoning(conversation: Conversation, region: _Region, text: str) -> bool:
        """Old reasoning is what templates leave out of history."""
        for message in region.answers:
            reasoning = (conversation.messages[message].get("reasoning_content") or "").strip()
            if reasoning and text.find(reasoning, region.start, region.end) < 0:
                return False
        return True

    def _by_prefixes(self, conversation: Conversation, text: str) -> list[Answer]:
        self._refuse_left_out(conversation)
        answers = []
        for message in conversation.answers():
            if message == len(conversation.messages) - 1:
                answers.append(self._last_answer(conversation, text, message))
                continue
            so_far = self._render(conversation.first(message + 1)).removesuffix(self.ending.rest)
            if not text.startswith(so_far):
                raise HistoryRewritten(f"message {message} is written otherwise when others follow it")
            prompt = self._prompt(conversation, message, text)
            answers.append(self._answer(message, self._after_supplied(text, len(prompt)), len(so_far), text))
        return answers

    def _last_answer(self, conversation: Conversation, text: str, message: int) -> Answer:
        prompt = self._prompt(conversation, message, text)
        end = len(text) - len(self.ending.rest) if text.endswith(self.ending.rest) else len(text)
        return self._answer(message, self._after_supplied(text, len(prompt)), max(end, len(prompt)), text)

    def _prompt(self, conversation: Conversation, message: int, text: str) -> str:
        """What the model sees before it writes a message."""
        before = conversation.first(message)
        if not before.messages:  # the conversation begins with an answer: what comes before it is all of the template's
            raise HistoryRewritten("the conversation begins with the assistant")
        prompt = self._render(before, add_generation_prompt=True)
        if not text.startswith(prompt):
            raise HistoryRewritten(f"the prompt for message {message} is not how the conversation begins")
        return prompt

    def _refuse_left_out(self, conversation: Conversation) -> None:
        """A message that the template passes over would be lost without a word."""
        replaced = _Replaced(conversation)
        written = {int(found.group(1)) for found in _SENTINEL.finditer(self._render(replaced.conversation))}
        for number, value in enumerate(replaced.values):
            if number not in written:
                message = replaced.owners[number]
                role = conversation.messages[message]["role"]
                raise MessageNotRendered(f"message {message} ({role}) is not in the text: {value[:60]!r}")

    def _answer(self, message: int, start: int, end: int, text: str) -> Answer:
        token = self.ending.token
        has_token = bool(token) and text.endswith(token, start, end) if end - start >= len(token) else False
        return Answer(message, start, end - len(token) if has_token else end, end)

    def _after_supplied(self, text: str, place: int) -> int:
        """Behind an empty reasoning that the template's prompt can hold: nobody but the template writes it."""
        return place + max((len(part) for part in self._supplied if text.startswith(part, place)), default=0)

    def _render(self, conversation: Conversation, **variables: Any) -> str:
        return self.template.render(conversation.messages, conversation.tools, **conversation.variables, **variables)

    def _find_ending(self, special_tokens: Sequence[str]) -> Ending:
        """From a conversation with a mark as its answer."""
        mark = f"{_OPEN}0{_CLOSE}"
        try:
            text = self.template.render([_user("?"), {"role": ASSISTANT, "content": mark}])
        except TemplateError:
            return Ending("", "")
        _, found, tail = text.rpartition(mark)
        if not found:
            return Ending("", "")
        known = [token for token in special_tokens if tail.startswith(token)]
        like = _TOKEN_LIKE.match(tail)
        token = max(known, key=len) if known else like.group() if like else tail.rstrip()
        return Ending(token, tail[len(token) :])

    def _supplied_beginnings(self) -> tuple[str, ...]:
        """What the prompt may hold beyond its usual end, with reasoning switched on or off."""
        try:
            usual = self.template.render([_user("?")], add_generation_prompt=True)
        except TemplateError:
            return ()
        found = set()
        for switch in _SWITCHES:
            for value in (False, True) if switch in self.template.source else ():
                try:
                    other = self.template.render([_user("?")], add_generation_prompt=True, **{switch: value})
                except TemplateError:
                    continue
                tail = usual.rpartition("?")[2]
                more = other.rpartition(tail)[2] if tail and tail in other else ""
                found |= {more} if more else set()
        return tuple(sorted(found))


def _user(content: str) -> Message:
    return {"role": USER, "content": content}


@dataclass(frozen=True, slots=True)
class _Region:
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


class _Replaced:
    """A conversation with the texts of all messages but the answers replaced by marks."""

    def __init__(self, conversation: Conversation) -> None:
        self.values: list[str] = []
        self.owners: list[int] = []
        self.has_all = True
        """Each of them has a text to replace."""
        messages = [self._marked(index, message) for index, message in enumerate(conversation.messages)]
        self.conversation = Conversation(messages, conversation.tools, conversation.variables)
        self.tails: dict[str, str | None] = {}
        """What follows a role's message in a prompt; None if the prompt is not how the conversation begins."""
        self.behind: dict[str | None, str | None] = {}
        """What stands between an answer and a role's message; None if the answer was written otherwise."""

    def _marked(self, index: int, message: Message) -> Message:
        if message["role"] == ASSISTANT:
            return message
        content = message.get("content")
        if isinstance(content, str) and content.strip():
            return {**message, "content": self._mark(index, content)}
        if isinstance(content, list) and content and all(part["text"].strip() for part in content):
            return {**message, "content": [{**part, "text": self._mark(index, part["text"])} for part in content]}
        self.has_all = False
        return message

    def _mark(self, owner: int, value: str) -> str:
        self.values.append(value)
        self.owners.append(owner)
        return f"{_OPEN}{len(self.values) - 1}{_CLOSE}"

    def regions(self, marked: str, text: str) -> list[_Region] | None:
        """The text between the marks, if putting the texts back gives the real rendering."""
        pieces = _SENTINEL.split(marked)
        numbers = [int(number) for number in pieces[1::2]]
        if numbers != list(range(len(self.values))):
            return None
        regions, place, marked_place = [], 0, 0
        for number, piece in enumerate(pieces[::2]):
            if number:
                value = next(
                    (form for form in _forms(self.values[number - 1]) if text.startswith(form + piece, place)), None
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
            regions.append(_Region(place, place + len(piece), marked_place, list(range(first, stop)), next_role))
            place += len(piece)
        return regions if place == len(text) else None


def _forms(value: str) -> Iterator[str]:
    """How a template may write a text."""
    yield value
    yield value.strip()
    yield json.dumps(value, ensure_ascii=False)[1:-1]
