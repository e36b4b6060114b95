"""The answers of a sample: how many are lost, by kind, and for how many the prompt is not how they are rendered."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.answers.template_facts import REASONING_SWITCHES
from gristmill.text.chats.chat_options import AS_RENDERED
from gristmill.text.chats.rendered_record import ANSWER_KINDS, classify_answer
from gristmill.text.chats.shapes import NotAChat, parse_conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.rendered_record import RenderedRecord


class PromptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompt for an answer differs from the rendering of it."""

    num_answers: int
    """In the sample, of which so many differ."""
    num_differing: int
    prompt: str
    """How the prompt ends, in the first that was found."""
    rendered: str
    """What the rendering has there."""
    switch: str = ""
    """A variable of the template with which the two would agree: `enable_thinking: false`."""


class AnswerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one kind in the sample."""

    num_answers: int
    num_lost: int


class AnswerTally:
    """The answers of the sample: how many are lost, of which kind, and for how many the prompt differs."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._answers: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._num_differing = 0
        self._first_differing: Mapping[str, Any] | None = None

    def add(self, record: Mapping[str, Any], made: RenderedRecord | None) -> None:
        """What a record came to; None: it was refused."""
        options = self._maker.options
        try:
            conversation = parse_conversation(record, options.shape, parse_arguments=options.parse_arguments)
        except NotAChat:
            return
        kinds = [classify_answer(conversation, message) for message in conversation.answers()]
        counts = Counter[str]()
        for name, count in made.counts if made is not None else ():
            counts[name] += count
        self._answers.update(kinds)
        lost = Counter({kind: counts[f"lost_{kind}"] for kind in ANSWER_KINDS})
        self._lost.update(lost if made is not None and (made.examples or lost.total()) else Counter(kinds))
        differing = counts["prompt_differs"] + counts["prompted_answers"]
        if made is not None and "prompt_differs" in made.dropped:
            differing += lost.total()
        self._num_differing += differing
        if differing and self._first_differing is None:
            self._first_differing = record

    def counts(self) -> dict[str, AnswerCounts]:
        """By kind."""
        return {
            kind: AnswerCounts(num_answers=self._answers[kind], num_lost=self._lost[kind])
            for kind in ANSWER_KINDS
            if self._answers[kind]
        }

    @cached_property
    def difference(self) -> PromptDifference | None:
        """With the first record that shows it."""
        record = self._first_differing
        shown = self._maker.with_options(prompt=AS_RENDERED).show_difference(record) if record is not None else None
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
        """One of the template's own variables that makes the prompt how the answer is rendered."""
        known = self._maker.options.template_variables
        source = self._maker.usual_finder.template.source
        for name, value in product(REASONING_SWITCHES, (False, True)):
            if name not in source or name in known:
                continue
            other = self._maker.with_options(prompt=AS_RENDERED, template_variables={**known, name: value})
            try:
                made = other.make(record)
            except NotAChat:
                continue
            if made.examples and not any(count[0] in ("prompt_differs", "reasoning_left_out") for count in made.counts):
                return f"{name}: {str(value).lower()}"
        return ""

    def notes(self) -> Iterator[str]:
        difference = self.difference
        if difference is not None:
            helps = f"; chat_template_kwargs: {{{difference.switch}}} makes them agree" if difference.switch else ""
            yield (
                f"template: for {difference.num_differing} of {difference.num_answers} sample answers the prompt is "
                f"not how they are rendered: it ends with {difference.prompt!r}, there stands {difference.rendered!r} "
                f"(prompt: {self._maker.options.prompt}{helps})"
            )
        lost = [f"{self._lost[kind]} of {self._answers[kind]} ({kind})" for kind in ANSWER_KINDS if self._lost[kind]]
        if lost:
            yield f"template: sample answers that would not be trained: {', '.join(lost)}"
