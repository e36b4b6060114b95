"""From a record to what is trained on: one text, or one a turn, and which of its characters count.

A conversation that is too long loses its oldest exchanges (a question and all that follows it up to the next), never
its system message and never a part of a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.chat_literals import ChatLiterals
from gristmill.text.chats.jinja import ChatTemplate, TemplateError
from gristmill.text.chats.lost_content import count_lost_answers, find_lost_call
from gristmill.text.chats.reasoning import find_open_tag, has_closed_thought, reasoning_of, written_thought
from gristmill.text.chats.shapes import ASSISTANT, AUTO, SYSTEM, TOOL, USER, Conversation, NotAChat, parse_conversation
from gristmill.text.chats.skeletons import AnswerFinder
from gristmill.text.chats.turns import Answer, HistoryRewritten, MessageNotRendered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from gristmill.text.chats.find_template import FoundTemplate

TRAIN_ON = TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_ALL, TRAIN_MARKED = ("assistant", "last_assistant", "all", "marked")
DROP, KEEP, TRIM = LAST_NOT_ASSISTANT = ("drop", "keep", "trim")
SPLIT_AUTO, SPLIT_ALWAYS, SPLIT_NEVER = SPLIT_TURNS = ("auto", "always", "never")
DROP_TURNS, DROP_CHAT, CUT, WINDOWS = TOO_LONG = ("drop_turns", "drop", "cut", "windows")
AS_RENDERED, AS_PROMPTED, REFUSE = PROMPT = ("as_rendered", "as_prompted", "refuse")
PLAIN, CALL, AFTER_RESULT = KINDS = ("plain", "call", "after_result")
"""Of answers: words, a call of tools, or what follows a tool's result."""
_MAX_SPLIT_CHARS = 256 << 20
"""So much text may the turns of one conversation become."""
_SHOWN_CHARS = 40


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
    append_eos: bool = False
    prompt: str = AS_RENDERED
    template_variables: dict[str, Any] = {}
    """`chat_template_kwargs` of all records."""


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
class RenderedRecord:
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
        control_tokens: Collection[str] = (),
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self.options = options
        self._arguments = found, today, special_tokens, control_tokens, count_tokens
        tokens = list(special_tokens or ())
        self._literals = ChatLiterals(tokens, control_tokens)
        self._appended = str(found.variables.get("eos_token", "")) if options.append_eos else ""
        self._count_tokens = count_tokens
        sources = dict.fromkeys(found.sources.values())
        finders = {
            source: AnswerFinder(
                ChatTemplate(source, {**found.variables, **options.template_variables}, today=today, name=found.name),
                tokens,
            )
            for source in sources
        }
        self._finders = {with_tools: finders[found.source(with_tools=with_tools)] for with_tools in (False, True)}

    def with_options(self, **changed: Any) -> ExampleMaker:
        """One that differs in these options."""
        found, today, special_tokens, control_tokens, count_tokens = self._arguments
        options = msgspec.structs.replace(self.options, **changed)
        return ExampleMaker(
            found,
            options,
            today=today,
            special_tokens=special_tokens,
            control_tokens=control_tokens,
            count_tokens=count_tokens,
        )

    def choose_finder(self, conversation: Conversation) -> AnswerFinder:
        """For the template that a conversation is rendered with."""
        return self._finders[bool(conversation.tools)]

    @property
    def usual_finder(self) -> AnswerFinder:
        """For conversations without tools."""
        return self._finders[False]

    @property
    def finder_with_tools(self) -> AnswerFinder:
        return self._finders[True]

    @property
    def count_tokens(self) -> Callable[[str], int] | None:
        """Counts the tokens of a text, where there is a most of them."""
        return self._count_tokens

    def make(self, record: Mapping[str, Any], *, may_hold_literals: bool = True) -> RenderedRecord:
        """The examples of a record.

        Raises:
            NotAChat: It is none, or the template cannot render it.
        """
        made = RenderedRecord()
        try:
            conversation = parse_conversation(record, self.options.shape, parse_arguments=self.options.parse_arguments)
            conversation = self._check_conversation(conversation, made)
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

    def show_difference(self, record: Mapping[str, Any]) -> tuple[str, str] | None:
        """How the prompt for the first differing answer ends, and what its rendering has there; None without one."""
        conversation = parse_conversation(record, self.options.shape, parse_arguments=self.options.parse_arguments)
        turns = self.choose_finder(conversation).turns
        for message in conversation.answers():
            part = conversation.first(message + 1)
            try:
                text = turns.render(part)
                answer = turns.find_last_borders(part, text)
                prompt = turns.prompt(part, message)
            except (TemplateError, HistoryRewritten):
                continue
            if answer.differs:
                header = len(prompt) - len(answer.missing)
                shown = max(0, header - _SHOWN_CHARS)
                return prompt[shown:], text[max(0, answer.start - header + shown) : answer.start + _SHOWN_CHARS]
        return None

    def _check_conversation(self, conversation: Conversation, made: RenderedRecord) -> Conversation:
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

    def _render_all(self, conversation: Conversation, made: RenderedRecord, *, may_hold_literals: bool) -> None:
        if self.options.split_turns == SPLIT_ALWAYS:
            return self._split_turns(conversation, made, may_hold_literals=may_hold_literals)
        if self.options.too_long == WINDOWS and self.options.train_on != TRAIN_LAST:
            windows = self._cut_windows(conversation, made)
        else:
            windows = [(*self._fit_to_limit(conversation, made), conversation)]
        for window, text, whole in windows:
            self._add_window(made, window, text, whole, may_hold_literals=may_hold_literals)
        return None

    def _add_window(
        self, made: RenderedRecord, shortened: Conversation, text: str, whole: Conversation, *, may_hold_literals: bool
    ) -> None:
        """The answers of a conversation that is short enough in one example; or those of the `whole` in one each."""
        finder = self.choose_finder(shortened)
        try:
            answers, way = finder.answers(shortened, text)
        except HistoryRewritten:
            if self.options.split_turns == SPLIT_AUTO:
                return self._split_turns(whole, made, may_hold_literals=may_hold_literals)
            answers, way = finder.answers_as_rendered(shortened, text), "as_rendered"
        made.counts.append((f"found_by_{way}", 1))
        chosen = self._choose_answers(shortened, answers)
        if self.options.prompt == AS_PROMPTED and (
            any(answer.differs for answer in chosen) or _loses_reasoning(shortened, text, chosen)
        ):
            return self._split_turns(whole, made, may_hold_literals=may_hold_literals)
        if self.options.prompt == REFUSE and any(answer.differs for answer in chosen):
            self._drop_answers(made, "prompt_differs", shortened, [answer.message for answer in chosen])
            return None
        messages = shortened.answers()
        self._add(made, shortened, text, answers, chosen, messages, may_hold_literals=may_hold_literals)
        return None

    def _split_turns(self, conversation: Conversation, made: RenderedRecord, *, may_hold_literals: bool) -> None:
        """One example for each answer, as the model will see it."""
        wanted = [message for message in conversation.answers() if self._is_wanted(conversation, message)]
        if not wanted:
            raise DroppedChat("nothing_to_train_on")
        self.choose_finder(conversation).turns.refuse_left_out(conversation)
        num_chars = sum(len(str(message.get("content"))) for message in conversation.messages)
        if num_chars * len(wanted) > _MAX_SPLIT_CHARS:
            raise NotAChat("too_many_turns", f"{len(wanted)} turns of one conversation would make too much text")
        for message in wanted:
            try:
                part, text = self._fit_to_limit(conversation.first(message + 1), made)
                answers = self.choose_finder(part).last_answer(part, text)
                if self.options.prompt == REFUSE and any(answer.differs for answer in answers):
                    raise DroppedChat("prompt_differs")
                if self.options.prompt == AS_PROMPTED and (
                    any(answer.differs for answer in answers) or _loses_reasoning(part, text, answers)
                ):
                    self._add_prompted(made, part, text, may_hold_literals=may_hold_literals)
                else:
                    last = part.answers()[-1:]
                    self._add(made, part, text, answers, answers, last, may_hold_literals=may_hold_literals)
            except DroppedChat as dropped:
                self._drop_answers(made, str(dropped), conversation, [message])
                continue
            except HistoryRewritten:  # not even the message before the answer is where the prompt has it
                self._drop_answers(made, "no_borders", conversation, [message])
                continue
            made.counts.append(("split_turns", 1))

    @staticmethod
    def _drop_answers(made: RenderedRecord, reason: str, conversation: Conversation, messages: Sequence[int]) -> None:
        """Drop an example, and count its answers by their kind."""
        made.dropped.append(reason)
        made.counts += [(f"lost_{classify_answer(conversation, message)}", 1) for message in messages]

    def _add_prompted(
        self, made: RenderedRecord, conversation: Conversation, text: str, *, may_hold_literals: bool
    ) -> None:
        """The last answer as the model will see it: its prompt, and then what the template writes of the answer."""
        finder = self.choose_finder(conversation)
        answer = finder.turns.find_last_borders(conversation, text)
        prompt = finder.turns.prompt(conversation, answer.message)
        tags = find_open_tag(prompt, finder.template.source, finder.turns.ending.token)
        rendered = text[answer.start :]
        reasoning = reasoning_of(conversation.messages[-1])
        thought = ""
        if tags is None:
            if reasoning in rendered:
                if reasoning and has_closed_thought(prompt):  # no model would have written one
                    rendered = _strip_reasoning(rendered, reasoning)
            elif reasoning in (written := written_thought(conversation.messages[-1])) and not has_closed_thought(
                prompt
            ):
                thought, rendered = written, rendered.lstrip()
        elif tags[1] not in rendered:
            if not reasoning:
                raise DroppedChat("unclosed_reasoning")
            thought = f"{reasoning}\n{tags[1]}\n\n"
            rendered = rendered.lstrip("\n")
        elif reasoning and reasoning not in rendered and rendered.lstrip().startswith(tags[1]):
            thought = reasoning + ("\n" if prompt.endswith("\n") else "")
            rendered = rendered.lstrip()
        elif rendered.lstrip().startswith(tags[0]):
            rendered = rendered.lstrip()[len(tags[0]) :].lstrip("\n")
        shift = len(prompt) + len(thought) + len(rendered) - len(text)
        literals = []
        if may_hold_literals:
            literals = self._prompted_literals(conversation, text, prompt, thought, answer, shift)
        moved = [Answer(answer.message, len(prompt), answer.words_end + shift, answer.end + shift)]
        made.counts.append(("prompted_answers", 1))
        self._add_example(made, conversation, prompt + thought + rendered, moved, moved, [answer.message], literals)

    def _prompted_literals(
        self, conversation: Conversation, text: str, prompt: str, thought: str, answer: Answer, shift: int
    ) -> list[tuple[int, int]]:
        template = self.choose_finder(conversation).template
        before = conversation.first(answer.message)
        asked = Conversation(before.messages, before.tools, {**before.variables, "add_generation_prompt": True})
        literals = self._literals.find(template, asked, prompt)
        if thought:
            reasoning = reasoning_of(conversation.messages[-1])
            place = len(prompt) + thought.index(reasoning)
            literals += [(place + begin, place + end) for begin, end in self._literals.spans(reasoning)]
        found = self._literals.find(template, conversation, text)
        behind = ((begin + shift, end + shift) for begin, end in found)
        return [*literals, *((begin, end) for begin, end in behind if begin >= len(prompt) + len(thought))]

    def _add(
        self,
        made: RenderedRecord,
        conversation: Conversation,
        text: str,
        answers: list[Answer],
        chosen: list[Answer],
        messages: Sequence[int],
        *,
        may_hold_literals: bool,
    ) -> None:
        template = self.choose_finder(conversation).template
        literals = self._literals.find(template, conversation, text) if may_hold_literals else []
        self._add_example(made, conversation, text, answers, chosen, messages, literals)

    def _add_example(
        self,
        made: RenderedRecord,
        conversation: Conversation,
        text: str,
        answers: list[Answer],
        chosen: list[Answer],
        messages: Sequence[int],
        literals: list[tuple[int, int]],
    ) -> None:
        """`messages`: the answers that the example is for, found in the text or not."""
        lost_call = find_lost_call(self.choose_finder(conversation).template, conversation, text, messages)
        if lost_call:
            raise NotAChat("calls_left_out", lost_call)
        _count_lost_reasoning(conversation, text, messages, made)
        num_lost = count_lost_answers(conversation, text, chosen)
        if num_lost:
            made.counts.append(("answer_left_out", num_lost))
        num_differing = len({answer.message for answer in chosen if answer.differs})
        if num_differing:
            made.counts.append(("prompt_differs", num_differing))
        if self._appended:
            text, chosen = self._with_eos(conversation, text, chosen, answers)
        ends = "end" if self.options.train_end_of_turn else "words_end"
        spans = [(answer.start, getattr(answer, ends)) for answer in chosen]
        if self.options.train_on == TRAIN_ALL:
            spans = [(0, len(text))]
        else:
            trained = {answer.message for answer, (start, end) in zip(chosen, spans, strict=True) if end > start}
            # A template's tags may leave out answers of a kind.
            for message in messages:
                if message not in trained and self._is_wanted(conversation, message):
                    made.counts.append((f"lost_{classify_answer(conversation, message)}", 1))
        spans = [(start, end) for start, end in spans if end > start]
        if not spans:
            made.dropped.append("nothing_to_train_on")
            return
        if literals:
            made.counts.append(("special_literals", len(literals)))
        made.examples.append(Example(text, spans, literals, answers[-1].start if answers else len(text)))

    def _with_eos(
        self, conversation: Conversation, text: str, chosen: list[Answer], answers: list[Answer]
    ) -> tuple[str, list[Answer]]:
        """The text with the end token behind its last answer, and what of it is trained."""
        last = answers[-1]
        if last.message == len(conversation.messages) - 1 and not text.endswith(self._appended, 0, last.end):
            text = text[: last.end] + self._appended
        longer = [
            replace(answer, end=answer.end + len(self._appended))
            if text.startswith(self._appended, answer.end)
            else answer
            for answer in chosen
        ]
        return text, longer

    def _is_wanted(self, conversation: Conversation, message: int) -> bool:
        train_on = self.options.train_on
        if train_on == TRAIN_LAST:
            return message == conversation.answers()[-1]
        return train_on != TRAIN_MARKED or conversation.marks.get(message, True)

    def _choose_answers(self, conversation: Conversation, answers: list[Answer]) -> list[Answer]:
        if self.options.train_on == TRAIN_LAST:
            last = conversation.answers()[-1]
            return [answer for answer in answers if answer.message == last]
        return [answer for answer in answers if self._is_wanted(conversation, answer.message)]

    def _cut_windows(
        self, conversation: Conversation, made: RenderedRecord
    ) -> list[tuple[Conversation, str, Conversation]]:
        """Pieces that fit and their texts, each with the system's words, so that every answer is in one of them.

        The last is what `drop_turns` leaves, the one before it what it would leave of the rest, and so on.
        """
        windows: list[tuple[Conversation, str, Conversation]] = []
        rest = conversation
        while rest.answers():
            text = self._render(rest)
            if self._fits(text):
                windows.append((rest, text, rest))
                break
            starts = _find_exchanges(rest)
            window = self._find_longest_end(rest, starts)
            if window is not None:
                windows.append((window[0], window[1], window[0]))
                rest = rest.first(window[2])
            else:  # not even the last exchange
                begin = starts[-1] if len(starts) > 1 else 0
                self._drop_answers(made, "too_long", rest, [message for message in rest.answers() if message > begin])
                rest = rest.first(begin)
        if len(windows) > 1 or made.dropped:
            made.counts.append(("windows", len(windows)))
        return windows[::-1]

    def _fit_to_limit(self, conversation: Conversation, made: RenderedRecord) -> tuple[Conversation, str]:
        """With so few of its oldest exchanges left out that it is not too long, and its text."""
        text = self._render(conversation)
        if self.options.too_long == CUT or self._fits(text):
            return conversation, text
        if self.options.too_long == DROP_CHAT:
            raise DroppedChat("too_long")
        best = self._find_longest_end(conversation, _find_exchanges(conversation))
        if best is None:
            raise DroppedChat("too_long")
        made.counts.append(("shortened_chats", 1))
        made.counts.append(("dropped_messages", len(conversation.messages) - len(best[0].messages)))
        if self._count_tokens is not None:  # else nothing would have been too long
            made.counts.append(("shortened_tokens", self._count_tokens(text) - self._count_tokens(best[1])))
        return best[:2]

    def _find_longest_end(
        self, conversation: Conversation, starts: Sequence[int]
    ) -> tuple[Conversation, str, int] | None:
        """The last exchanges, as many as fit, their text, and the message that they begin with."""
        low, high = 1, len(starts)  # of the starts: the first exchange that stays
        best: tuple[Conversation, str, int] | None = None
        while low < high:
            middle = (low + high) // 2
            shorter = conversation.remove_messages(_messages_between(conversation, starts[0], starts[middle]))
            shorter_text = self._render(shorter)
            if self._fits(shorter_text):
                best, high = (shorter, shorter_text, starts[middle]), middle
            else:
                low = middle + 1
        return best

    def _fits(self, text: str) -> bool:
        most = self.options.max_tokens
        text += self._appended
        # No token is shorter than a byte, so most texts need not be counted.
        if most is None or len(text) * 4 < most or self._count_tokens is None:
            return True
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotAChat("lone_surrogate", str(error)) from None
        return num_bytes < most or self._count_tokens(text) <= most

    def _render(self, conversation: Conversation) -> str:
        template = self.choose_finder(conversation).template
        return template.render(conversation.messages, conversation.tools, conversation.variables)


def classify_answer(conversation: Conversation, message: int) -> str:
    """What kind of answer it is."""
    if conversation.messages[message].get("tool_calls"):
        return CALL
    return AFTER_RESULT if message and conversation.messages[message - 1]["role"] == TOOL else PLAIN


def _strip_reasoning(text: str, reasoning: str) -> str:
    """A text without its reasoning and the tag that closes it."""
    behind = text.partition(reasoning)[2]
    tag = re.match(r"\s*[<\[][^<>\[\]\s]{1,40}[>\]]\s*", behind)
    return behind[tag.end() :] if tag else behind


def _loses_reasoning(conversation: Conversation, text: str, answers: Sequence[Answer]) -> bool:
    reasonings = (reasoning_of(conversation.messages[answer.message]) for answer in answers)
    return any(reasoning not in text for reasoning in reasonings if reasoning)


def _find_exchanges(conversation: Conversation) -> list[int]:
    """Where exchanges begin: at a question, or the first of several, that has an answer behind it."""
    roles = [message["role"] for message in conversation.messages]
    last = conversation.answers()[-1]
    return [index for index in range(last) if roles[index] == USER and (not index or roles[index - 1] != USER)]


def _messages_between(conversation: Conversation, start: int, stop: int) -> set[int]:
    """Messages of these exchanges. What the system says holds for those that follow."""
    standing = (SYSTEM, "developer")
    return {index for index in range(start, stop) if conversation.messages[index]["role"] not in standing}


def _count_lost_reasoning(conversation: Conversation, text: str, messages: Sequence[int], made: RenderedRecord) -> None:
    """Templates that know no reasoning leave it out; that may be what is wanted, so it is told."""
    for message in messages:
        if reasoning_of(conversation.messages[message]) not in text:
            made.counts.append(("reasoning_left_out", 1))


def _has_words(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, str) and content and not content.isspace():
        return True
    texts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
    texts.append(message.get("reasoning_content") or "")
    return bool(message.get("tool_calls")) or any(text.strip() for text in texts)
