"""Where in a rendered conversation the assistant speaks, to the character.

An answer begins where the prompt for it would end, whatever else the template writes there (a channel, a tool call),
and ends with its end of turn, which may be several tokens. A prompt can hold more than the rendered turn (`<think>`
that the model is made to begin with): then the answer begins behind what both have in common (`Answer.missing` is the
rest of the prompt). Three ways lead to it, the first that is open is taken:

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
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.text.chats.jinja import GENERATION_END, GENERATION_START, TemplateError
from gristmill.text.chats.sentinels import (
    CLOSE,
    OPEN,
    SENTINEL,
    TOOL_DEFINITION,
    AnswerSearch,
    ConversationTraits,
    MarkedConversation,
    PromptTail,
    Surroundings,
    TextRegion,
)
from gristmill.text.chats.shapes import ASSISTANT, USER, Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.jinja import ChatTemplate, Message

TAGS, SENTINELS, PREFIXES = ("tags", "sentinels", "prefixes")

_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")
_TOKEN_LIKE = r"<[^<>\s]{1,40}>|\[[A-Z_/]{1,40}\]"
_MAX_HEADER_SHIFT = 64
_MARK_OF_WORDS = f"{OPEN}0{CLOSE}"
_PLAIN_KEYS = frozenset(("role", "content"))
REASONING_SWITCHES = ("enable_thinking", "thinking")
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
    missing: str = ""
    """What the prompt holds before the answer and the rendering does not."""
    has_other_history: bool = False
    """The prompt writes the messages before otherwise than the rendering does."""
    header_end: int = -1
    """Where prompt and rendering part, if that is not the start: a template's tags may hold the header as well."""

    @property
    def differs(self) -> bool:
        """Whether the rendering does not begin with the prompt."""
        return bool(self.missing) or self.has_other_history

    def skip_written_prompt(self, text: str) -> Answer:
        """Without what was only missing where its surroundings were seen: some answers begin with it themselves."""
        parted = self.start if self.header_end < 0 else self.header_end
        if not self.missing or not text.startswith(self.missing, parted):
            return self
        start = self.start + len(self.missing) if self.start == parted else self.start
        return Answer(self.message, start, self.words_end, self.end, has_other_history=self.has_other_history)


@dataclass(frozen=True, slots=True)
class Ending:
    """What a template writes behind the last answer: what ends the turn, and the rest."""

    token: str
    """All of it: `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`."""
    rest: str
    last: str
    """The last of its tokens, with which turns of other kinds (calls) end as well."""


class TurnFinder:
    """Finds answers in the renderings of one template."""

    def __init__(self, template: ChatTemplate, special_tokens: Sequence[str] = ()) -> None:
        """Nothing is rendered yet: a template may never end, and who makes a finder has no limit of time."""
        self.template = template
        longest_first = sorted((token for token in special_tokens if token), key=lambda token: (-len(token), token))
        self._specials = re.compile("|".join([*map(re.escape, longest_first), _TOKEN_LIKE]))
        self._made_up = lru_cache(maxsize=None)(self._observe_surroundings)  # there are 48 kinds

    def answers(self, conversation: Conversation, text: str) -> tuple[list[Answer], str]:
        """All answers of a conversation that was rendered as `text`, and the way in which they were found.

        Raises:
            HistoryRewritten: Not all of them have borders.
            MessageNotRendered: One of the messages is not in the text.
        """
        if self.template.marks_generation and (spans := self._find_by_tags(conversation, text)) is not None:
            self.refuse_left_out(conversation)
            if self._is_rewritten(conversation, text):
                raise HistoryRewritten("the template writes earlier turns otherwise than it wrote them at first")
            return spans, TAGS
        fast = self._find_by_sentinels(conversation, text, as_rendered=False)
        return (fast, SENTINELS) if fast is not None else (self._find_by_prefixes(conversation, text), PREFIXES)

    def answers_as_rendered(self, conversation: Conversation, text: str) -> list[Answer]:
        """All answers as the whole rendering has them, even if the template would have written them otherwise."""
        found = self._find_by_sentinels(conversation, text, as_rendered=True)
        if found is None:
            raise HistoryRewritten("the answers cannot be found in the text")
        return found

    def last_answer(self, conversation: Conversation, text: str) -> list[Answer]:
        """What is trained on of the answer that ends a conversation; needs nothing of the history but the prompt."""
        last = self.find_last_borders(conversation, text)
        if self.template.marks_generation and (spans := self._find_tagged_spans(conversation, text)) is not None:
            return self._assign_to_answers(text, spans, [last])
        return [last]

    def find_last_borders(self, conversation: Conversation, text: str) -> Answer:
        """Like `last_answer`, whatever tags say."""
        return self._find_last_answer(conversation, text, len(conversation.messages) - 1, any_history=True)

    def _find_by_tags(self, conversation: Conversation, text: str) -> list[Answer] | None:
        """From `{% generation %}`; None if its marks change what the template writes."""
        spans = self._find_tagged_spans(conversation, text)
        if spans is None:
            return None
        messages = conversation.answers()
        are_plain = all(conversation.messages[message].keys() <= _PLAIN_KEYS for message in messages)
        if len(spans) != len(messages) or not are_plain:  # reasoning and calls may have tags of their own, or none
            return self._assign_to_messages(conversation, text, spans)
        borders = self._find_by_sentinels(conversation, text, as_rendered=False)
        if borders is None:
            borders = [
                self._tagged_border(conversation, message, text, span[0])
                for message, span in zip(messages, spans, strict=True)
            ]
        return [self._with_ending(text, *span, border) for span, border in zip(spans, borders, strict=True)]

    def _tagged_border(self, conversation: Conversation, message: int, text: str, start: int) -> Answer:
        """Where prompt and rendering part; where tags begin if that cannot be told."""
        try:
            return self._find_start(conversation, message, text, any_history=True)
        except HistoryRewritten:
            return Answer(message, start, 0, 0)

    def _find_tagged_spans(self, conversation: Conversation, text: str) -> list[tuple[int, int]] | None:
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
        return spans

    def _assign_to_messages(
        self, conversation: Conversation, text: str, spans: Sequence[tuple[int, int]]
    ) -> list[Answer]:
        """Spans that are not one a message, each to the message in whose borders it lies."""
        borders = self._find_by_sentinels(conversation, text, as_rendered=False)
        if borders is None:
            borders = self._find_by_prefixes(conversation, text)
        return self._assign_to_answers(text, spans, borders)

    def _assign_to_answers(
        self, text: str, spans: Sequence[tuple[int, int]], borders: Sequence[Answer]
    ) -> list[Answer]:
        answers = []
        for start, end in spans:
            owner = next((answer for answer in borders if _overlap(start, end, answer)), None)
            if owner is not None:
                answers.append(self._with_ending(text, start, end, owner))
        return answers

    def _with_ending(self, text: str, start: int, end: int, border: Answer) -> Answer:
        """Tags may hold the end of turn, a part of it, or leave it out; and the header before the `border`."""
        words_end, whole_end = self._tagged_end(text, start, end)
        found = Answer(border.message, start, words_end, whole_end, border.missing, border.has_other_history)
        return (replace(found, header_end=border.start) if start != border.start else found).skip_written_prompt(text)

    def _tagged_end(self, text: str, start: int, end: int) -> tuple[int, int]:
        inside = text[start:end].rstrip()
        inside_end = start + len(inside)
        for token in (self.ending.token, self.ending.last):
            for length in range(len(token), 0, -1):
                if inside.endswith(token[:length]) and text.startswith(token[length:], inside_end):
                    return inside_end - length, inside_end - length + len(token)
            if token and text.startswith(token, end):
                return end, end + len(token)
        return end, end

    def _find_by_sentinels(self, conversation: Conversation, text: str, *, as_rendered: bool) -> list[Answer] | None:
        """None where the text is not the marks with their messages put back, or what is between them is not clear."""
        replaced = MarkedConversation(conversation)
        marked = self.render(replaced.conversation)
        regions = replaced.regions(marked, text)
        if regions is None:
            return None
        if not as_rendered and (usual := self._usual_surroundings(conversation)) is not None:
            look = AnswerSearch(conversation, text, regions, usual)
            if (found := self._find_in_regions(look)) is not None:
                return found
        return self._find_in_regions(
            AnswerSearch(conversation, text, regions, Surroundings(), replaced, marked, as_rendered)
        )

    def _find_in_regions(self, look: AnswerSearch) -> list[Answer] | None:
        answers = []
        for region in look.regions:
            if not region.answers:
                continue
            if len(region.answers) > 1 or not _holds_words(look.conversation, region, look.text):
                return None
            [message] = region.answers
            tail = self._find_prompt_tail(look, message)
            if message == len(look.conversation.messages) - 1:
                behind: str | None = self.ending.rest
            elif look.as_rendered:
                behind = self._find_text_behind_token(look.text, region)
            else:
                behind = self._find_text_behind(look, message, region)
            if tail is None or behind is None or not region.is_between(look.text, tail.text, self.ending.last + behind):
                return None
            start = region.start + len(tail.text)
            header = Answer(message, start, 0, 0, tail.missing, tail.has_other_history).skip_written_prompt(look.text)
            answers.append(self._close_answer(header, region.end - len(behind), look.text))
        return answers

    def _find_prompt_tail(self, look: AnswerSearch, message: int) -> PromptTail | None:
        """What the template writes between the message before an answer and the answer; seen once a role."""
        tails = look.surroundings.tails
        role = look.conversation.messages[message - 1]["role"] if message else ""
        if message and role not in tails and look.replaced is not None:
            try:
                header = self._find_start(look.replaced.conversation, message, look.marked)
                start = look.marked.rfind(CLOSE, 0, header.start) + 1
                tail = look.marked[start : header.start]
                tails[role] = PromptTail(tail, header.missing, has_other_history=header.has_other_history)
            except HistoryRewritten:
                tails[role] = None
        return tails.get(role)

    def _find_text_behind(self, look: AnswerSearch, message: int, region: TextRegion) -> str | None:
        """What the template writes between the end of an answer and the message behind it; seen once a role."""
        behind = look.surroundings.behind
        if region.next_role not in behind and look.replaced is not None:
            so_far = self._render_through(look.replaced.conversation, message)
            is_prefix = look.marked.startswith(so_far) and len(so_far) <= region.marked_end
            behind[region.next_role] = look.marked[len(so_far) : region.marked_end] if is_prefix else None
        return behind.get(region.next_role)

    def _usual_surroundings(self, conversation: Conversation) -> Surroundings | None:
        """Those of a made-up conversation that has what this one has; None if its history would be rewritten."""
        if conversation.variables:
            return None
        return self._made_up(ConversationTraits.of(conversation))

    def _observe_surroundings(self, kind: ConversationTraits) -> Surroundings | None:
        conversation = kind.conversation()
        surroundings = Surroundings()
        replaced = MarkedConversation(conversation)
        try:
            text, marked = self.render(conversation), self.render(replaced.conversation)
            regions = replaced.regions(marked, text)
            if regions is None:
                return None
            look = AnswerSearch(conversation, text, regions, surroundings, replaced, marked)
            return surroundings if self._find_in_regions(look) is not None else None
        except TemplateError:
            return None

    def _find_text_behind_token(self, text: str, region: TextRegion) -> str | None:
        """The same, for who does not ask how the answer was written when it was the last."""
        place = text.rfind(self.ending.last, region.start, region.end) if self.ending.last else -1
        return text[place + len(self.ending.last) : region.end] if place >= 0 else None

    def _is_rewritten(self, conversation: Conversation, text: str) -> bool:
        """Whether an earlier answer is written otherwise than when it was the last."""
        earlier = [message for message in conversation.answers() if message < len(conversation.messages) - 1]
        whole = TextRegion(0, len(text), 0, earlier, None)
        if _holds_words(conversation, whole, text) and self._usual_surroundings(conversation) is not None:
            return False
        return not all(text.startswith(self._render_through(conversation, message)) for message in earlier)

    def _render_through(self, conversation: Conversation, message: int) -> str:
        """The rendering up to an answer's end of turn."""
        return self.render(conversation.first(message + 1)).removesuffix(self.ending.rest)

    def _find_by_prefixes(self, conversation: Conversation, text: str) -> list[Answer]:
        self.refuse_left_out(conversation)
        answers = []
        for message in conversation.answers():
            if message == len(conversation.messages) - 1:
                answers.append(self._find_last_answer(conversation, text, message))
                continue
            so_far = self._render_through(conversation, message)
            if not text.startswith(so_far):
                raise HistoryRewritten(f"message {message} is written otherwise when others follow it")
            answers.append(self._close_answer(self._find_start(conversation, message, text), len(so_far), text))
        return answers

    def _find_last_answer(
        self, conversation: Conversation, text: str, message: int, *, any_history: bool = False
    ) -> Answer:
        header = self._find_start(conversation, message, text, any_history=any_history)
        end = len(text) - len(self.ending.rest) if text.endswith(self.ending.rest) else len(text)
        return self._close_answer(header, max(end, header.start), text)

    def prompt(self, conversation: Conversation, message: int) -> str:
        """What the model sees before it writes a message."""
        return self.render(conversation.first(message), add_generation_prompt=True)

    def _find_start(self, conversation: Conversation, message: int, text: str, *, any_history: bool = False) -> Answer:
        """An answer of which the start is known: behind the prompt, or what the rendering has of it.

        `any_history`: also where the prompt writes earlier messages otherwise than the rendering.
        """
        before = conversation.first(message)
        if not before.messages:  # the conversation begins with an answer: what comes before it is all of the template's
            raise HistoryRewritten("the conversation begins with the assistant")
        prompt = self.prompt(conversation, message)
        if text.startswith(prompt):
            return Answer(message, len(prompt), 0, 0)
        common = _CommonPrefix(prompt, text, self._specials)
        history = self._find_history_end(before, prompt)
        if common.length < history and not any_history:
            raise HistoryRewritten(f"the prompt for message {message} is not how the conversation begins")
        if common.length < history:
            return self._find_start_behind_history(conversation, message, text)
        generation_prompt = prompt.removeprefix(self.render(before))
        header = common.header(history, generation_prompt)
        if conversation.messages[message].keys() <= _PLAIN_KEYS:
            # Words may begin as the prompt goes on, by chance; a mark never does.
            words = self._make_message(ASSISTANT, _MARK_OF_WORDS)
            plain = Conversation([*before.messages, words], conversation.tools, conversation.variables)
            other = _CommonPrefix(prompt, self.render(plain), self._specials)
            if other.length >= history:
                header = min(header, other.header(history, generation_prompt))
        return Answer(message, header.start, 0, 0, header.missing, has_other_history=header.is_shifted)

    def _find_start_behind_history(self, conversation: Conversation, message: int, text: str) -> Answer:
        """The same where a prompt writes earlier messages otherwise: seen behind the message before the answer."""
        replaced = MarkedConversation(conversation)
        regions = replaced.regions(self.render(replaced.conversation), text) or []
        region = next((region for region in regions if region.answers == [message]), None)
        if region is None:
            raise HistoryRewritten(f"the prompt for message {message} is not how the conversation begins")
        tail = self.prompt(replaced.conversation, message).rpartition(CLOSE)[2]
        common = _CommonPrefix(tail, text[region.start : region.end], self._specials)
        if not common.length and tail:
            raise HistoryRewritten(f"the prompt for message {message} ends otherwise than the conversation has it")
        header = common.header(0, tail)
        return Answer(message, region.start + header.start, 0, 0, header.missing, has_other_history=True)

    def _find_history_end(self, before: Conversation, prompt: str) -> int:
        """Where in a prompt the last message ends; what follows is the template's."""
        marked = self.prompt(MarkedConversation(before).conversation, len(before.messages))
        return len(prompt) - len(marked.rpartition(CLOSE)[2])

    def refuse_left_out(self, conversation: Conversation) -> None:
        """A message that the template passes over would be lost without a word."""
        replaced = MarkedConversation(conversation)
        written = {int(found.group(1)) for found in SENTINEL.finditer(self.render(replaced.conversation))}
        for number, value in enumerate(replaced.values):
            if number not in written:
                message = replaced.owners[number]
                role = conversation.messages[message]["role"]
                raise MessageNotRendered(f"message {message} ({role}) is not in the text: {value[:60]!r}")

    def _close_answer(self, header: Answer, end: int, text: str) -> Answer:
        start = self._skip_supplied(text, header.start)
        tokens = (self.ending.token, self.ending.last)
        words = text[start:end].rstrip()
        if self.ending.last and words.endswith(self.ending.last):  # a line's end behind the token is the template's
            end = start + len(words)
        length = max((len(token) for token in tokens if text.endswith(token, start, max(start, end))), default=0)
        return Answer(header.message, start, end - length, end, header.missing, header.has_other_history)

    def _skip_supplied(self, text: str, place: int) -> int:
        """Behind an empty reasoning that the template's prompt can hold: nobody but the template writes it."""
        return place + max((len(part) for part in self._supplied_texts if text.startswith(part, place)), default=0)

    def render(self, conversation: Conversation, **variables: Any) -> str:
        """Its text; with `add_generation_prompt` as a prompt."""
        return self.template.render(conversation.messages, conversation.tools, {**conversation.variables, **variables})

    def _make_message(self, role: str, words: str) -> Message:
        """A message as the template takes it."""
        return {"role": role, "content": [{"type": "text", "text": words}] if self._takes_parts else words}

    @cached_property
    def _takes_parts(self) -> bool:
        """Templates for images often write content only if it comes in parts."""
        for tools in (None, [TOOL_DEFINITION]):
            try:
                return _MARK_OF_WORDS not in self.template.render([{"role": USER, "content": _MARK_OF_WORDS}], tools)
            except TemplateError:
                continue
        return True

    @cached_property
    def ending(self) -> Ending:
        """What ends an answer, from a conversation with a mark as its answer."""
        chat = [self._make_message(USER, "?"), self._make_message(ASSISTANT, _MARK_OF_WORDS)]
        for tools in (None, [TOOL_DEFINITION]):  # some templates are for conversations with tools only
            try:
                opening, found, tail = self.template.render(chat, tools).rpartition(_MARK_OF_WORDS)
            except TemplateError:
                continue
            if found:
                break
        else:
            return Ending("", "", "")
        tokens = self._find_end_tokens(chat, tools, opening, tail) or list(islice(self._specials.finditer(tail), 1))
        if not tokens:
            return Ending(tail.rstrip(), tail[len(tail.rstrip()) :], tail.rstrip())
        end = tokens[-1].end()
        return Ending(tail[:end].lstrip(), tail[end:], tokens[-1].group())

    def _find_end_tokens(
        self, chat: list[Message], tools: Sequence[Any] | None, opening: str, tail: str
    ) -> list[re.Match[str]]:
        """Tokens behind an answer that stand there whether or not another message follows.

        Up to the one that begins a message: some templates begin the next one in any case.
        """
        try:
            behind = self.template.render([*chat, chat[0]], tools).partition(_MARK_OF_WORDS)[2]
            asked = self.template.render(chat[:1], tools)
            prompt = self.template.render(chat[:1], tools, {"add_generation_prompt": True})
        except TemplateError:
            return []
        begin = self._find_first_token(prompt.removeprefix(asked)) or self._find_first_token(opening)
        length = _common_prefix_length(tail, behind)
        tokens = [token for token in self._specials.finditer(tail) if token.end() <= length]
        return list(takewhile(lambda token: token.group() != begin, tokens))

    def _find_first_token(self, text: str) -> str:
        """The token that begins a message, if the text begins with one; what begins a conversation is passed over."""
        tokens = (token.group() for token in self._specials.finditer(text))
        return next((token for token in tokens if token != self.template.begin_token), "")

    @cached_property
    def _supplied_texts(self) -> tuple[str, ...]:
        """What the prompt may hold beyond its usual end, with reasoning switched on or off."""
        try:
            usual = self.template.render([self._make_message(USER, "?")], None, {"add_generation_prompt": True})
        except TemplateError:
            return ()
        tail = usual.rpartition("?")[2]
        written = self._find_text_before_answer(tail)
        switches = [
            {name: value} for name in REASONING_SWITCHES for value in (False, True) if name in self.template.source
        ]
        found = set()
        for variables in switches if tail else ():
            try:
                other = self.template.render(
                    [self._make_message(USER, "?")], None, {"add_generation_prompt": True, **variables}
                )
            except TemplateError:
                continue
            found.add(other.rpartition(tail)[2] if tail in other else "")
        # All that the template itself writes before an answer without reasoning; `<think>` before one is the model's.
        parts = (part for part in found - {""} if written.startswith(part))
        return tuple(sorted(part for part in parts if not written[len(part) :].strip()))

    def _find_text_before_answer(self, tail: str) -> str:
        """What stands between the end of the usual prompt and an answer without reasoning."""
        try:
            text = self.template.render([self._make_message(USER, "?"), self._make_message(ASSISTANT, _MARK_OF_WORDS)])
        except TemplateError:
            return ""
        return text.partition(_MARK_OF_WORDS)[0].rpartition(tail)[2] if tail and tail in text else ""


class _AnswerStart(NamedTuple):
    """Where an answer begins in a rendering, and what the prompt holds beyond that."""

    start: int
    missing: str
    is_shifted: bool = False
    """Something that the prompt has not stands before it."""


class _CommonPrefix:
    """What a prompt and a rendering begin with."""

    def __init__(self, prompt: str, text: str, specials: re.Pattern[str]) -> None:
        self._prompt = prompt
        self._text = text
        self._specials = specials
        self.length = _common_prefix_length(prompt, text)

    def header(self, history: int, generation_prompt: str) -> _AnswerStart:
        """The end of what the rendering has of the prompt's own words behind the last message.

        With the same words a little later in the rendering (a line's end more behind the last message), from there.
        """
        begin = len(self._prompt) - len(generation_prompt)
        place = self.length if self.length < begin else begin
        header = self._snap_to_token(self.length, self.length)
        if self.length < begin and generation_prompt:
            window = self._text[place : place + _MAX_HEADER_SHIFT]
            first = self._specials.match(generation_prompt)
            shift = window.find(first.group() if first else generation_prompt[:1])
            if shift >= 0 and not self._specials.sub("", window[:shift]).strip():
                rest = self._text[place + shift : place + shift + len(generation_prompt)]
                length = _common_prefix_length(generation_prompt, rest)
                header = self._snap_to_token(begin + length, place + shift + length)._replace(is_shifted=True)
        header = max(header, self._find_last_words(history, header.start), key=lambda found: found.start)
        return header if header.start >= history else _AnswerStart(history, self._prompt[history:])

    def _find_last_words(self, history: int, parted: int) -> _AnswerStart:
        """The end of the prompt's last words where the rendering has them around the place at which the two part.

        A prompt may say more before it gives the word to the assistant: `<|turn|>system…<|end|><|turn|>assistant`.
        """
        for token in self._specials.finditer(self._prompt, self.length):
            last_words = self._prompt[token.start() :]
            place = self._text.find(last_words, history, parted + len(last_words))
            if 0 <= place <= parted:
                return _AnswerStart(place + len(last_words), self._prompt[self.length :], is_shifted=True)
        return _AnswerStart(0, "")

    def _snap_to_token(self, in_prompt: int, in_text: int) -> _AnswerStart:
        """Back to the start of a token that one of the two has there."""
        back = 0
        for text, place in ((self._prompt, in_prompt), (self._text, in_text)):
            near = max(0, place - _MAX_HEADER_SHIFT)
            for token in self._specials.finditer(text, near, place + _MAX_HEADER_SHIFT):
                if token.start() < place < token.end():
                    back = max(back, place - token.start())
        return _AnswerStart(in_text - back, self._prompt[in_prompt - back :])


def _overlap(start: int, end: int, answer: Answer) -> bool:
    """Whether a span has something of an answer. An empty one, of an answer without words, lies within it."""
    return start < answer.end and (answer.start < end or start == end == answer.start)


def _common_prefix_length(first: str, second: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is faster than going character by character
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _holds_words(conversation: Conversation, region: TextRegion, text: str) -> bool:
    """Whether what was said and thought is there, word for word: templates leave old reasoning out of history."""
    for number in region.answers:
        message = conversation.messages[number]
        content = message.get("content")
        parts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
        for words in (*parts, message.get("reasoning_content") or ""):
            if text.find(words.strip(), region.start, region.end) < 0:
                return False
    return True
