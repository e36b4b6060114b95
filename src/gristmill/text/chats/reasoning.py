"""Reasoning in answers: where a record keeps it, and the tags with which prompts and templates surround it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INLINE = re.compile(r"\s*<(\w{1,40})>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"([<\[])(\|?)([^<>\[\]|]*)(\|?)([>\]])\s*\Z")
_NAMES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("open", "close"))


def reasoning_of(message: Mapping[str, Any]) -> str:
    r"""What an answer says before it answers, in a field of its own or in tags at the start of its content.

    >>> reasoning_of({"content": "<think>\nTwo and two.\n</think>\n\n4"})
    'Two and two.'
    """
    reasoning = message.get("reasoning_content")
    if reasoning:
        return str(reasoning).strip()
    content = message.get("content")
    inline = _INLINE.match(content) if isinstance(content, str) else None
    return inline.group(2).strip() if inline else ""


def open_tag(prompt: str, template_source: str) -> tuple[str, str] | None:
    r"""The tag that a prompt ends with, so that the model goes on inside of it, and the tag that closes it.

    >>> open_tag("<|im_start|>assistant\n<think>\n", "… </think> …")
    ('<think>', '</think>')
    >>> open_tag("<|im_start|>assistant\n<think>\n\n</think>\n\n", "… </think> …")
    """
    found = _TAG.search(prompt, max(0, len(prompt) - 100))
    if found is None:
        return None
    tag = found.group().rstrip()
    close = next((name for name in _closing_tags(found) if name != tag and name in template_source), None)
    if close is None:
        return None
    return tag, close


def _closing_tags(tag: re.Match[str]) -> Iterator[str]:
    """Names that the tag which closes this one may have."""
    whole = tag.group().rstrip()
    first, bar, name, last_bar, last = tag.groups()
    if name.startswith("/"):  # it closes one itself
        return
    yield f"{first}/{bar}{name}{last_bar}{last}"
    yield f"{first}{bar}/{name}{last_bar}{last}"
    yield from (whole.replace(begin, end) for begin, end in _NAMES if begin in name)
    yield from (f"{first}{bar}{prefix}{name}{last_bar}{last}" for prefix in ("end_", "end_of_", "end▁of▁"))
    if bar and not last_bar:  # <|channel> … <channel|>
        yield f"{first}{name}|{last}"
