"""Checking a name against the names there are, with the nearest one in the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant.

    >>> find_nearest("proceses", ["serial", "threads", "processes"])
    'processes'
    """
    import difflib  # noqa: PLC0415  (only a mistake needs it)

    close = difflib.get_close_matches(name, list(known), n=1)
    return close[0] if close else None


def check_choice(what: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known."""
    names = list(known)
    if name in names:
        return
    meant = find_nearest(name, names) if isinstance(name, str) else None
    hint = f'did you mean "{meant}"?' if meant else None
    raise UsageError(f"{what} must be one of {join_names(names)}, not {name!r:.80}", help=hint)


def join_names(names: Iterable[str], most: int = 20) -> str:
    """Names for a message: the first ones, and how many more there are.

    >>> join_names("abc"), join_names("abcde", 2)
    ('a, b, c', 'a, b and 3 more')
    """
    known = list(names)
    more = len(known) - most
    return f"{', '.join(known[:most])} and {more:,} more" if more > 1 else ", ".join(known)
