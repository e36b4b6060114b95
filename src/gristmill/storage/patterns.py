"""Path patterns: `*`, `**`, `?`, `[..]` as in a shell, and braces: lists `{a,b}` and ranges `{0000..0099}`.

A pattern is matched one path component at a time while folders are listed, so that each folder is listed once and
folders that cannot match are not entered. Cost: one regular expression a name.
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_NAMES = 10_000_000
"""The largest number of names of a pattern; a larger range is probably a typing error."""

_MAX_CHOICES = 8
"""The largest number of names in braces that a suggested pattern has."""
_WILD = re.compile(r"[*?\[]")
_BRACE = re.compile(r"[{}]")
_BRACE_OR_COMMA = re.compile(r"[{},]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_wild(text: str) -> bool:
    """Whether the text contains a wildcard (braces are none)."""
    return _WILD.search(text) is not None


def has_range(text: str) -> bool:
    """Whether the text contains a range of numbers, such as `{0000..0099}`."""
    return re.search(r"\{\d+\.\.\d+\}", text) is not None


def find_fixed_folder(pattern: str) -> str:
    """Return the folder that a pattern starts with, up to the last slash before any wildcard.

    >>> find_fixed_folder("data/web/part-*.jsonl"), find_fixed_folder("data/{a,b}/x"), find_fixed_folder("*.txt")
    ('data/web/', 'data/', '')
    """
    first = re.search(r"[*?\[{]", pattern)
    head = pattern if first is None else pattern[: first.start()]
    return head[: head.rfind("/") + 1]


def expand_braces(pattern: str) -> list[str]:
    """Expand the braces of a pattern, in order.

    >>> expand_braces("{a,b}-{08..10}.txt")
    ['a-08.txt', 'a-09.txt', 'a-10.txt', 'b-08.txt', 'b-09.txt', 'b-10.txt']
    """
    choices: list[list[str]] = []
    num_names = 1
    position = 0
    while (start := pattern.find("{", position)) >= 0 and (stop := _find_closing_brace(pattern, start)) >= 0:
        choices.append([pattern[position:start]])
        alternatives = _list_alternatives(pattern, pattern[start + 1 : stop])
        num_names *= len(alternatives)
        _check_number(pattern, num_names)
        choices.append(alternatives)
        position = stop + 1
    return ["".join(parts) for parts in product(*choices, [pattern[position:]])]


def find_narrower_pattern(names: Sequence[str], unwanted: Sequence[str]) -> str | None:
    """Find a short pattern that matches all of these relative paths and none of the unwanted; None if none is known.

    >>> find_narrower_pattern(["c1.jsonl", "c2.jsonl"], ["c1.jsonl.pairs.jsonl"])
    'c?.jsonl'
    >>> find_narrower_pattern([f"c{n}.jsonl" for n in range(1, 13)], ["c1.jsonl.pairs.jsonl"])
    'c{1..12}.jsonl'
    >>> find_narrower_pattern(["web/a.jsonl", "web/b/c.jsonl", "code/d.jsonl"], ["logs/a.jsonl"])
    '{code,web}/**'
    """
    if any(is_wild(name) or _BRACE_OR_COMMA.search(name) for name in names):
        return None
    shared = os.path.commonpath([os.path.dirname(name) for name in names])  # noqa: PTH120  (names of stores, too)
    head = f"{shared}/" if shared else ""
    tails = sorted({name[len(head) :] for name in names})
    folders = sorted({tail.partition("/")[0] for tail in tails})
    below = f"{head}**/" if any("/" in tail for tail in tails) else head
    bases = sorted({os.path.basename(name) for name in names}, key=lambda base: (len(base), base))  # noqa: PTH119
    start = os.path.commonprefix(bases)  # noqa: RUF071  (characters are meant, here and below)
    end = os.path.commonprefix([base[len(start) :][::-1] for base in bases])[::-1]  # noqa: RUF071
    middles = [base[len(start) : len(base) - len(end)] for base in bases]
    candidates = [f"{below}{start}*{end}", f"{below}{start}{'?' * len(middles[0])}{end}"]
    if below == head and all(middle.isdecimal() for middle in middles):
        candidates.append(f"{head}{start}{{{middles[0]}..{middles[-1]}}}{end}")
    if len(bases) <= _MAX_CHOICES:
        candidates.append(f"{below}{start}{{{','.join(middles)}}}{end}")
    if below != head and len(folders) <= _MAX_CHOICES:
        candidates.append(f"{head}{{{','.join(folders)}}}/**")
    return next((candidate for candidate in candidates if _separates(candidate, names, unwanted)), None)


def _separates(candidate: str, names: Sequence[str], unwanted: Sequence[str]) -> bool:
    """Whether a pattern matches all names, and none of the unwanted."""
    expanded = expand_braces(candidate)
    if not is_wild(candidate):
        return set(expanded) == set(names)
    patterns = [PathPattern.below(pattern) for pattern in expanded]

    def matches(name: str) -> bool:
        return any(pattern.matches(name.split("/")) for pattern in patterns)

    return all(map(matches, names)) and not any(map(matches, unwanted))


def _list_alternatives(pattern: str, inside: str) -> list[str]:
    if match := _RANGE.fullmatch(inside):
        first, last = match.groups()
        start, stop = int(first), int(last)
        _check_number(pattern, abs(stop - start) + 1)
        # {08..10} means 08, 09, 10: one leading zero fixes the width, as in bash.
        padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
        width = max(len(first), len(last)) if padded else 0
        direction = 1 if stop >= start else -1
        return [f"{number:0{width}d}" for number in range(start, stop + direction, direction)]
    pieces = _split_at_commas(inside)
    if len(pieces) == 1:
        return [f"{{{inside}}}"]  # {x} is not a list: the braces are part of the name
    return [name for piece in pieces for name in (expand_braces(piece) if "{" in piece else (piece,))]


def _find_closing_brace(pattern: str, start: int) -> int:
    """Return the position of the brace that closes the one at `start`; -1 if there is none."""
    depth = 0
    for brace in _BRACE.finditer(pattern, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    return -1


def _split_at_commas(inside: str) -> list[str]:
    if "{" not in inside and "}" not in inside:
        return inside.split(",")
    pieces, depth, start = [], 0, 0
    for mark in _BRACE_OR_COMMA.finditer(inside):
        depth += {"{": 1, "}": -1, ",": 0}[mark.group()]
        if mark.group() == "," and depth == 0:
            pieces.append(inside[start : mark.start()])
            start = mark.end()
    return [*pieces, inside[start:]]


def _check_number(pattern: str, num_names: int) -> None:
    if num_names > MAX_NAMES:
        raise UsageError(
            f"{pattern} expands to more than {MAX_NAMES:,} names", help="check the range in braces, or use `*` instead"
        )


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern below a folder, as a small automaton over path components.

    >>> pattern = PathPattern.below("**/part-*.txt")
    >>> pattern.matches(["a", "b", "part-1.txt"]), pattern.matches(["part-1.json"])
    (True, False)
    """

    parts: tuple[re.Pattern[str] | None, ...]
    """One regular expression for each component. None is `**`: any number of folders, or at the end all files below."""
    excluded_prefixes: tuple[str, ...]
    """Prefixes of names that `**` does not match."""

    @classmethod
    def below(cls, pattern: str) -> PathPattern:
        """Create a pattern that is relative to a folder."""
        names = [name for name in pattern.split("/") if name not in ("", ".")]
        # As in a shell, `*` does not match hidden names; `.*` does.
        hidden = {name: "" if name.startswith(".") else r"(?!\.)" for name in names}
        parts = (None if name == "**" else re.compile(hidden[name] + fnmatch.translate(name)) for name in names)
        return cls(tuple(parts), excluded_prefixes=(".",))

    @classmethod
    def everything(cls) -> PathPattern:
        """Create a pattern for all files below a folder, except hidden ones and those that start with `_`."""
        return cls((None,), excluded_prefixes=(".", "_"))

    def start(self) -> frozenset[int]:
        """Return the states before the first component."""
        return self._skip_empty_globs({0})

    def step(self, states: frozenset[int], name: str) -> tuple[frozenset[int], bool]:
        """Advance by one name. Return the states below it if it is a folder, and whether it matches if it is a file."""
        below: set[int] = set()
        matched = False
        last = len(self.parts) - 1
        for state in states:
            part = self.parts[state]
            if part is None:
                if not name.startswith(self.excluded_prefixes):
                    below.add(state)
                    matched = matched or state == last
            elif part.match(name):
                if state == last:
                    matched = True
                else:
                    below.add(state + 1)
        return (self._skip_empty_globs(below) if below else frozenset()), matched

    def matches(self, names: list[str]) -> bool:
        """Whether a path, as a list of its components, matches."""
        states = self.start()
        for name in names[:-1]:
            states, _ = self.step(states, name)
        return bool(states) and self.step(states, names[-1])[1]

    def _skip_empty_globs(self, states: set[int]) -> frozenset[int]:
        """Add the states after each `**`, which may match no folder at all."""
        for state in sorted(states):
            following = state
            while following < len(self.parts) - 1 and self.parts[following] is None:
                following += 1
                states.add(following)
        return frozenset(states)
