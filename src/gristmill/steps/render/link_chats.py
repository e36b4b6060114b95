"""Links between the steps of chats: `render` gets its tokenizer and the longest row from the steps after it.

The plan calls `link_chat_steps` with the steps as the recipe has them, and `mark_tokenized_render` once they are
resolved. No other steps know of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.steps.render.render import Render, ResolvedRender
from gristmill.steps.render.render_prompts import RenderPrompts
from gristmill.steps.tokenize import Tokenize
from gristmill.steps.tokenize.tokenize import ResolvedTokenizeChats, to_chat_form
from gristmill.steps.write import Write
from gristmill.text.chats.options import CUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.step import Step


def link_chat_steps(steps: Sequence[Step], row_length: int | None) -> tuple[Step, ...]:
    """Link the `render` and `tokenize` of a source. `row_length` is that of packed rows, None without `pack`.

    Raises:
        UsageError: The steps around `render` would change the text, on which the loss mask depends.
    """
    renders = [(index, step) for index, step in enumerate(steps) if isinstance(step, Render)]
    if not renders:
        return tuple(steps)
    if len(renders) > 1:
        raise UsageError("render: chats can be rendered only once", help="leave out one of the two steps")
    [(render_index, render)] = renders
    if render.keep is not None:
        _check_kept_chats(render, steps[render_index + 1 :])
    tokenizes = [(index, step) for index, step in enumerate(steps) if isinstance(step, Tokenize)]
    if render.until is not None:
        if tokenizes:
            raise UsageError(
                "render: prompts are written as messages, which trainers tokenize when they sample answers",
                help="leave out tokenize and pack, or until; filter by the column num_tokens",
            )
        prompts = RenderPrompts(**msgspec.structs.asdict(render))
        return (*steps[:render_index], prompts, *steps[render_index + 1 :])
    if not tokenizes:
        if render.images is not None:
            raise UsageError(
                "render: images are kept next to rows of tokens", help="add a tokenize step, or remove images"
            )
        return tuple(steps)
    if render.preferences is not None and row_length is not None:
        raise UsageError(
            "pack: rows of preferences are not packed: each is a prompt with its answers",
            help='leave out pack; PairCollate(form="packed") packs them when batches are made',
        )
    tokenize_index, tokenize = tokenizes[0]
    changing = [step.name for step in steps[render_index + 1 : tokenize_index] if not step.preserves_text]
    if tokenize_index < render_index or changing:
        problem = f"{changing[0]} cannot be between them" if changing else "it comes before render"
        misplaced = f"put {changing[0]} before render" if changing else "put tokenize after render"
        raise UsageError(
            "render: tokenize must follow with nothing between that changes the text, on which the loss mask depends: "
            f"{problem}",
            help=f"{misplaced}, or leave out tokenize to write the text",
        )
    if render.images is not None and tokenize.special_tokens_in_text == "token":
        raise UsageError(
            "render: with images, special tokens that someone wrote cannot be tokens: they would stand for images",
            help="leave special_tokens_in_text out, or set it to reject",
        )
    max_tokens = render.max_tokens if render.max_tokens is not None else row_length
    linked = list(steps)
    linked[render_index] = msgspec.structs.replace(
        render, tokenizer=render.tokenizer or tokenize.tokenizer, max_tokens=max_tokens
    )
    linked[tokenize_index] = to_chat_form(tokenize, max_tokens, cuts=render.too_long == CUT)
    return tuple(linked)


def _check_kept_chats(render: Render, following: Sequence[Step]) -> None:
    """Refuse steps that would change the text: the chat is written as it was read, and would not change with it."""
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
    """Tell a resolved `render` that `tokenize` follows, so that it makes what `tokenize` needs; and the other way."""
    if not any(isinstance(step, ResolvedTokenizeChats) for step in steps):
        return tuple(steps)
    rules = [step.image_rule for step in steps if isinstance(step, ResolvedRender)]
    image_token = next((rule.token for rule in rules if rule is not None), None)
    has_preferences = any(isinstance(step, ResolvedRender) and step.preferences is not None for step in steps)
    linked = list(steps)
    for index, step in enumerate(steps):
        if isinstance(step, ResolvedRender):
            linked[index] = msgspec.structs.replace(step, is_tokenized=True)
        elif isinstance(step, ResolvedTokenizeChats):
            linked[index] = msgspec.structs.replace(step, image_token=image_token, has_preferences=has_preferences)
    return tuple(linked)
