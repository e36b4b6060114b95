"""Comparison of what a traced template makes of a record with what Jinja makes of it. A difference ends the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from gristmill.core.errors import ParityError
from gristmill.steps.render.example_rows import encode_example
from gristmill.text.chats import NotAChat
from gristmill.text.chats.answers.answer_start import find_common_length
from gristmill.text.chats.tracing.template_tracer import TRACE_HELP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gristmill.text.chats import ExampleMaker, RecordPlan, RenderedRecord

_SHOWN_CHARS = 200


def compare_filled(
    maker: ExampleMaker, chat: tuple[tuple[str, ...], list[str]], plan: RecordPlan, pieces: list[bytes]
) -> None:
    """Compare the example that a plan has filled in with the one that is made with Jinja.

    Raises:
        ParityError: They differ, in the text, its places or what is counted.
    """
    record = {"messages": [{"role": role, "content": content} for role, content in zip(*chat, strict=True)]}
    with maker.without_tracing():
        # `RecordPlans.fill` has found no special tokens in the contents.
        rendered = _describe(lambda: maker.make(record, may_hold_literals=False))
    *trained, last_answer = plan.find_places(pieces)
    example = (b"".join(pieces), trained, list[int](), last_answer, ())
    if rendered != ([example], list[str](), plan.counts):
        _raise_difference(repr(record), repr(rendered), repr(example))


def make_both_ways(maker: ExampleMaker, record: Mapping[str, Any], *, may_hold_literals: bool) -> RenderedRecord:
    """Make the examples of a record twice, traced and with Jinja, and compare them.

    Raises:
        NotAChat: The record is no chat, both ways.
        ParityError: The two differ.
    """

    def make() -> RenderedRecord:
        return maker.make(record, may_hold_literals=may_hold_literals)

    with maker.without_tracing():
        expected = _describe(make)
    traced = _describe(make)
    if traced != expected:
        _raise_difference(repr(record), repr(expected), repr(traced))
    return make()


def _describe(
    make: Callable[[], RenderedRecord],
) -> tuple[Sequence[object], list[str], list[tuple[str, int]]] | tuple[str, str]:
    """Describe what becomes of a record, so that it can be compared."""
    try:
        rendered = make()
        examples = [(*encode_example(example), example.images) for example in rendered.examples]
        return examples, rendered.dropped, rendered.counts
    except NotAChat as problem:
        return problem.reason, problem.message


def _raise_difference(record: str, expected: str, traced: str) -> NoReturn:
    start = max(0, find_common_length(expected, traced) - _SHOWN_CHARS // 4)
    raise ParityError(
        f"render: the traced template makes {traced[start : start + _SHOWN_CHARS]} of a record where Jinja makes "
        f"{expected[start : start + _SHOWN_CHARS]}; the record is {record:.1000}",
        help=TRACE_HELP,
    )
