"""Where in a rendered conversation the assistant speaks, to the character.

An answer begins where the prompt for it would end, whatever else the template writes there (a channel, a tool call),
and ends with its end-of-turn token. Three ways lead to it, the first that is open is taken:

* *tags*: the template says it itself, with `{% generation %}`.
* *sentinels*: all other messages are replaced by short marks and rendered once more. Putting the messages back must
  give the real rendering; then the text between two marks is one answer and what the template writes around it. What
  that is, is known from a made-up conversation of the same kind, or seen where a role is first answered, by rendering
  just so far. Linear in the number of turns.
* *prefixes*: each answer is bordered by the rendering up to it and the one including it. Quadratic.

A template that writes history otherwise than it wrote it at first (old reasoning left out, tools moved to the last
question) has no such borders: `HistoryRewritten`. Then only the last answer of a conversation can be trained on as the
model will see it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.sentinels import CLOSE, OPEN, SENTINEL, Kind, Look, Region, Replaced, Surroundings
from gristmill.text.chats.shapes import ASSISTANT, USER, Conversation
from gristmill.text.templates import GENERATION_END, GENERATION_START, TemplateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.templates import ChatTemplate, Message

TAGS, SENTINELS, PREFIXES = WAYS = ("tags", "sentinels", "prefixes")

_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")
_TOKEN_LIKE = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_/]{1,40}\]")
_PLAIN_KEYS = frozenset(("role", "content"))
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
        """Nothing is rendered yet: a template may never end, and who makes a finder has no limit of time."""
        self.template = template
        self._special_tokens = special_tokens
        self._made_up = lru_cache(maxsize=None)(self._see_surroundings)  # there are 48 kinds

    def answers(self, conversation: Conversation, text: str) -> tuple[list[Answer], str]:
        """All answers of a conversation that was rendered as `text`, and the way in which they were found.

        Raises:
            HistoryRewritten: Not all of them have borders.
            MessageNotRendered: One of the messages is not in the text.
        """
        if self.template.marks_generation and (spans := self._tagged(conversation, text)) is not None:
            self.refuse_left_out(conversation)
            if self._is_rewritten(conversation, text):
                raise HistoryRewritten("the template writes earlier turns otherwise than it wrote them at first")
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
        marked = self.template.render_marked(conversation.messages, conversation.tools, conversation.variables)
        if _MARK.sub("", marked) != text:
            return None
        spans, open_at = [], None
        for number, mark in enumerate(_MARK.finditer(marked)):
            place = mark.start() - number  # of marks before it
            if mark.group() == GENERATION_START:
                open_at = place
            elif open_at is not None:
                spans.append((open_at, place))
                open_at = None
        messages = conversation.answers()
        are_plain = all(conversation.messages[message].keys() <= _PLAIN_KEYS for message in messages)
        if len(spans) != len(messages) or not are_plain:  # reasoning and calls may have tags of their own, or none
            return self._by_message(conversation, text, spans)
        return [self._with_ending(text, message, *span) for message, span in zip(messages, spans, strict=True)]

    def _by_message(self, conversation: Conversation, text: str, spans: Sequence[tuple[int, int]]) -> list[Answer]:
        """Spans that are not one a message, each to the message in whose borders it lies."""
        borders = self._between_sentinels(conversation, text, as_rendered=False)
        if borders is None:
            borders = self._by_prefixes(conversation, text)
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
        replaced = Replaced(conversation)
        marked = self._render(replaced.conversation)
        regions = replaced.regions(marked, text)
        if regions is None:
            return None
        if not as_rendered and (usual := self._usual_surroundings(conversation)) is not None:
            look = Look(conversation, text, regions, usual)
            if (found := self._answers_in(look)) is not None:
                return found
        return self._answers_in(Look(conversation, text, regions, Surroundings(), replaced, marked, as_rendered))

    def _answers_in(self, look: Look) -> list[Answer] | None:
        answers = []
        for region in look.regions:
            if not region.answers:
                continue
            if len(region.answers) > 1 or not _holds_words(look.conversation, region, look.text):
                return None
            [message] = region.answers
            tail = self._prompt_tail(look, message)
            if message == len(look.conversation.messages) - 1:
                behind: str | None = self.ending.rest
            elif look.as_rendered:
                behind = self._behind_last_token(look.text, region)
            else:
                behind = self._behind(look, message, region)
            if tail is None or behind is None or not region.is_between(look.text, tail, self.ending.token + behind):
                return None
            start = self._after_supplied(look.text, region.start + len(tail))
            answers.append(self._answer(message, start, region.end - len(behind), look.text))
        return answers

    def _prompt_tail(self, look: Look, message: int) -> str | None:
        """What the template writes between the message before an answer and the answer; seen once a role."""
        tails = look.surroundings.tails
        role = look.conversation.messages[message - 1]["role"] if message else ""
        if message and role not in tails and look.replaced is not None:
            prompt = self._render(look.replaced.conversation.first(message), add_generation_prompt=True)
            tails[role] = prompt.rpartition(CLOSE)[2] if look.marked.startswith(prompt) else None
        return tails.get(role)

    def _behind(self, look: Look, message: int, region: Region) -> str | None:
        """What the template writes between the end of an answer and the message behind it; seen once a role."""
        behind = look.surroundings.behind
        if region.next_role not in behind and look.replaced is not None:
            so_far = self._so_far(look.replaced.conversation, message)
            is_prefix = look.marked.startswith(so_far) and len(so_far) <= region.marked_end
            behind[region.next_role] = look.marked[len(so_far) : region.marked_end] if is_prefix else None
        return behind.get(region.next_role)

    def _usual_surroundings(self, conversation: Conversation) -> Surroundings | None:
        """Those of a made-up conversation that has what this one has; None if its history would be rewritten."""
        if conversation.variables:
            return None
        return self._made_up(Kind.of(conversation))

    def _see_surroundings(self, kind: Kind) -> Surroundings | None:
        conversation = kind.conversation()
        surroundings = Surroundings()
        replaced = Replaced(conversation)
        try:
            text, marked = self._render(conversation), self._render(replaced.conversation)
            regions = replaced.regions(marked, text)
            if regions is None:
                return None
            look = Look(conversation, text, regions, surroundings, replaced, marked)
            return surroundings if self._answers_in(look) is not None else None
        except TemplateError:
            return None

    def _behind_last_token(self, text: str, region: Region) -> str | None:
        """The same, for who does not ask how the answer was written when it was the last."""
        place = text.rfind(self.ending.token, region.start, region.end) if self.ending.token else -1
        return text[place + len(self.ending.token) : region.end] if place >= 0 else None

    def _is_rewritten(self, conversation: Conversation, text: str) -> bool:
        """Whether an earlier answer is written otherwise than when it was the last."""
        earlier = [message for message in conversation.answers() if message < len(conversation.messages) - 1]
        whole = Region(0, len(text), 0, earlier, None)
        if _holds_words(conversation, whole, text) and self._usual_surroundings(conversation) is not None:
            return False
        return not all(text.startswith(self._so_far(conversation, message)) for message in earlier)

    def _so_far(self, conversation: Conversation, message: int) -> str:
        """The rendering up to an answer's end of turn."""
        return self._render(conversation.first(message + 1)).removesuffix(self.ending.rest)

    def _by_prefixes(self, conversation: Conversation, text: str) -> list[Answer]:
        self.refuse_left_out(conversation)
        answers = []
        for message in conversation.answers():
            if message == len(conversation.messages) - 1:
                answers.append(self._last_answer(conversation, text, message))
                continue
            so_far = self._so_far(conversation, message)
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

    def refuse_left_out(self, conversation: Conversation) -> None:
        """A message that the template passes over would be lost without a word."""
        replaced = Replaced(conversation)
        written = {int(found.group(1)) for found in SENTINEL.finditer(self._render(replaced.conversation))}
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
        return self.template.render(conversation.messages, conversation.tools, {**conversation.variables, **variables})

    @cached_property
    def ending(self) -> Ending:
        """What ends an answer, from a conversation with a mark as its answer."""
        mark = f"{OPEN}0{CLOSE}"
        try:
            text = self.template.render([_user("?"), {"role": ASSISTANT, "content": mark}])
        except TemplateError:
            return Ending("", "")
        _, found, tail = text.rpartition(mark)
        if not found:
            return Ending("", "")
        known = [token for token in self._special_tokens if tail.startswith(token)]
        like = _TOKEN_LIKE.match(tail)
        token = max(known, key=len) if known else like.group() if like else tail.rstrip()
        return Ending(token, tail[len(token) :])

    @cached_property
    def _supplied(self) -> tuple[str, ...]:
        """What the prompt may hold beyond its usual end, with reasoning switched on or off."""
        try:
            usual = self.template.render([_user("?")], None, {"add_generation_prompt": True})
        except TemplateError:
            return ()
        tail = usual.rpartition("?")[2]
        switches = [{name: value} for name in _SWITCHES for value in (False, True) if name in self.template.source]
        found = set()
        for variables in switches if tail else ():
            try:
                other = self.template.render([_user("?")], None, {"add_generation_prompt": True, **variables})
            except TemplateError:
                continue
            found.add(other.rpartition(tail)[2] if tail in other else "")
        return tuple(sorted(found - {""}))


def _holds_words(conversation: Conversation, region: Region, text: str) -> bool:
    """Whether what was said and thought is there, word for word: templates leave old reasoning out of history."""
    for number in region.answers:
        message = conversation.messages[number]
        content = message.get("content")
        parts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
        for words in (*parts, message.get("reasoning_content") or ""):
            if text.find(words.strip(), region.start, region.end) < 0:
                return False
    return True


def _user(content: str) -> Message:
    return {"role": USER, "content": content}
