"""Answers that a template marks itself: `{% generation %}` … `{% endgeneration %}` around what the model writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill.text.chats.jinja_environment import GENERATION_END, GENERATION_START

if TYPE_CHECKING:
    from gristmill.text.chats.answers.template_facts import Ending
    from gristmill.text.chats.jinja import ChatTemplate
    from gristmill.text.chats.shapes import Conversation

_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")


def find_tagged_spans(template: ChatTemplate, conversation: Conversation, text: str) -> list[tuple[int, int]] | None:
    """Find the spans that the template marks; None if the marks change what it writes.

    The template is rendered once more with a mark for each tag. Without the marks that must be the real rendering.
    """
    marked = template.render_marked(conversation.messages, conversation.tools, conversation.variables)
    if _MARK.sub("", marked) != text:
        return None
    spans, start = [], None
    for number, mark in enumerate(_MARK.finditer(marked)):
        position = mark.start() - number  # the marks before it are not in the text
        if mark.group() == GENERATION_START:
            start = position
        elif start is not None:
            spans.append((start, position))
            start = None
    return spans


def find_tagged_end(text: str, start: int, end: int, ending: Ending) -> tuple[int, int]:
    """Find where the content of a tagged span ends, and where its end of turn does.

    Tags may include the end of turn, a part of it, or leave it out. With the token `<|end|>` the content ends behind
    `4` in all of `4<|end|>]`, `4<|]end|>` and `4]<|end|>`, where `]` is the end of the span.
    """
    inside = text[start:end].rstrip()
    inside_end = start + len(inside)
    for token in (ending.token, ending.last):
        for length in range(len(token), 0, -1):
            if inside.endswith(token[:length]) and text.startswith(token[length:], inside_end):
                return inside_end - length, inside_end - length + len(token)
        if token and text.startswith(token, end):
            return end, end + len(token)
    return end, end
