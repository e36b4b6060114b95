"""From a record to what is trained on: one text, or one a turn, and which of its characters count.

A conversation that is too long loses its oldest exchanges (a question and all that follows it up to the next), never
its system message and never a part of a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.literals import ChatLiterals
from gristmill.text.chats.shapes import ASSISTANT, AUTO, SYSTEM, TOOL, USER, Conversation, NotAChat, conversation_of
from gristmill.text.chats.skeletons import AnswerFinder
from gristmill.text.chats.turns import HistoryRewritten, MessageNotRendered
from gristmill.text.templates import ChatTemplate, TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date

    from gristmill.text.chats.find_template import FoundTemplate
    from gristmill.text.chats.turns import Answer

TRAIN_ON = TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_ALL, TRAIN_MARKED = ("assistant", "last_assistant", "all", "marked")
DROP, KEEP, TRIM = LAST_NOT_ASSISTANT = ("drop", "keep", "trim")
SPLIT_AUTO, SPLIT_ALWAYS, SPLIT_NEVER = SPLIT_TURNS = ("auto", "always", "never")
DROP_TURNS, DROP_CHAT, CUT = TOO_LONG = ("drop_turns", "drop", "cut")
_MAX_SPLIT_CHARS = 256 << 20
"""So much text may the turns of one conversation become."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations become examples."""

    shape: str = AUTO
    train_on: str = TRAIN_ASSISTANT
    train_end_of_turn: bool = True
    last_not_assistant: str = DROP
    split_turns: str = SPLIT_AUTO
    max_tokens: int | None = None
    too_long: str = DROP_TURNS
    parse_arguments: bool = False


class DroppedChat(Exception):
    """A conversation that cannot be trained on; its argument is the reason."""


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered conversation. Places are in characters."""

    text: str
    trained: list[tuple[int, int]]
    literals: list[tuple[int, int]]
    """Special tokens that are part of what somebody wrote."""
    last_answer: int
    """Where the last answer begins."""


@dataclass(slots=True)
class Made:
    """What one record came to."""

    examples: list[Example] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """The reasons."""
    counts: list[tuple[str, int]] = field(default_factory=list)
    """What else was counted. Lists, because most records add nothing: a Counter costs more than its record."""


class ExampleMaker:
    """Makes examples with one template."""

    def __init__(
        self,
        found: FoundTemplate,
        options: ChatOptions,
        *,
        today: date | None = None,
        special_tokens: Mapping[str, int] | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self.options = options
        tokens = list(special_tokens or ())
        self._literals = ChatLiterals(tokens)
        self._count_tokens = count_tokens
        sources = dict.fromkeys(found.sources.values())
        finders = {
            source: AnswerFinder(ChatTemplate(source, found.variables, today=today, name=found.name), tokens)
            for source in sources
        }
        self._finders = {with_tools: finders[found.source(with_tools=with_tools)] for with_tools in (False, True)}

    def finder(self, conversation: Conversation) -> AnswerFinder:
        """For the template that a conversation is rendered with."""
        return self._finders[bool(conversation.tools)]

    @property
    def usual_finder(self) -> AnswerFinder:
        """For conversations without tools."""
        return self._finders[False]

    @property
    def finder_with_tools(self) -> AnswerFinder:
        return self._finders[True]

    def make(self, record: Mapping[str, Any], *, may_hold_literals: bool = True) -> Made:
        """The examples of a record.

        Raises:
            NotAChat: It is none, or the template cannot render it.
        """
        made = Made()
        try:
            conversation = conversation_of(record, self.options.shape, parse_arguments=self.options.parse_arguments)
            conversation = self._checked(conversation, made)
            self._render_all(conversation, made, may_hold_literals=may_hold_literals)
        except DroppedChat as dropped:
            made.dropped.append(str(dropped))
        except TemplateError as error:
            raise NotAChat("template_error", error.message) from None
        except MessageNotRendered as error:
            raise NotAChat("message_not_rendered", str(error)) from None
        except HistoryRewritten as error:
            raise NotAChat("history_rewritten", str(error)) from None
        return made

    def _checked(self, conversation: Conversation, made: Made) -> Conversation:
        """With its last turn the assistant's, or kept as it is; refused where nothing could be trained on."""
        answers = conversation.answers()
        if not answers:
            raise DroppedChat("no_assistant")
        if answers[0] == 0:
            raise DroppedChat("begins_with_assistant")
        last = len(conversation.messages) - 1
        if answers[-1] != last and self.options.last_not_assistant != KEEP:
            if self.options.last_not_assistant == DROP:
                raise DroppedChat("last_not_assistant")
            conversation = conversation.first(answers[-1] + 1)
            made.counts.append(("trimmed_messages", last - answers[-1]))
        for index, message in enumerate(conversation.messages):
            role = message["role"]
            if role == TOOL and (index == 0 or conversation.messages[index - 1]["role"] not in (ASSISTANT, TOOL)):
                raise DroppedChat("tool_without_call")
            if role == SYSTEM and index and conversation.messages[index - 1]["role"] not in (SYSTEM, "developer"):
                made.counts.append(("late_system_messages", 1))
            if index and role in (USER, ASSISTANT) and role == conversation.messages[index - 1]["role"]:
                made.counts.append(("repeated_roles", 1))
            if not _has_words(message):
                if role == ASSISTANT:
                    raise DroppedChat("empty_answer")
                made.counts.append(("empty_messages", 1))
        if conversation.marks and self.options.train_on != TRAIN_MARKED:
            made.counts.append(("ignored_train_marks", len(conversation.marks)))
        return conversation

    def _render_all(self, conversation: Conversation, made: Made, *, may_hold_literals: bool) -> None:
        if self.options.split_turns == SPLIT_ALWAYS:
            return self._split(conversation, made, may_hold_literals=may_hold_literals)
        shortened, text = self._fitted(conversation, made)
        finder = self.finder(shortened)
        try:
            answers, way = finder.answers(shortened, text)
        except HistoryRewritten:
            if self.options.split_turns == SPLIT_AUTO:
                return self._split(conversation, made, may_hold_literals=may_hold_literals)
            answers, way = finder.answers_as_rendered(shortened, text), "as_rendered"
        made.counts.append((f"found_by_{way}", 1))
        chosen = self._chosen(shortened, answers)
        self._add(made, shortened, text, answers, chosen, may_hold_literals=may_hold_literals)
        return None

    def _split(self, conversation: Conversation, made: Made, *, may_hold_literals: bool) -> None:
        """One example for each answer, as the model will see it."""
        wanted = [message for message in conversation.answers() if self._is_wanted(conversation, message)]
        if not wanted:
            raise DroppedChat("nothing_to_train_on")
        self.finder(conversation).turns.refuse_left_out(conversation)
        num_chars = sum(len(str(message.get("content"))) for message in conversation.messages)
        if num_chars * len(wanted) > _MAX_SPLIT_CHARS:
            raise NotAChat("too_many_turns", f"{len(wanted)} turns of one conversation would make too much text")
        for message in wanted:
            try:
                part, text = self._fitted(conversation.first(message + 1), made)
            except DroppedChat as dropped:
                made.dropped.append(str(dropped))
                continue
            try:
                answers = self.finder(part).last_answer(part, text)
            except HistoryRewritten:  # not even the prompt is how the conversation begins
                made.dropped.append("no_borders")
                continue
            made.counts.append(("split_turns", 1))
            self._add(made, part, text, answers, answers, may_hold_literals=may_hold_literals)

    def _add(
        self,
        made: Made,
        conversation: Conversation,
        text: str,
        answers: list[Answer],
        chosen: list[Answer],
        *,
        may_hold_literals: bool,
    ) -> None:
        _refuse_lost_calls(conversation, text, answers)
        _count_lost_words(conversation, text, made)
        ends = "end" if self.options.train_end_of_turn else "words_end"
        spans = [(answer.start, getattr(answer, ends)) for answer in chosen]
        if self.options.train_on == TRAIN_ALL:
            spans = [(0, len(text))]
        spans = [(start, end) for start, end in spans if end > start]
        if not spans:
            made.dropped.append("nothing_to_train_on")
            return
        template = self.finder(conversation).template
        literals = self._literals.find(template, conversation, text) if may_hold_literals else []
        if literals:
            made.counts.append(("special_literals", len(literals)))
        made.examples.append(Example(text, spans, literals, answers[-1].start if answers else len(text)))

    def _is_wanted(self, conversation: Conversation, message: int) -> bool:
        train_on = self.options.train_on
        if train_on == TRAIN_LAST:
            return message == conversation.answers()[-1]
        return train_on != TRAIN_MARKED or conversation.marks.get(message, True)

    def _chosen(self, conversation: Conversation, answers: list[Answer]) -> list[Answer]:
        if self.options.train_on == TRAIN_LAST:
            last = conversation.answers()[-1]
            return [answer for answer in answers if answer.message == last]
        return [answer for answer in answers if self._is_wanted(conversation, answer.message)]

    def _fitted(self, conversation: Conversation, made: Made) -> tuple[Conversation, str]:
        """With so few of its oldest exchanges left out that it is not too long, and its text."""
        text = self._rendered(conversation)
        if self.options.too_long == CUT or self._fits(text):
            return conversation, text
        if self.options.too_long == DROP_CHAT:
            raise DroppedChat("too_long")
        starts = _exchanges(conversation)
        low, high = 1, len(starts)  # of the starts: the first exchange that stays
        best: tuple[Conversation, str] | None = None
        while low < high:
            middle = (low + high) // 2
            shorter = conversation.without(_said_between(conversation, starts[0], starts[middle]))
            shorter_text = self._rendered(shorter)
            if self._fits(shorter_text):
                best, high = (shorter, shorter_text), middle
            else:
                low = middle + 1
        if best is None:
            raise DroppedChat("too_long")
        made.counts.append(("shortened_chats", 1))
        made.counts.append(("dropped_messages", len(conversation.messages) - len(best[0].messages)))
        if self._count_tokens is not None:  # else nothing would have been too long
            made.counts.append(("shortened_tokens", self._count_tokens(text) - self._count_tokens(best[1])))
        return best

    def _fits(self, text: str) -> bool:
        most = self.options.max_tokens
        # No token is shorter than a byte, so most texts need not be counted.
        if most is None or len(text) * 4 < most or self._count_tokens is None:
            return True
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotAChat("lone_surrogate", str(error)) from None
        return num_bytes < most or self._count_tokens(text) <= most

    def _rendered(self, conversation: Conversation) -> str:
        template = self.finder(conversation).template
        return template.render(conversation.messages, conversation.tools, conversation.variables)


def _exchanges(conversation: Conversation) -> list[int]:
    """Where exchanges begin: at a question, or the first of several, that has an answer behind it."""
    roles = [message["role"] for message in conversation.messages]
    last = conversation.answers()[-1]
    return [index for index in range(last) if roles[index] == USER and (not index or roles[index - 1] != USER)]


def _said_between(conversation: Conversation, start: int, stop: int) -> set[int]:
    """Messages of these exchanges. What the system says holds for those that follow."""
    standing = (SYSTEM, "developer")
    return {index for index in range(start, stop) if conversation.messages[index]["role"] not in standing}


def _refuse_lost_calls(conversation: Conversation, text: str, answers: list[Answer]) -> None:
    """A template that knows no tools passes over calls of them without a word."""
    for answer in answers:
        for call in conversation.messages[answer.message].get("tool_calls") or ():
            name = call.get("function", call)["name"]
            spans = [text[other.start : other.end] for other in answers if other.message == answer.message]
            if not any(name in span for span in spans):
                raise MessageNotRendered(f"message {answer.message} calls {name!r}, which is not in the text")


def _count_lost_words(conversation: Conversation, text: str, made: Made) -> None:
    """Templates that know no reasoning leave it out; that may be what is wanted, so it is told."""
    for message in conversation.messages:
        reasoning = message.get("reasoning_content")
        if reasoning and reasoning.strip() not in text:
            made.counts.append(("reasoning_left_out", 1))


def _has_words(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, str) and content and not content.isspace():
        return True
    texts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
    texts.append(message.get("reasoning_content") or "")
    return bool(message.get("tool_calls")) or any(text.strip() for text in texts)
