"""A recording of one rendering: what was computed from the texts of a record, and what was asked of them.

The template runs on a real record whose texts are opaque values. Each operation becomes a node with its real value:

    template    {% if '</think>' in message.content %}…{% endif %}{{ message.content|trim }}
    nodes       0: leaf 0    1: contains(0, '</think>')    2: strip(0)
    guards      node 1 is False
    output      node 2

Any record with the same answers to the same questions takes the same way through the template, so the same output nodes
give its text. A node is kept once, whatever the number of its uses, so a template that doubles a text fifty times
makes fifty nodes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_NODES = 20_000
MAX_PARTS = 1_000
"""The most texts that are joined to one."""
MAX_OPERATIONS = 100_000
MAX_CHARS = 32 << 20
"""The most characters of all values that a recording keeps."""

Node = tuple[str, tuple[int, ...], tuple[Any, ...]]
"""The name of an operation, the numbers of the nodes that it is computed from, and its constants."""

LEAF, CONSTANT = "leaf", "constant"

TO_TEXT = frozenset(
    (
        "strip",
        "lstrip",
        "rstrip",
        "replace",
        "removeprefix",
        "removesuffix",
        "upper",
        "lower",
        "title",
        "capitalize",
        "casefold",
        "swapcase",
    )
)
TO_ANSWER = frozenset(
    (
        "startswith",
        "endswith",
        "isspace",
        "isdigit",
        "isdecimal",
        "isnumeric",
        "isalpha",
        "isalnum",
        "isupper",
        "islower",
    )
)
TO_NUMBER = frozenset(("find", "rfind", "count"))
TO_LIST = frozenset(("split", "rsplit", "splitlines", "partition", "rpartition"))
METHODS = TO_TEXT | TO_ANSWER | TO_NUMBER | TO_LIST
"""Methods of text that are understood: pure functions of the text and constants."""


def quote_json(text: str, ensure_ascii: bool) -> str:  # noqa: FBT001  (called from generated code by position)
    """Write a text as JSON, as the filter `tojson` does."""
    return json.dumps(text, ensure_ascii=ensure_ascii)


OPERATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "join": ("''.join(({operands},))", lambda *parts: "".join(parts)),
    "slice": ("{0}[{k0}:{k1}:{k2}]", lambda value, start, stop, step: value[start:stop:step]),
    "item": ("{0}[{k0}]", lambda value, index: value[index]),
    "join_list": ("{k0}.join({0})", lambda value, separator: separator.join(value)),
    "quote": ("quote_json({0}, {k0})", quote_json),
    "text_of": ("str({0})", str),
    "length": ("len({0})", len),
    "is_true": ("({0} != '')", lambda value: value != ""),
    "equals": ("({0} == {1})", lambda first, second: first == second),
    "contains": ("({1} in {0})", lambda text, part: part in text),
    "eq": ("({0} == {k0})", lambda number, other: number == other),
    "lt": ("({0} < {k0})", lambda number, other: number < other),
    "lteq": ("({0} <= {k0})", lambda number, other: number <= other),
}
"""Operations beside the methods: their source, in which no text of a template or a record occurs, and their meaning."""


class GiveUp(BaseException):
    """The template did something with a text that is not understood. Not an `Exception`: no filter may catch it."""


class Recording:
    """The nodes and guards of one rendering."""

    def __init__(self, leaves: Sequence[str]) -> None:
        self.nodes: list[Node] = []
        self.guards: list[tuple[int, Any]] = []
        """Nodes of questions, and their answers, in the order in which they were asked."""
        self.is_blind = False
        """Whether the template may not know the number of messages."""
        self._values: list[Any] = []
        self._numbers: dict[Node, int] = {}
        self._asked: set[int] = set()
        self._leaves = leaves
        self._num_operations = 0
        self._num_chars = 0

    def count_operation(self) -> None:
        """Count one operation of the template; gives up after too many."""
        self._num_operations += 1
        if self._num_operations > MAX_OPERATIONS:
            raise GiveUp("too many operations")

    def add(self, operation: str, operands: tuple[int, ...] = (), constants: tuple[Any, ...] = ()) -> int:
        """Add the node of an operation, unless it is known; returns its number."""
        node = (operation, operands, constants)
        number = self._numbers.get(node)
        if number is None:
            if len(self.nodes) >= MAX_NODES or len(operands) > MAX_PARTS:
                raise GiveUp("too many values")
            value = self._compute(operation, operands, constants)
            if operation != LEAF and isinstance(value, str):
                self._num_chars += len(value)
            if self._num_chars > MAX_CHARS:
                raise GiveUp("too much text")
            self._values.append(value)
            number = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def ask(self, operation: str, operands: tuple[int, ...], constants: tuple[Any, ...] = ()) -> Any:
        """Ask a question: the answer becomes a guard, once."""
        number = self.add(operation, operands, constants)
        answer = self._values[number]
        if number not in self._asked:
            self._asked.add(number)
            self.guards.append((number, answer))
        return answer

    def _compute(self, operation: str, operands: tuple[int, ...], constants: tuple[Any, ...]) -> Any:
        if operation == LEAF:
            return self._leaves[constants[0]]
        if operation == CONSTANT:
            return constants[0]
        values = [self._values[operand] for operand in operands]
        if operation in METHODS:
            return getattr(str, operation)(*values, *constants)
        return OPERATIONS[operation][1](*values, *constants)
