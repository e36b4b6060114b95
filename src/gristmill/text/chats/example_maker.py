"""From a record to its examples: one text per conversation or per turn, and which of its characters are trained on.

A conversation becomes one example where its template writes every turn as it wrote it when it was the last. Otherwise
each answer becomes a separate example, with the prompt that the model will see.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.answers import Answer, HistoryRewritten, MessageNotRendered, append_end_token
from gristmill.text.chats.chat_literals import ChatLiterals
from gristmill.text.chats.conversation_checks import (
    CALLS_LEFT_OUT,
    check_conversation,
    count_lost_answers,
    count_lost_reasoning,
    find_lost_call,
    is_wanted,
    loses_reasoning,
    refuse_quoted_arguments,
)
from gristmill.text.chats.fit_to_length import LengthFitter
from gristmill.text.chats.options import (
    AS_PROMPTED,
    REFUSE,
    SPLIT_ALWAYS,
    SPLIT_AUTO,
    TRAIN_ALL,
    TRAIN_LAST,
    TURN_WINDOWS,
    WINDOWS,
    ChatOptions,
    DroppedChat,
    Example,
    RenderedRecord,
    classify_answer,
)
from gristmill.text.chats.parts import find_parts, list_spans
from gristmill.text.chats.reasoning import find_prompted_literals, make_prompted_answer
from gristmill.text.chats.shapes import Conversation, NotAChat, parse_conversation
from gristmill.text.chats.skeletons import AnswerFinder
from gristmill.text.chats.templates import ChatTemplate, TemplateError
from gristmill.text.tokenizers.special_tokens import is_inside_word

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import date

    from gristmill.text.chats.chat_images import ChatImages
    from gristmill.text.chats.parts import MessageTexts
    from gristmill.text.chats.templates import FoundTemplate

_MAX_SPLIT_CHARS = 256 << 20
"""The most text that the turns of one conversation may become."""


class ExampleMaker:
    """Makes examples with one template."""

    def __init__(
        self,
        template: FoundTemplate,
        options: ChatOptions,
        *,
        today: date | None = None,
        special_tokens: Mapping[str, int] | None = None,
        control_tokens: Collection[str] = (),
        count_tokens: Callable[[str], int] | None = None,
        images: ChatImages | None = None,
    ) -> None:
        self.options = options
        self._arguments = template, today, special_tokens, control_tokens, count_tokens, images
        self.images = images
        # A template that never speaks of images takes contents as texts.
        self._inlines_images = not any("image" in source for source in template.sources.values())
        tokens = list(special_tokens or ())
        self.literals = ChatLiterals(tokens, control_tokens)
        self._appended = str(template.variables.get("eos_token", "")) if options.append_eos else ""
        self.count_tokens = count_tokens
        """A function that counts the tokens of a text, if their number is limited."""
        self._fitter = LengthFitter(options, self._render, count_tokens, self._appended, images)
        sources = dict.fromkeys(template.sources.values())
        finders = {
            source: AnswerFinder(
                ChatTemplate(
                    source, {**template.variables, **options.template_variables}, today=today, name=template.name
                ),
                tokens,
            )
            for source in sources
        }
        self._templates = [finder.template for finder in finders.values()]
        self._finders = {with_tools: finders[template.source(with_tools=with_tools)] for with_tools in (False, True)}

    def with_options(self, **changed: Any) -> ExampleMaker:
        """Return a maker that differs in these options."""
        template, today, special_tokens, control_tokens, count_tokens, images = self._arguments
        options = msgspec.structs.replace(self.options, **changed)
        return ExampleMaker(
            template,
            options,
            today=today,
            special_tokens=special_tokens,
            control_tokens=control_tokens,
            count_tokens=count_tokens,
            images=images,
        )

    def start_tracing(self, restart_clock: Callable[[], None] | None = None) -> None:
        """Trace the templates from now on, where that is possible: the same examples, in less time."""
        for template in self._templates:
            template.start_tracing(restart_clock)

    @contextmanager
    def without_tracing(self) -> Iterator[None]:
        """Render with Jinja inside of this `with`."""
        with ExitStack() as stack:
            for template in self._templates:
                stack.enter_context(template.without_tracing())
            yield

    def choose_finder(self, conversation: Conversation) -> AnswerFinder:
        """Choose the finder for the template that a conversation is rendered with."""
        return self._finders[bool(conversation.tools)]

    @property
    def usual_finder(self) -> AnswerFinder:
        """The finder for conversations without tools."""
        return self._finders[False]

    @property
    def finder_with_tools(self) -> AnswerFinder:
        """The finder for conversations with tools."""
        return self._finders[True]

    def make(self, record: Mapping[str, Any], *, may_hold_literals: bool = True) -> RenderedRecord:
        """Make the examples of a record.

        Raises:
            NotAChat: The record is no chat, or the template cannot render it.
        """
        rendered = RenderedRecord()
        for template in self._templates:
            template.begin_record()
        try:
            conversation = self.parse(record)
            conversation = check_conversation(conversation, self.options, rendered)
            self._render_all(conversation, rendered, may_hold_literals=may_hold_literals)
            if not (self.options.parse_arguments or self.options.accepts_quoted_arguments):
                refuse_quoted_arguments(conversation, rendered)
        except DroppedChat as dropped:
            rendered.dropped.append(str(dropped))
        except TemplateError as error:
            raise NotAChat("template_error", error.message) from None
        except MessageNotRendered as error:
            raise NotAChat("message_not_rendered", str(error)) from None
        except HistoryRewritten as error:
            raise NotAChat("history_rewritten", str(error)) from None
        return rendered

    def parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read the conversation of a record, in the form that the template reads. Raises `NotAChat` if it has none."""
        conversation = parse_conversation(
            record,
            self.options.shape,
            parse_arguments=self.options.parse_arguments,
            fields=self.options.fields,
            place_images=self._place_in_messages if self.images is not None else None,
        )
        facts = self.choose_finder(conversation).turns.facts
        messages = facts.adapt_contents(conversation.messages)
        return conversation if messages is conversation.messages else replace(conversation, messages=messages)

    def _place_in_messages(self, record: Mapping[str, Any], messages: list[Any]) -> list[Any]:
        assert self.images is not None
        return self.images.read(record, messages, inlines=self._inlines_images)

    def _render_all(self, conversation: Conversation, rendered: RenderedRecord, *, may_hold_literals: bool) -> None:
        if self.options.split_turns == SPLIT_ALWAYS:
            self._split_turns(conversation, rendered, may_hold_literals=may_hold_literals)
        elif self.options.too_long in (WINDOWS, TURN_WINDOWS) and self.options.train_on != TRAIN_LAST:
            for part, text, _ in self._fitter.cut_windows(conversation, rendered):
                self._add_conversation(rendered, part, text, part, may_hold_literals=may_hold_literals)
        else:
            part, text, _ = self._fitter.fit(conversation, rendered)
            self._add_conversation(rendered, part, text, conversation, may_hold_literals=may_hold_literals)

    def _add_conversation(
        self,
        rendered: RenderedRecord,
        shortened: Conversation,
        text: str,
        whole: Conversation,
        *,
        may_hold_literals: bool,
    ) -> None:
        """Add a conversation that fits as one example; or each answer of the `whole` as a separate example."""
        finder = self.choose_finder(shortened)
        try:
            answers, method = finder.answers(shortened, text)
        except HistoryRewritten:
            if self.options.split_turns == SPLIT_AUTO:
                self._split_turns(whole, rendered, may_hold_literals=may_hold_literals)
                return
            answers, method = finder.answers_as_rendered(shortened, text), "as_rendered"
        rendered.counts.append((f"found_by_{method}", 1))
        chosen = self._choose_answers(shortened, answers)
        if self.options.prompt == AS_PROMPTED and (
            any(answer.differs for answer in chosen) or loses_reasoning(shortened, text, chosen)
        ):
            self._split_turns(whole, rendered, may_hold_literals=may_hold_literals)
        elif self.options.prompt == REFUSE and any(answer.differs for answer in chosen):
            rendered.drop_answers("prompt_differs", shortened, [answer.message for answer in chosen])
        else:
            messages = shortened.answers()
            self._add(rendered, shortened, text, answers, chosen, messages, may_hold_literals=may_hold_literals)

    def _split_turns(self, conversation: Conversation, rendered: RenderedRecord, *, may_hold_literals: bool) -> None:
        """Add one example for each answer, as the model will see it."""
        chosen_answers = [
            message for message in conversation.answers() if is_wanted(conversation, message, self.options.train_on)
        ]
        if not chosen_answers:
            raise DroppedChat("nothing_to_train_on")
        self.choose_finder(conversation).turns.refuse_left_out(conversation)
        num_chars = sum(len(str(message.get("content"))) for message in conversation.messages)
        if num_chars * len(chosen_answers) > _MAX_SPLIT_CHARS:
            raise NotAChat(
                "too_many_turns", f"{len(chosen_answers)} turns of one conversation would make too much text"
            )
        for message in chosen_answers:
            try:
                part, text, _ = self._fitter.fit(conversation.first(message + 1), rendered)
                answers = self.choose_finder(part).last_answer(part, text)
                if self.options.prompt == REFUSE and any(answer.differs for answer in answers):
                    raise DroppedChat("prompt_differs")
                if self.options.prompt == AS_PROMPTED and (
                    any(answer.differs for answer in answers) or loses_reasoning(part, text, answers)
                ):
                    self._add_prompted(rendered, part, text, may_hold_literals=may_hold_literals)
                else:
                    last = part.answers()[-1:]
                    self._add(rendered, part, text, answers, answers, last, may_hold_literals=may_hold_literals)
            except DroppedChat as dropped:
                rendered.drop_answers(str(dropped), conversation, [message])
                continue
            except HistoryRewritten:  # not even the message before the answer is where the prompt has it
                rendered.drop_answers("no_borders", conversation, [message])
                continue
            rendered.counts.append(("split_turns", 1))

    def _add_prompted(
        self, rendered: RenderedRecord, conversation: Conversation, text: str, *, may_hold_literals: bool
    ) -> None:
        """Add the last answer as the model will see it: its prompt, and then what the template writes of the answer."""
        finder = self.choose_finder(conversation)
        answer = finder.turns.find_last_borders(conversation, text)
        prompt = finder.turns.prompt(conversation, answer.message)
        thought, after = make_prompted_answer(
            conversation.messages[-1],
            prompt,
            text[answer.start :],
            template_source=finder.template.source,
            end_of_turn=finder.turns.ending.token,
        )
        # Both texts end alike: what is found from the end of one is as far from the end of the other.
        shift = len(prompt) + len(thought) + len(after) - len(text)
        literals = []
        if may_hold_literals:
            literals = find_prompted_literals(
                self.literals, finder.template, conversation, text, prompt, thought, shift=shift
            )
        moved = [Answer(answer.message, len(prompt), answer.content_end + shift, answer.end + shift)]
        texts = finder.find_prompted_texts(conversation, text, prompt, thought, shift)
        rendered.counts.append(("prompted_answers", 1))
        self._add_example(
            rendered, conversation, prompt + thought + after, moved, moved, [answer.message], literals, texts
        )

    def _add(
        self,
        rendered: RenderedRecord,
        conversation: Conversation,
        text: str,
        answers: list[Answer],
        chosen: list[Answer],
        messages: Sequence[int],
        *,
        may_hold_literals: bool,
    ) -> None:
        finder = self.choose_finder(conversation)
        literals = self.literals.find(finder.template, conversation, text) if may_hold_literals else []
        texts = finder.find_texts(conversation, text)
        self._add_example(rendered, conversation, text, answers, chosen, messages, literals, texts)

    def _add_example(
        self,
        rendered: RenderedRecord,
        conversation: Conversation,
        text: str,
        answers: list[Answer],
        chosen: list[Answer],
        messages: Sequence[int],
        literals: list[tuple[int, int]],
        texts: MessageTexts,
    ) -> None:
        """Add one example.

        Args:
            rendered: The record that it belongs to.
            conversation: The conversation.
            text: Its text.
            answers: All answers that were found in the text.
            chosen: The answers that are trained on.
            messages: The answers that the example is for, found in the text or not.
            literals: Spans of special tokens that someone wrote.
            texts: The texts of messages in it.
        """
        lost_call = find_lost_call(self.choose_finder(conversation).template, conversation, text, messages)
        if lost_call:
            raise NotAChat(CALLS_LEFT_OUT, lost_call)
        count_lost_reasoning(conversation, text, messages, rendered)
        count_lost_answers(conversation, text, chosen, rendered)
        num_differing = len({answer.message for answer in chosen if answer.differs})
        if num_differing:
            rendered.counts.append(("prompt_differs", num_differing))
        if self._appended:
            ends_chat = answers[-1].message == len(conversation.messages) - 1
            text, chosen = append_end_token(text, self._appended, chosen, answers[-1] if ends_chat else None)
        parts = find_parts(conversation, text, texts, answers, chosen)
        trains_end = self.options.train_end_of_turn
        spans = [(answer.start, answer.end if trains_end else answer.content_end) for answer in chosen]
        if self.options.train_on == TRAIN_ALL:
            spans = [(0, len(text))]
        else:
            trained = {answer.message for answer, (start, end) in zip(chosen, spans, strict=True) if end > start}
            # A template's tags may leave out answers of one kind, such as calls.
            for message in messages:
                if message not in trained and is_wanted(conversation, message, self.options.train_on):
                    rendered.counts.append((f"lost_{classify_answer(conversation, message)}", 1))
        if self.options.train_kinds:
            spans = list_spans(parts, self.options.train_kinds, len(text))
        spans = [(start, end) for start, end in spans if end > start]
        if not spans:
            rendered.dropped.append("nothing_to_train_on")
            return
        num_literals = sum(not is_inside_word(text, begin, end) for begin, end in literals)
        if num_literals:
            rendered.counts.append(("special_literals", num_literals))
        weights = [
            (answer.start, answer.end, conversation.weights[answer.message])
            for answer in chosen
            if self.options.weights and answer.message in conversation.weights
        ]
        last_answer = answers[-1].start if answers else len(text)
        example = Example(text, spans, literals, last_answer, weights=weights, parts=parts)
        if self.images is not None:
            example = self.images.place_in_example(example, conversation, inlines=self._inlines_images)
        rendered.examples.append(example)

    def _choose_answers(self, conversation: Conversation, answers: list[Answer]) -> list[Answer]:
        if self.options.train_on == TRAIN_LAST:
            last = conversation.answers()[-1]
            return [answer for answer in answers if answer.message == last]
        return [answer for answer in answers if is_wanted(conversation, answer.message, self.options.train_on)]

    def _render(self, conversation: Conversation) -> str:
        template = self.choose_finder(conversation).template
        return template.render(conversation.messages, conversation.tools, conversation.variables)
