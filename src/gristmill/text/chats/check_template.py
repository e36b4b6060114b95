"""Checks of a chat template on real chats, for the faults that silently ruin training.

Problems stop a run, and each says what to do. Notes are printed with the plan. A tally counts the answers of a sample:
how many are lost, by kind, and for how many the prompt differs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.answers import HistoryRewritten
from gristmill.text.chats.conversation_checks import CALLS_LEFT_OUT, QUOTED_ARGUMENTS, QUOTED_HELP, QUOTED_MESSAGE
from gristmill.text.chats.options import (
    ANSWER_KINDS,
    AS_PROMPTED,
    AS_RENDERED,
    TRAIN_ALL,
    TRAIN_ASSISTANT,
    TRAIN_AUTO,
    TRAIN_MARKED,
    classify_answer,
)
from gristmill.text.chats.reasoning import find_open_tag, find_reasoning, find_written_thought, has_closed_thought
from gristmill.text.chats.shapes import NotAChat, count_unused, list_shapes
from gristmill.text.chats.template_facts import REASONING_SWITCHES
from gristmill.text.chats.templates import TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.options import Example, RenderedRecord
    from gristmill.text.chats.shapes import Conversation


_CALLS = "calls"
_LAST_TOKEN = re.compile(r"<[^<>\s]{1,40}>$")


class TemplateProblem(msgspec.Struct, frozen=True):
    """A fault that stops a run."""

    name: str
    message: str
    help: str


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


class TemplateReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    problems: list[TemplateProblem]
    notes: list[str]
    num_records: int
    num_examples: int
    dropped: dict[str, int]
    bad: dict[str, int]
    end_of_turn: str
    answers: dict[str, AnswerCounts]
    """Numbers of answers by kind: `plain`, `call` or `after_result`."""
    num_answer_tokens: int = 0
    """Number of tokens that are trained or left out, if any are left out and there is a tokenizer."""
    left_out_tokens: dict[str, int] = {}
    """How many of them the template leaves out: `reasoning`, `text`, `calls`."""
    unused_fields: dict[str, int] = {}
    """Fields that look like part of a chat, or like marks, and have no effect: in how many messages or records."""
    prompt_difference: PromptDifference | None = None

    @property
    def num_lost(self) -> int:
        """Number of answers that would not be trained on though their record is a conversation."""
        return sum(counts.num_lost for counts in self.answers.values())

    @property
    def has_losses(self) -> bool:
        """Whether something of the sample would not be trained, or not as it is marked."""
        return bool(self.num_lost or self.left_out_tokens or self.unused_fields)


def check_template(
    maker: ExampleMaker,
    records: Sequence[Mapping[str, Any]],
    variables: Mapping[str, str],
    *,
    unknown_tokens: Sequence[str] = (),
    count_tokens: Callable[[str], int] | None = None,
) -> TemplateReport:
    """Render some records, and check the examples."""
    rendered: list[RenderedRecord] = []
    tally = AnswerTally(maker)
    bad: Counter[str] = Counter()
    left_out: list[tuple[str, str]] = []
    first_bad = ""
    for record in records:
        try:
            rendered.append(maker.make(record))
            tally.add(record, rendered[-1])
        except NotAChat as problem:
            tally.add(record, None)
            bad[problem.reason] += 1
            if problem.reason == CALLS_LEFT_OUT:
                left_out += [(_CALLS, call) for call in _list_calls(maker.parse(record))]
            first_bad = first_bad or problem.message
        except MemoryError:  # maybe only this record needs so much; the run quarantines it
            bad["out_of_memory"] += 1
            first_bad = first_bad or "the template takes more memory for it than it may"
    examples = [example for record in rendered for example in record.examples]
    dropped = Counter(reason for record in rendered for reason in record.dropped)
    left_out += [pair for record in rendered for pair in record.left_out]
    left_out_tokens: Counter[str] = Counter()
    num_answer_tokens = 0
    if left_out and count_tokens is not None:
        for kind, text in left_out:
            left_out_tokens[kind] += count_tokens(text)
        num_answer_tokens = left_out_tokens.total()
        num_answer_tokens += sum(_count_trained(example, count_tokens, None) for example in examples)
    counters: Counter[str] = Counter()
    for name, count in (pair for record in rendered for pair in record.counts):
        counters[name] += count
    problems: list[TemplateProblem] = []
    if examples:
        problems += _find_token_problems(maker, examples, variables)
        problems += _find_unknown_tokens(maker, examples, unknown_tokens)
        problems += _find_lost_reasoning(maker, records)
    if bad[QUOTED_ARGUMENTS]:
        problems.append(TemplateProblem(QUOTED_ARGUMENTS, QUOTED_MESSAGE, QUOTED_HELP))
    elif records and not examples:
        reasons = ", ".join(f"{reason} {count}" for reason, count in (bad + dropped).most_common(4))
        first = f"; the first: {first_bad}" if first_bad else ""
        problems.append(
            TemplateProblem(
                "nothing_trained",
                f"none of {len(records)} sample records gives anything to train on ({reasons}{first})",
                "look at a record: `shape` is the layout of chats in records, `template` how they are rendered",
            )
        )
    return TemplateReport(
        problems=problems,
        notes=[
            *_list_notes(maker, counters, count_tokens, records),
            *_list_left_out_notes(left_out_tokens, num_answer_tokens),
            *_list_begin_notes(examples, variables),
            *tally.notes(),
            *_list_length_notes(maker, records, examples),
        ],
        num_records=len(records),
        num_examples=len(examples),
        dropped=dict(dropped),
        bad=dict(bad),
        end_of_turn=maker.usual_finder.turns.ending.token,
        answers=tally.counts(),
        num_answer_tokens=num_answer_tokens,
        left_out_tokens=dict(left_out_tokens),
        unused_fields=dict((tally.unused + tally.unread).most_common()),
        prompt_difference=tally.difference,
    )


def _list_calls(conversation: Conversation) -> list[str]:
    calls = [call for message in conversation.messages for call in message.get("tool_calls") or ()]
    return [json.dumps(call.get("function", call), ensure_ascii=False, default=str) for call in calls]


def _list_left_out_notes(left_out_tokens: Counter[str], num_answer_tokens: int) -> Iterator[str]:
    if left_out_tokens:
        kinds = ", ".join(f"{count:,} of {kind}" for kind, count in left_out_tokens.most_common())
        yield (
            f"template: it leaves out {left_out_tokens.total():,} of {num_answer_tokens:,} tokens of the sample's "
            f"answers: {kinds}"
        )


def _find_token_problems(
    maker: ExampleMaker, examples: Sequence[Example], variables: Mapping[str, str]
) -> Iterator[TemplateProblem]:
    bos = variables.get("bos_token")
    # Some models end turns with the token that others begin with.
    ends_turns = bos == maker.usual_finder.turns.ending.token
    if (
        bos
        and not ends_turns
        and any(
            (example.text.count(bos) - sum(example.text[start:end] == bos for start, end in example.literals)) > 1
            for example in examples
        )
    ):
        yield TemplateProblem(
            "double_bos",
            f"the template writes the begin token {bos} more than once in a conversation",
            "remove the others from the template",
        )
    options = maker.options
    has_end = options.append_eos or bool(maker.usual_finder.turns.ending.token)
    trains_end = options.train_end_of_turn and options.train_on != TRAIN_ALL and not options.train_kinds
    if trains_end and not has_end:
        yield TemplateProblem(
            "no_end_of_turn",
            "the template writes nothing at the end of an answer: a model trained on it would not learn to stop",
            "append_eos: true puts the tokenizer's end token after the last answer and trains it; or use a template "
            "that ends turns with a token; or accept it with train_end_of_turn: false",
        )
    elif trains_end:
        num_open = sum(not _ends_with_token(example, maker) for example in examples)
        if num_open:
            yield TemplateProblem(
                "end_of_turn_not_trained",
                f"in {num_open} of {len(examples)} sample examples an answer is trained without its end of turn, "
                f"{maker.usual_finder.turns.ending.token!r}",
                "put it into the template's generation tags, right after the answer; or train_end_of_turn: false",
            )


def _find_unknown_tokens(
    maker: ExampleMaker, examples: Sequence[Example], unknown_tokens: Sequence[str]
) -> Iterator[TemplateProblem]:
    source = maker.usual_finder.template.source
    used = [token for token in unknown_tokens if token in source or any(token in example.text for example in examples)]
    if used:
        yield TemplateProblem(
            "unknown_tokens",
            f"the template writes {', '.join(used[:5])}, which only tokenizer_config.json adds (or a file next to "
            "tokenizer.json): tokenizer.json would encode it letter by letter",
            "save the tokenizer with all of its tokens: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )


def _find_lost_reasoning(maker: ExampleMaker, records: Sequence[Mapping[str, Any]]) -> Iterator[TemplateProblem]:
    """Find last answers that are rendered without the reasoning of their record, though the prompt asks for it."""
    if maker.options.prompt == AS_PROMPTED:
        return
    num_lost = 0
    for record in records:
        try:
            conversation = maker.parse(record)
            message = conversation.answers()[-1]
            reasoning = find_reasoning(conversation.messages[message])
            turns = maker.choose_finder(conversation).turns
            if reasoning and reasoning not in turns.render(conversation.first(message + 1)):
                prompt = turns.prompt(conversation, message)
                is_open = find_open_tag(prompt, turns.template.source, turns.ending.token) is not None
                written = find_written_thought(conversation.messages[message])
                is_cut = reasoning in written and not has_closed_thought(prompt)
                num_lost += is_open or is_cut
        except (NotAChat, TemplateError, IndexError):
            continue
    if num_lost:
        yield TemplateProblem(
            "reasoning_lost",
            f"the template leaves the reasoning out of the last answer of {num_lost} sample records, though the model "
            "has to begin with it",
            "prompt: as_prompted puts the reasoning where the model will write it",
        )


def _ends_with_token(example: Example, maker: ExampleMaker) -> bool:
    """Tell whether each trained span ends with the end of turn, or with another token, such as that of a call."""
    usual = maker.usual_finder.turns.ending.last if not maker.options.append_eos else ""
    spans = (example.text[start:end] for start, end in example.trained)
    return all(span.endswith(usual) or _LAST_TOKEN.search(span) for span in spans)


def _list_begin_notes(examples: Sequence[Example], variables: Mapping[str, str]) -> list[str]:
    bos = variables.get("bos_token")
    if not bos or not examples or any(bos in example.text for example in examples):
        return []
    return [f"template: it writes no begin token ({bos}), and none is added"]


def _list_length_notes(
    maker: ExampleMaker, records: Sequence[Mapping[str, Any]], examples: Sequence[Example]
) -> Iterator[str]:
    """Note what the limit on length costs, in trained tokens of the sample."""
    max_tokens, count = maker.options.max_tokens, maker.count_tokens
    if max_tokens is None or count is None:
        return
    unlimited = maker.with_options(max_tokens=None)
    num_wanted = 0
    for record in records:
        try:
            num_wanted += sum(_count_trained(example, count, None) for example in unlimited.make(record).examples)
        except (NotAChat, MemoryError):
            continue
    num_kept = sum(_count_trained(example, count, max_tokens) for example in examples)
    if num_wanted:
        lost = max(0.0, 1 - num_kept / num_wanted)
        yield (
            f"template: with at most {max_tokens:,} tokens per chat, {lost:.1%} of the sample's trained tokens are "
            f"lost (too_long: {maker.options.too_long})"
        )


def _count_trained(example: Example, count: Callable[[str], int], max_tokens: int | None) -> int:
    """Count the trained tokens among the first `max_tokens` of an example, to which `cut` will cut it; None: all."""
    num_trained = 0
    for start, end in example.trained:
        num_before = count(example.text[:start]) if max_tokens is not None else 0
        num_tokens = count(example.text[start:end])
        num_trained += num_tokens if max_tokens is None else max(0, min(num_tokens, max_tokens - num_before))
    return num_trained


def _list_notes(
    maker: ExampleMaker,
    counters: Counter[str],
    count_tokens: Callable[[str], int] | None,
    records: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    finder, options = maker.usual_finder, maker.options
    token = finder.turns.ending.token
    if token and count_tokens is not None:
        num_tokens = count_tokens(token)
        yield f"template: answers end with {token!r} ({'one token' if num_tokens == 1 else f'{num_tokens} tokens'})"
    elif token:
        yield f"template: answers end with {token!r}"
    methods = ["{% generation %} tags" if finder.template.marks_generation else "sentinels"]
    if counters["found_by_prefixes"]:
        methods.append(f"prefixes for {counters['found_by_prefixes']} of {len(records)} sample records (slower)")
    yield f"template: answers are found by {', '.join(methods)}"
    if counters["split_turns"]:
        why = "answers are written after their prompts" if counters["prompted_answers"] else "it rewrites earlier turns"
        yield (
            f"template: {why}, so each answer becomes a separate example: "
            f"{counters['split_turns']} from the sample's records"
        )
    if counters["special_literals"]:
        yield f"template: {counters['special_literals']} special tokens written in sample records are encoded as text"
    if counters["answers_in_prompts"] and options.train_on in (TRAIN_AUTO, TRAIN_ASSISTANT):
        effect = (
            "are not trained, as in TRL; train_on: assistant trains them, too"
            if options.train_on == TRAIN_AUTO
            else "are trained; TRL trains only the completion, and so does train_on: auto"
        )
        yield f"template: {counters['answers_in_prompts']} answers inside the prompts of sample records {effect}"
    if counters["ignored_train_marks"] and options.train_on != TRAIN_MARKED:
        yield (
            f"template: {counters['ignored_train_marks']} sample answers with `train: false` or `weight: 0` are "
            "trained; train_on: marked uses the marks"
        )
    if counters["answer_left_out"]:
        yield f"template: it leaves out words of {counters['answer_left_out']} sample answers, as text next to calls"
    if counters["reasoning_left_out"]:
        yield f"template: it leaves out the reasoning of {counters['reasoning_left_out']} sample messages"
    if any(record.get("tools") for record in records) and "tools" not in maker.finder_with_tools.template.source:
        yield "template: records define tools, which the template does not write"


_SHOWN_CHARS = 40


class AnswerTally:
    """Counts the answers of a sample, those that are lost, and those for which the prompt differs."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._answers: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        """Marks that have no effect."""
        self.unused: Counter[str] = Counter()
        """Other fields that look like part of a chat, and have no effect."""
        self._shapes: Counter[tuple[str, ...]] = Counter()
        self._num_differing = 0
        self._first_differing: Mapping[str, Any] | None = None

    def add(self, record: Mapping[str, Any], rendered: RenderedRecord | None) -> None:
        """Count the answers of a record; `rendered` is None if it was refused."""
        try:
            conversation = self._maker.parse(record)
        except NotAChat:
            return
        if "several_shapes" in conversation.notes:
            self._shapes[tuple(list_shapes(record))] += 1
        self.unread.update(conversation.unread)
        fields = self._maker.options.fields.values()
        source = self._maker.choose_finder(conversation).template.source
        self.unused += count_unused(record, conversation, set(re.findall(r"\w+", source)), fields)
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
        if ignored := self.unread + self.unused:
            names = ", ".join(f"{name} ({count})" for name, count in ignored.most_common(8))
            yield f"template: fields of the sample that may be marks or part of the chat, and have no effect: {names}"
        for shapes, count in self._shapes.most_common():
            names = " and ".join(shapes)
            yield f"template: {count} sample records have {names}: {shapes[0]} is read; set `shape` to choose"
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
