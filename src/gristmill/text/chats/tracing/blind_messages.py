"""Messages whose number a template does not learn: what it then writes for one length, it writes for any.

A conversation is traced once more, with a list of messages that answers only what all long conversations of its kind
answer alike. The template may loop over the list, once. Where it is in the loop it may ask in four ways:

    loop.first    loop.last    loop.index0 compared with 0 or 1    loop.index0 % 2

It may also look at one of the first messages and at the last one by number. Everything else (the number of messages,
other arithmetic, a neighbour, a namespace that is set in a loop) gives up. No state goes from one turn of the loop to
the next, so what a turn writes depends on its message and these four answers. Behind the first few messages the
answers repeat with every second message, until the last: `stretched_plan.py` repeats what was written there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.text.chats.tracing.opaque import Opaque
from gristmill.text.chats.tracing.recording import GiveUp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jinja2.nodes import Template

    from gristmill.text.chats.tracing.recording import Recording

NUM_HEAD = 4
"""Messages that a template may look at by number."""
_MAX_SKIPPED = 2
"""Messages before the loop, at most: `messages[1:]`. So at message `NUM_HEAD` a loop has had two turns or more."""
_MAX_POSITION = 1
_POSITIONS = frozenset(("index", "index0"))
_ENDS = frozenset(("first", "last"))


class OpaqueMessages(Opaque):
    """A list of messages, or its end, of unknown length."""

    __slots__ = ("_loops", "_messages", "_num_skipped")

    def __init__(
        self, recording: Recording, messages: Sequence[Any], num_skipped: int = 0, loops: list[int] | None = None
    ) -> None:
        super().__init__(recording, -1)
        recording.is_blind = True
        self._messages = messages
        self._num_skipped = num_skipped
        self._loops: list[int] = [] if loops is None else loops

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        self._loops.append(self._num_skipped)
        if len(self._loops) > 1:
            raise GiveUp("a second loop")
        return iter(self._messages[self._num_skipped :])

    def get(self, index: Any) -> Any:
        """Return one of the first messages, or the last."""
        if type(index) is not int or not (index == -1 or 0 <= index < NUM_HEAD - self._num_skipped):
            raise GiveUp("subscript")
        return self._messages[index if index == -1 else self._num_skipped + index]

    def cut(self, start: Any, stop: Any, step: Any) -> OpaqueMessages:
        """Return the list without its first messages."""
        if type(start) is not int or stop is not None or step is not None:
            raise GiveUp("slice")
        if not 0 <= start <= _MAX_SKIPPED - self._num_skipped:
            raise GiveUp("slice")
        return OpaqueMessages(self.recording, self._messages, self._num_skipped + start, self._loops)


class OpaquePosition(Opaque):
    """A position in the loop over messages, of which only the first two and odd or even can be known."""

    __slots__ = ("_first", "_position")

    def __init__(self, recording: Recording, position: int, first: int) -> None:
        """`first` is the number of the first position: 0 or 1."""
        super().__init__(recording, -1)
        self._position = position
        self._first = first

    def __bool__(self) -> bool:
        if self._first:
            raise GiveUp("position")
        return self._position > 0

    def find_remainder(self, divisor: Any) -> int:
        """Return the remainder of a division by 2."""
        if type(divisor) is not int or divisor != 2:
            raise GiveUp("%")
        return self._position % divisor

    def compare_with(self, other: Any) -> tuple[int, int]:
        """Return the position and a constant that it may be compared with."""
        if type(other) is not int or not 0 <= other - self._first <= _MAX_POSITION:
            raise GiveUp("position")
        return self._position, other


def extend_with_blindness(sandbox: Any) -> Any:
    """Derive a sandbox that has rules for opaque messages and positions."""
    from jinja2.runtime import LoopContext  # noqa: PLC0415

    class BlindSandbox(sandbox):  # type: ignore[misc]
        """A tracing sandbox that has rules for opaque messages and positions."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is LoopContext and type(obj._iterable) is OpaqueMessages:
                if attribute in _POSITIONS:
                    return OpaquePosition(self.recording, getattr(obj, attribute), int(attribute == "index"))
                if attribute not in _ENDS:
                    raise GiveUp(attribute)
            return super().getattr(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            return obj.get(argument) if type(obj) is OpaqueMessages else super().getitem(obj, argument)

        def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
            if type(value) is OpaqueMessages:
                return value.cut(start, stop, step)
            return super().cut(value, start, stop, step)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if type(left) is OpaquePosition and operator == "%":
                return left.find_remainder(right)
            return super().call_binop(context, operator, left, right)

        def _compare_two(self, left: Any, name: str, right: Any) -> Any:
            if type(left) is OpaquePosition:
                left, right = left.compare_with(right)
            elif type(right) is OpaquePosition:
                right, left = right.compare_with(left)
            return super()._compare_two(left, name, right)

    return BlindSandbox


def can_stretch(tree: Template) -> bool:
    """Tell whether a parsed template keeps no state in loops, as far as can be read: values are watched as it runs."""
    from jinja2 import nodes  # noqa: PLC0415

    # A function may be called in a loop.
    for scope in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        if next(scope.find_all(nodes.NSRef), None) is not None:
            return False
    if any(loop.test is not None or loop.recursive for loop in tree.find_all(nodes.For)):
        return False
    # The loop itself may not be given to anything: a second loop over it would take messages away from the first.
    num_positions = sum(
        isinstance(read.node, nodes.Name) and read.node.name == "loop" and read.attr in _POSITIONS | _ENDS
        for read in tree.find_all(nodes.Getattr)
    )
    return num_positions == sum(name.name == "loop" for name in tree.find_all(nodes.Name))
