"""A recording of one rendering: what was computed from the texts of a record, and what was asked of them.

The template runs on a real record whose texts are opaque values. Each operation becomes a node with its real value:

    template    {% if '</think>' in message.content %}…{% endif %}{{ message.content|trim }}
    nodes       0: leaf 0    1: contains(0, '</think>')    2: strip(0)
    guards      node 1 is False
    output      node 2

Any record with the same answers to the same questions takes the same way through the template, so the same output nodes
give its text. A node is kept once, however often it is used, so a template that doubles a text fifty times makes fifty
nodes.

Opaque values are not `str`. Code in C that wants a text (`'abc'.startswith(c)`, `'-'.join`, `%`, `json`) fails on them
instead of reading them, and failing means that the template runs as usual. What is understood is recorded; everything
else that Python can do with an object gives up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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
"""Operations other than methods: their source, in which no text of a template or a record occurs, and their meaning."""


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


_REFUSED = (
    *("__str__", "__repr__", "__format__", "__bytes__", "__hash__", "__len__", "__iter__", "__reversed__"),
    *("__contains__", "__getitem__", "__int__", "__float__", "__index__", "__complex__", "__round__", "__call__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__neg__", "__pos__", "__invert__"),
    *("__add__", "__sub__", "__mul__", "__mod__", "__truediv__", "__floordiv__", "__pow__", "__and__", "__or__"),
    *("__radd__", "__rsub__", "__rmul__", "__rmod__", "__rtruediv__", "__rfloordiv__", "__rpow__"),
    *("__reduce__", "__reduce_ex__", "__fspath__", "__enter__", "__next__", "__await__", "__html__"),
)


def _refuse(name: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise GiveUp(name)

    return refuse


class Opaque:
    """A value that only its recording knows."""

    __slots__ = ("number", "recording")

    def __init__(self, recording: Recording, number: int) -> None:
        self.recording = recording
        self.number = number


for _name in _REFUSED:
    setattr(Opaque, _name, _refuse(_name))


class OpaqueText(Opaque):
    """A text of the record, or one that the template has made of it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self.recording.ask("is_true", (self.number,)))

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call one of the methods that are understood."""
        constants = tuple(arguments)
        if not all(map(_is_constant, constants)):
            raise GiveUp(method)
        if method in TO_ANSWER:
            return self.recording.ask(method, (self.number,), constants)
        number = self.recording.add(method, (self.number,), constants)
        if method in TO_NUMBER:
            return OpaqueNumber(self.recording, number)
        return (OpaqueList if method in TO_LIST else OpaqueText)(self.recording, number)

    def cut(self, start: Any, stop: Any, step: Any) -> OpaqueText:
        """Return the text between two positions."""
        return OpaqueText(self.recording, _add_slice(self, start, stop, step))

    def get(self, index: int) -> OpaqueText | None:
        """Return one character; None if there is none."""
        return OpaqueText(self.recording, _add_item(self, index)) if _has_item(self, index) else None

    def length(self) -> OpaqueNumber:
        """Return the number of characters."""
        return OpaqueNumber(self.recording, self.recording.add("length", (self.number,)))

    def quote(self, *, ensure_ascii: bool) -> OpaqueText:
        """Return the text as JSON."""
        return OpaqueText(self.recording, self.recording.add("quote", (self.number,), (ensure_ascii,)))


class OpaqueNumber(Opaque):
    """A length or a position."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return not self.recording.ask("eq", (self.number,), (0,))

    def compare(self, operator: str, other: int) -> bool:
        """Compare with a constant: eq, ne, lt, lteq, gt or gteq."""
        if operator in ("ne", "gt", "gteq"):
            opposite = {"ne": "eq", "gt": "lteq", "gteq": "lt"}[operator]
            return not self.recording.ask(opposite, (self.number,), (other,))
        return bool(self.recording.ask(operator, (self.number,), (other,)))

    def to_text(self) -> OpaqueText:
        """Return the digits of the number."""
        return OpaqueText(self.recording, self.recording.add("text_of", (self.number,)))


class OpaqueList(Opaque):
    """The parts of a text that was split."""

    __slots__ = ()

    def __len__(self) -> int:
        return int(self.recording.ask("length", (self.number,)))

    def __bool__(self) -> bool:
        return bool(len(self))

    def __iter__(self) -> Iterator[OpaqueText]:
        return iter([OpaqueText(self.recording, _add_item(self, index)) for index in range(len(self))])

    def __reversed__(self) -> Iterator[OpaqueText]:
        return reversed(list(self))

    def get(self, index: int) -> OpaqueText | None:
        """Return one part; None if there is none."""
        return OpaqueText(self.recording, _add_item(self, index)) if _has_item(self, index) else None

    def cut(self, start: Any, stop: Any, step: Any) -> OpaqueList:
        """Return some of the parts."""
        return OpaqueList(self.recording, _add_slice(self, start, stop, step))

    def length(self) -> OpaqueNumber:
        """Return the number of parts."""
        return OpaqueNumber(self.recording, self.recording.add("length", (self.number,)))

    def join(self, separator: str) -> OpaqueText:
        """Join the parts to one text."""
        return OpaqueText(self.recording, self.recording.add("join_list", (self.number,), (separator,)))


class OpaqueMethod(Opaque):
    """A method of an opaque text that has not been called yet."""

    __slots__ = ("method", "text")

    def __init__(self, text: OpaqueText, method: str) -> None:
        super().__init__(text.recording, text.number)
        self.text = text
        self.method = method

    def call(self, arguments: Sequence[Any]) -> Any:
        """Call the method with arguments."""
        return self.text.call(self.method, arguments)


class OrderlessDict(dict[str, Any]):
    """A message whose keys have no order: whoever looks at it gives up."""

    __iter__ = keys = values = items = __reversed__ = __or__ = __ror__ = copy = _refuse("order of keys")


def join_texts(recording: Recording, parts: Sequence[str | OpaqueText]) -> str | OpaqueText:
    """Join texts, of which some are opaque."""
    if all(type(part) is str for part in parts):
        return "".join(parts)  # type: ignore[arg-type]
    operands: list[int] = []
    for part in parts:
        if isinstance(part, OpaqueText):
            operation, inner, _ = recording.nodes[part.number]
            operands += inner if operation == "join" else (part.number,)
        elif part:
            operands.append(recording.add(CONSTANT, (), (part,)))
    return OpaqueText(recording, recording.add("join", tuple(operands)))


def find_number(recording: Recording, text: str | OpaqueText) -> int:
    """Find the node of a text, opaque or constant."""
    return text.number if isinstance(text, OpaqueText) else recording.add(CONSTANT, (), (text,))


def _is_constant(value: object) -> bool:
    if type(value) is tuple:
        return all(type(inner) is str for inner in value)
    return type(value) in (str, int)


def _add_slice(value: Opaque, *borders: Any) -> int:
    if any(border is not None and type(border) is not int for border in borders):
        raise GiveUp("slice")
    return value.recording.add("slice", (value.number,), borders)


def _has_item(value: OpaqueText | OpaqueList, index: int) -> bool:
    if type(index) is not int:
        raise GiveUp("item")
    operation, _, constants = value.recording.nodes[value.number]
    if operation in ("split", "rsplit") and constants and index in (0, -1):
        return True  # a text split at a separator has at least one part
    return value.length().compare("gt", index) if index >= 0 else value.length().compare("gteq", -index)


def _add_item(value: Opaque, index: int) -> int:
    return value.recording.add("item", (value.number,), (index,))
