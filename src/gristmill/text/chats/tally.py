"""A tally of the answers in a sample: how many are lost, by kind, and for how many the prompt differs."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.answers.answer import HistoryRewritten
from gristmill.text.chats.answers.template_facts import REASONING_SWITCHES
from gristmill.text.chats.chat_options import AS_RENDERED
from gristmill.text.chats.jinja import TemplateError
from gristmill.text.chats.rendered_record import ANSWER_KINDS, classify_answer
from gristmill.text.chats.shapes import NotAChat, parse_conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.rendered_record import RenderedRecord

_SHOWN_CHARS = 40


class PromptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the prompt for an answer and its rendering."""

    num_answers: int
    """Number of answers in the sample."""
    num_differing: int
    """How many of them differ."""
    prompt: str
    """How the prompt ends, for the first answer that differs."""
    rendered: str
    """What the rendering has there."""
    switch: str = ""
    """A variable of the template with which the two would agree: `enable_thinking: false`."""


class AnswerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of answers of one kind in the sample, and how many of them are lost."""

    num_answers: int
    num_lost: int


class AnswerTally:
    """Counts the answers of a sample, those that are lost, and those for which the prompt differs."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._answers: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._num_differing = 0
        self._first_differing: Mapping[str, Any] | None = None

    def add(self, record: Mapping[str, Any], rendered: RenderedRecord | None) -> None:
        """Count the answers of a record; `rendered` is None if it was refused."""
        options = self._maker.options
        try:
            conversation = parse_conversation(record, options.shape, parse_arguments=options.parse_arguments)
        except NotAChat:
            return
        kinds = [classify_answer(conversation, message) for message in conversation.answers()]
        counts = Counter[str]()
        for name, count in rendered.counts if rendered is not None else ():
            counts[name] += count
        self._answers.update(kinds)
        lost = Counter({kind: counts[f"lost_{kind}"] for kind in ANSWER_KINDS})
        is_counted = rendered is not None and (rendered.examples or lost.total())
        self._lost.update(lost if is_counted else Counter(kinds))
        num_differing = counts["prompt_differs"] + counts["prompted_answers"]
        if rendered is not None and "prompt_differs" in rendered.dropped:
            num_differing += lost.total()
        self._num_differing += num_differing
        if num_differing and self._first_differing is None:
            self._first_differing = record

    def counts(self) -> dict[str, AnswerCounts]:
        """Return the numbers by kind."""
        return {
            kind: AnswerCounts(num_answers=self._answers[kind], num_lost=self._lost[kind])
            for kind in ANSWER_KINDS
            if self._answers[kind]
        }

    @cached_property
    def difference(self) -> PromptDifference | None:
        """The difference that the first differing record shows; None if no prompt differs."""
        record = self._first_differing
        shown = _show_difference(self._maker.with_options(prompt=AS_RENDERED), record) if record is not None else None
        if record is None or shown is None:
            return None
        return PromptDifference(
            num_answers=self._answers.total(),
            num_differing=self._num_differing,
            prompt=shown[0],
            rendered=shown[1],
            switch=self._find_switch(record),
        )

    def _find_switch(self, record: Mapping[str, Any]) -> str:
        """Find a variable of the template with which prompt and rendering agree."""
        variables = self._maker.options.template_variables
        source = self._maker.usual_finder.template.source
        for name, value in product(REASONING_SWITCHES, (False, True)):
            if name not in source or name in variables:
                continue
            other_maker = self._maker.with_options(prompt=AS_RENDERED, template_variables={**variables, name: value})
            try:
                rendered = other_maker.make(record)
            except NotAChat:
                continue
            counted = {name for name, _ in rendered.counts}
            if rendered.examples and not counted & {"prompt_differs", "reasoning_left_out"}:
                return f"{name}: {str(value).lower()}"
        return ""

    def notes(self) -> Iterator[str]:
        """List notes for the user."""
        difference = self.difference
        if difference is not None:
            helps = f"; chat_template_kwargs: {{{difference.switch}}} makes them agree" if difference.switch else ""
            yield (
                f"template: for {difference.num_differing} of {difference.num_answers} sample answers the prompt "
                f"differs from the rendering: it ends with {difference.prompt!r}, and the rendering has "
                f"{difference.rendered!r} (prompt: {self._maker.options.prompt}{helps})"
            )
        lost = [f"{self._lost[kind]} of {self._answers[kind]} ({kind})" for kind in ANSWER_KINDS if self._lost[kind]]
        if lost:
            yield f"template: sample answers that would not be trained: {', '.join(lost)}"


def _show_difference(maker: ExampleMaker, record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Show how the prompt for the first differing answer ends, and what the rendering has; None: none differs."""
    conversation = maker.parse(record)
    turns = maker.choose_finder(conversation).turns
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
