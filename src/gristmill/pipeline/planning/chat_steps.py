"""Chats on their way to tokens: `render` learns its tokenizer and the length of rows from the steps behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.steps.render import Render, ResolvedRender
from gristmill.steps.tokenize import Tokenize
from gristmill.steps.tokenize.tokenize_chats import ResolvedTokenizeChats, to_chat_form
from gristmill.steps.write import Write
from gristmill.text.chats import CUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.step import Step
    from gristmill.steps.pack.pack import Pack


def link_chat_steps(steps: Sequence[Step], pack: Pack | None) -> tuple[Step, ...]:
    """The steps of a source, as its recipe has them, with those of its chats told of each other."""
    place = next((index for index, step in enumerate(steps) if isinstance(step, Render)), None)
    if place is None:
        return tuple(steps)
    if any(isinstance(step, Render) for step in steps[place + 1 :]):
        raise UsageError("render: chats can be rendered only once", help="leave out one of the two steps")
    found = next((index for index, step in enumerate(steps) if isinstance(step, Tokenize)), None)
    render, connected_steps = steps[place], list(steps)
    assert isinstance(render, Render)
    if render.keep is not None:
        _check_kept_chats(render, steps[place + 1 :])
    if found is None:
        return tuple(steps)
    changing = [step.name for step in steps[place + 1 : found] if not step.preserves_text]
    if found < place or changing:
        between = f"{changing[0]} cannot stand between them" if changing else "it stands before"
        raise UsageError(
            f"render: tokenize must follow with nothing that changes the text, on which the loss mask hangs: {between}",
            help="put it before render, or leave out tokenize to write the text",
        )
    tokenize = steps[found]
    assert isinstance(tokenize, Tokenize)
    max_tokens = render.max_tokens if render.max_tokens is not None or pack is None else pack.row_length
    connected_steps[place] = msgspec.structs.replace(
        render, tokenizer=render.tokenizer or tokenize.tokenizer, max_tokens=max_tokens
    )
    connected_steps[found] = to_chat_form(tokenize, max_tokens, cuts=render.too_long == CUT)
    return tuple(connected_steps)


def _check_kept_chats(render: Render, following: Sequence[Step]) -> None:
    """What is written is the chat as it was read, so nothing may change it behind its text's back."""
    for step in following:
        if isinstance(step, Tokenize):
            raise UsageError(
                f"render: keep: {render.keep} is for chats to be written as chats, but tokenize makes tokens of them",
                help="leave out keep, or tokenize",
            )
        if not step.preserves_text and not isinstance(step, Write):
            raise UsageError(
                f"render: with keep: {render.keep} only steps that drop or order chats may follow, not {step.name}",
                help="put it before render",
            )


def mark_tokenized_render(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Resolved steps, `render` giving what `tokenize` takes."""
    has_tokens = any(isinstance(step, ResolvedTokenizeChats) for step in steps)
    return tuple(
        msgspec.structs.replace(step, is_tokenized=True) if has_tokens and isinstance(step, ResolvedRender) else step
        for step in steps
    )


def has_rendered_text(steps: Sequence[Step]) -> bool:
    """Whether records need no text of their own, because they are chats."""
    return any(isinstance(step, ResolvedRender) for step in steps)


def has_opened_chats(steps: Sequence[Step]) -> bool:
    """Whether chats become texts that are written, so that nothing is left of their records but columns."""
    return any(isinstance(step, ResolvedRender) and not step.keeps_chat for step in steps)
