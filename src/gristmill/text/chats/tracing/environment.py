"""A Jinja environment that sends every operation of a template through a recording.

The code generator writes a call of the environment for each comparison, concatenation, slice and output; Jinja's
sandbox does so for attributes, subscripts, calls and operators; filters and tests are wrapped. What then happens is in
`tracing_sandbox`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.jinja_environment import make_environment
from gristmill.text.chats.tracing.blind_messages import extend_with_blindness
from gristmill.text.chats.tracing.opaque import Opaque
from gristmill.text.chats.tracing.recording import GiveUp
from gristmill.text.chats.tracing.tracing_sandbox import extend_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from jinja2.nodes import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

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
            # The operands behind the second are evaluated only if the comparisons before them hold.
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
