"""What takes long to load (tokenizers, models), kept in a process under the hash of its content.

A worker runs one stage after another. What a later stage needs again stays loaded, and all else is freed
(`forget_content`). Of each kind only the last used are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    T = TypeVar("T")

TOKENIZER = "tokenizer"
"""The kind of tokenizers. Named here, so that they are freed without importing what loads them."""

_kinds: dict[str, dict[tuple[str, Hashable], Any]] = {}
"""By kind: what is loaded, the last used at the end, under its content and the form in which it was loaded."""


def load_once(kind: str, content: str, form: Hashable, load: Callable[[], T], *, max_kept: int) -> T:
    """Return what `load` loads; call it only if the same content is not there in the same form.

    >>> load_once("words", "2f1a", "upper", lambda: print("loading") or "WORDS", max_kept=1)
    loading
    'WORDS'
    >>> load_once("words", "2f1a", "upper", lambda: print("loading") or "WORDS", max_kept=1)
    'WORDS'
    >>> forget_content(["words"], needed=())
    """
    entries = _kinds.setdefault(kind, {})
    key = content, form
    value: T = entries.pop(key) if key in entries else load()
    entries[key] = value
    while len(entries) > max_kept:
        del entries[next(iter(entries))]
    return value


def forget_content(kinds: Collection[str] | None = None, *, needed: Collection[str]) -> None:
    """Free all that is loaded of these kinds, or of all, except for the content that is needed."""
    for kind in list(_kinds) if kinds is None else kinds:
        _kinds[kind] = {key: value for key, value in _kinds.get(kind, {}).items() if key[0] in needed}
