"""Checks of names against the valid ones, with the nearest one in the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def find_nearest(name: str, valid_names: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant, or None.

    >>> find_nearest("proceses", ["serial", "threads", "processes"])
    'processes'
    """
    import difflib  # noqa: PLC0415  (only needed after a mistake)

    matches = difflib.get_close_matches(name, list(valid_names), n=1)
    return matches[0] if matches else None


def check_choice(key: str, name: object, valid_names: Iterable[str]) -> None:
    """Raise `UsageError` unless the name, the value of the option or recipe key `key`, is valid."""
    names = list(valid_names)
    if name in names:
        return
    suggestion = find_nearest(name, names) if isinstance(name, str) else None
    hint = f'did you mean "{suggestion}"?' if suggestion else None
    raise UsageError(f"{key} must be one of {join_names(names)}, not {name!r:.80}", help=hint)


def join_names(names: Iterable[str], max_names: int = 20) -> str:
    """Join names for a message: the first ones, and the number of the rest.

    >>> join_names("abc"), join_names("abcde", 2)
    ('a, b, c', 'a, b and 3 more')
    """
    all_names = list(names)
    num_more = len(all_names) - max_names
    return f"{', '.join(all_names[:max_names])} and {num_more:,} more" if num_more > 1 else ", ".join(all_names)
