"""Reasoning in answers: where a record keeps it, and the tags with which prompts and templates surround it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INLINE = re.compile(r"\s*([<\[])([\w:]{1,40})([>\]])(.*?)\1/\2\3", re.DOTALL)
_THOUGHT = re.compile(r"think|thought|reason|reflect|scratch|monologue|analysis", re.IGNORECASE)
"""In the names of tags around reasoning. Answers begin with other tags, too: `<b>`, `<answer>`."""
_TAG = re.compile(r"([<\[])(\|?)([^<>\[\]|]*)(\|?)([>\]])\s*\Z")
_NAMES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("open", "close"))


def find_reasoning(message: Mapping[str, Any]) -> str:
    r"""Find the reasoning of an answer, in a field of its own or in tags at the start of its content; empty: none.

    >>> find_reasoning({"content": "<think>\nTwo and two.\n</think>\n\n4"})
    'Two and two.'
    >>> find_reasoning({"content": "<b>4</b>, of course"})
    ''
    """
    reasoning = message.get("reasoning_content")
    if reasoning:
        return str(reasoning).strip()
    inline = _find_inline(message)
    return inline.group(4).strip() if inline else ""


def find_written_thought(message: Mapping[str, Any]) -> str:
    r"""Find reasoning at the start of the content as it is written there, with its tags and the space behind them.

    >>> find_written_thought({"content": "<think>Two and two.</think>\n4"})
    '<think>Two and two.</think>\n'
    """
    inline = _find_inline(message)
    if inline is None:
        return ""
    behind = inline.string[inline.end() :]
    return inline.group().lstrip() + behind[: len(behind) - len(behind.lstrip())]


def _find_inline(message: Mapping[str, Any]) -> re.Match[str] | None:
    content = message.get("content")
    inline = _INLINE.match(content) if isinstance(content, str) else None
    return inline if inline and _THOUGHT.search(inline.group(2)) else None


def find_open_tag(prompt: str, template_source: str, end_of_turn: str) -> tuple[str, str] | None:
    r"""Find the tag that a prompt ends with, inside of which the model continues, and the tag that closes it.

    A template need not contain the closing tag of a thought: some write `<think>` into the prompt and no more. A tag
    that is closed by the end of the turn holds the whole answer; it counts as none.

    >>> find_open_tag("<|im_start|>assistant\n<think>\n", "… </think> …", "<|im_end|>")
    ('<think>', '</think>')
    >>> find_open_tag("<|im_start|>assistant\n<think>\n\n</think>\n\n", "… </think> …", "<|im_end|>")
    >>> find_open_tag("<assistant>", "… </assistant> …", "</assistant>")
    """
    match = _TAG.search(prompt, max(0, len(prompt) - 100))
    if match is None:
        return None
    tag = match.group().rstrip()
    names = [name for name in _list_closing_tags(match) if name != tag]
    closing = [name for name in names if name in template_source]
    if not closing and _THOUGHT.search(tag):
        closing = names[:1]
    return (tag, closing[0]) if closing and closing[0] not in end_of_turn else None


def has_closed_thought(prompt: str) -> bool:
    r"""Tell whether a prompt ends with a finished thought, so that the model answers directly.

    >>> has_closed_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"), has_closed_thought("<|assistant|>")
    (True, False)
    """
    match = _TAG.search(prompt, max(0, len(prompt) - 100))
    if match is None:
        return False
    _, bar, name, last_bar, _ = match.groups()
    is_end = name.startswith(("/", "END", "end")) or (last_bar and not bar)
    return bool(is_end and _THOUGHT.search(prompt, max(0, len(prompt) - 100)))


def _list_closing_tags(tag: re.Match[str]) -> Iterator[str]:
    """List what the tag that closes this one may look like."""
    whole = tag.group().rstrip()
    first, bar, name, last_bar, last = tag.groups()
    if name.startswith("/"):  # it closes one itself
        return
    yield from (whole.replace(begin, end) for begin, end in _NAMES if begin in name)
    yield f"{first}{bar}/{name}{last_bar}{last}"
    yield f"{first}/{bar}{name}{last_bar}{last}"
    yield from (f"{first}{bar}{prefix}{name}{last_bar}{last}" for prefix in ("end_", "end_of_", "end▁of▁"))
    if bar and not last_bar:  # <|channel> … <channel|>
        yield f"{first}{name}|{last}"
