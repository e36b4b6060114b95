"""A Jinja environment that sends every operation of a template through a recording.

The code generator writes a call of the environment for each comparison, concatenation, slice and output; Jinja's
sandbox does so for attributes, subscripts, calls and operators; filters and tests are wrapped. What then happens is in
`tracing_sandbox`.

What a template writes without learning the number of messages, it writes for any number. To find out, a conversation is
traced once more, with a list of messages that answers only what all long conversations of its kind answer alike. The
template may loop over the list, once. Where it is in the loop it may ask in four ways:

    loop.first    loop.last    loop.index0 compared with 0 or 1    loop.index0 % 2

It may also look at one of the first messages and at the last one by number. Everything else (the number of messages,
other arithmetic, a neighbour, a namespace that is set in a loop) gives up. No state goes from one turn of the loop to
the next, so what a turn writes depends on its message and these four answers. Behind the first few messages the
answers repeat with every second message, until the last: a stretched plan repeats what was written there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.jinja_environment import make_environment
from gristmill.text.chats.tracing.recording import GiveUp, Opaque
from gristmill.text.chats.tracing.tracing_sandbox import extend_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from jinja2.nodes import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from gristmill.text.chats.tracing.recording import Recording


_RANDOM_FILTERS = frozenset(("random",))


def make_tracing_environment(today: date | None) -> ImmutableSandboxedEnvironment:
    """Make an environment whose `recording` is set before each rendering."""
    environment: Any = make_environment(
        today, marks=False, extend=lambda sandbox: extend_with_blindness(extend_sandbox(sandbox))
    )
    environment.code_generator_class = _make_code_generator()
    for name, function in list(environment.filters.items()):
        environment.filters[name] = _wrap(environment, environment.apply_filter, name, function)
    for name, function in list(environment.tests.items()):
        environment.tests[name] = _wrap(environment, environment.apply_test, name, function)
    traced: ImmutableSandboxedEnvironment = environment
    return traced


def can_trace(tree: Template) -> bool:
    """Tell whether a parsed template has only statements that are understood."""
    from jinja2 import nodes  # noqa: PLC0415

    refused = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.Block, nodes.EvalContextModifier)
    return next(tree.find_all(refused), None) is None


def _wrap(environment: Any, apply: Callable[..., Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    pass_argument = getattr(function, "jinja_pass_arg", None)

    def traced(*args: Any, **kwargs: Any) -> Any:
        environment.recording.count_operation()
        passed = args[:1] if pass_argument is not None else ()
        values = args[len(passed) :]
        if name not in _RANDOM_FILTERS and environment.is_plain(values) and environment.is_plain(kwargs):
            result = function(*args, **kwargs)
        else:
            result = apply(name, lambda: function(*args, **kwargs), values, kwargs)
        if environment.recording.is_blind and isinstance(result, Iterator) and not isinstance(result, Opaque):
            raise GiveUp("iterator")  # used up by and by, it would carry a state from message to message
        return result

    if pass_argument is not None:
        traced.jinja_pass_arg = pass_argument  # type: ignore[attr-defined]
    return traced


def _make_code_generator() -> Any:
    from jinja2.compiler import CodeGenerator  # noqa: PLC0415
    from jinja2.nodes import Slice  # noqa: PLC0415

    class TracingCodeGenerator(CodeGenerator):
        """Writes calls of the environment where Jinja writes Python operators."""

        def visit_Compare(self, node: Any, frame: Any) -> None:  # noqa: N802  (the API of Jinja)
            # The operands after the second are evaluated only if the comparisons before them hold.
            self.write("environment.compare(")
            self.visit(node.expr, frame)
            for operand in node.ops:
                self.write(f", {operand.op!r}, lambda: ")
                self.visit(operand.expr, frame)
            self.write(")")

        def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802
            self.write("environment.join_shown((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def visit_Getitem(self, node: Any, frame: Any) -> None:  # noqa: N802
            if not isinstance(node.arg, Slice):
                super().visit_Getitem(node, frame)
                return
            self.write("environment.cut(")
            self.visit(node.node, frame)
            for border in (node.arg.start, node.arg.stop, node.arg.step):
                self.write(", ")
                if border is None:
                    self.write("None")
                else:
                    self.visit(border, frame)
            self.write(")")

        def _output_child_pre(self, node: Any, frame: Any, finalize: Any) -> None:  # noqa: ARG002
            self.write("environment.show(")

        def _output_child_post(self, node: Any, frame: Any, finalize: Any) -> None:  # noqa: ARG002
            self.write(")")

    return TracingCodeGenerator


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
