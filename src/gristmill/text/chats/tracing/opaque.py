"""Opaque values: what a traced template gets in place of a record's texts.

They are not `str`. Code in C that wants a text (`'abc'.startswith(c)`, `'-'.join`, `%`, `json`) fails on them instead
of reading them, and failing means that the template runs as usual. What is understood is recorded; everything else
that Python can do with an object gives up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from gristmill.text.chats.tracing.recording import (
    CONSTANT,
    TO_ANSWER,
    TO_LIST,
    TO_NUMBER,
    GiveUp,
    Recording,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
