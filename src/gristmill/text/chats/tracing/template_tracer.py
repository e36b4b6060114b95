"""The tracer of one template: from outlines of conversations to plans.

A conversation's outline has a list of plans, one for each way through the template that its records take. The third
conversation of an outline is traced: the template runs on it with opaque texts, which takes about five times as long as
Jinja. Later ones are only filled in. What cannot be traced, and what is beyond the limits, is left to Jinja.

A plan is exact if every operation was recorded as what it is. In case one was not, each plan is compared with Jinja on
the first records that use it, and a difference ends the run. So plans never change what is written, only when.
"""

from __future__ import annotations

from contextlib import suppress
from time import thread_time
from typing import TYPE_CHECKING, Any, NoReturn

from gristmill.core.errors import ParityError
from gristmill.text.chats.jinja_environment import TemplateTimeout
from gristmill.text.chats.tracing.environment import OpaqueMessages, can_stretch, can_trace, make_tracing_environment
from gristmill.text.chats.tracing.plans import (
    NoOutline,
    OpaqueChat,
    TextPlan,
    outline_variables,
    take_apart,
    take_message_apart,
)
from gristmill.text.chats.tracing.recording import GiveUp, OpaqueText, OrderlessDict, Recording, find_number

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from datetime import date


MAX_MESSAGES = 64
MAX_PLANS = 4096
MAX_PLANS_PER_OUTLINE = 64
MAX_CONSTANT_CHARS = 32 << 20
"""The most characters of the constants of all plans."""
MIN_OCCURRENCES = 3
"""Number of conversations of an outline up to the one that is traced: most outlines of some data occur once."""
NUM_COMPARED = 3
"""Number of records of each plan that are also rendered by Jinja."""
_MAX_FAILURES = 8
_MAX_OUTLINES = 16_384
_MAX_SECONDS = 1.0
"""A template that takes longer to trace than this is not traced again."""
_SHOWN_CHARS = 60
TRACE_HELP = "set trace: off in the step render, which is slower and always right; please report the template"


class _Outline:
    """An outline of conversations, with its plans and how often it occurred."""

    __slots__ = ("last_record", "num_failures", "num_seen", "plans")

    def __init__(self) -> None:
        self.num_seen = 0
        self.last_record = -1
        self.num_failures = 0
        self.plans: list[TextPlan] = []


_FEW_MESSAGES = 24
_MAX_IN_VAIN = 1024


class TemplateTracer:
    """Renders conversations with the plans of one template."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        today: date | None,
        restart_clock: Callable[[], None] | None,
        *,
        min_occurrences: int = MIN_OCCURRENCES,
        num_compared: int = NUM_COMPARED,
        max_plans: int = MAX_PLANS,
    ) -> None:
        """`restart_clock` is called when a trace has taken long, so that Jinja has its whole time for the record."""
        self._source = source
        self._variables = variables
        self._today = today
        self._restart_clock = restart_clock
        self._min_occurrences = min_occurrences
        self._num_compared = num_compared
        self._max_plans = max_plans
        self._environment: Any = None
        self._template: Any = None
        self._can_stretch: bool | None = None
        self._outlines: dict[Hashable, _Outline] = {}
        self._num_records = 0
        self._num_plans = 0
        self._num_chars = 0
        self._num_in_vain = 0
        """The messages of long conversations that were taken apart since a plan has rendered one."""
        self.is_closed = False
        """Whether no more plans are made."""

    def load(self) -> None:
        """Compile the template for tracing: about 3 ms, which no record has to wait for."""
        with suppress(GiveUp, Exception):  # the first trace fails in the same way
            self._compile()

    def begin_record(self) -> None:
        """Begin with the next record."""
        self._num_records += 1

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        render_with_jinja: Callable[[], str],
    ) -> str | None:
        """Render a conversation; None if Jinja has to do it.

        Raises:
            ParityError: A plan and Jinja differ.
        """
        if len(messages) > _FEW_MESSAGES:
            # Sessions of agents have hardly ever the outline of another one, and taking them apart is costly.
            if self._num_in_vain > _MAX_IN_VAIN:
                return None
            self._num_in_vain += len(messages)
        texts: list[str] = []
        outline = self._find_outline(messages, tools, variables, texts)
        if outline is None:
            return None
        plan, pieces = _find_plan(outline, texts)
        if plan is None:
            # A record is rendered several times, with marks in it: that is one occurrence.
            outline.num_seen += outline.last_record != self._num_records
            outline.last_record = self._num_records
            if outline.num_seen < self._min_occurrences:
                return None
            plan = self._add_plan(outline, messages, tools, variables, texts)
            pieces = plan.fill(texts) if plan is not None else None
        if plan is None or pieces is None:
            return None
        if len(messages) > _FEW_MESSAGES:
            self._num_in_vain = 0
        text = "".join(pieces)
        if plan.num_uses < self._num_compared:
            plan.num_uses += 1
            expected = render_with_jinja()
            if expected != text:
                raise_difference(messages, expected, text)
        return text

    def make_plan(self, messages: Sequence[Mapping[str, Any]]) -> TextPlan | None:
        """Make the plan of a conversation that has only roles and contents; the caller keeps it.

        It holds for any order of the two keys: a template that looks at that order has no such plan.
        """
        texts = [message["content"] for message in messages]
        return self._trace(messages, None, {}, texts, is_orderless=True)

    def make_blind_plan(self, messages: Sequence[Mapping[str, Any]]) -> TextPlan | None:
        """Like `make_plan`; None if the template may write conversations of another length in another way.

        That holds for the prompt, too, by which answers are found.
        """
        if self._can_stretch is False:
            return None
        texts = [message["content"] for message in messages]
        prompt = {"add_generation_prompt": True}
        if self._trace(messages[:-1], None, prompt, texts, is_orderless=True, is_blind=True) is None:
            return None
        return self._trace(messages, None, {}, texts, is_orderless=True, is_blind=True)

    def count_plan(self, num_chars: int) -> bool:
        """Count a plan that was made elsewhere towards the limits; tells whether it is within them."""
        if self.is_closed or self._num_plans >= self._max_plans:
            return False
        self._num_plans += 1
        self._num_chars += num_chars
        if self._num_chars > MAX_CONSTANT_CHARS:
            self.is_closed = True
        return True

    def _find_outline(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        texts: list[str],
    ) -> _Outline | None:
        if len(messages) > MAX_MESSAGES:
            return None
        try:
            key = (
                tuple([take_message_apart(message, texts) for message in messages]),
                take_apart(list(tools), texts) if tools else None,
                outline_variables(variables),
            )
        except (NoOutline, RecursionError):
            return None
        outline = self._outlines.get(key)
        if outline is None and len(self._outlines) < _MAX_OUTLINES and not self.is_closed:
            outline = self._outlines[key] = _Outline()
        return outline

    def _add_plan(
        self,
        outline: _Outline,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        texts: Sequence[str],
    ) -> TextPlan | None:
        """Make a plan for an outline, unless it has failed too often or has too many."""
        if len(outline.plans) >= MAX_PLANS_PER_OUTLINE or outline.num_failures >= _MAX_FAILURES:
            return None
        plan = self._trace(messages, tools, variables, texts, is_orderless=False)
        if plan is None:
            outline.num_failures += 1
        else:
            outline.plans.append(plan)
        return plan

    def _trace(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        texts: Sequence[str],
        *,
        is_orderless: bool,
        is_blind: bool = False,
    ) -> TextPlan | None:
        """Make a plan by running the template; None if it does something that is not understood."""
        if self.is_closed or self._num_plans >= self._max_plans:
            return None
        started = thread_time()
        recording = Recording(texts)
        plan: TextPlan | None = None
        try:
            make_dict: type[dict[str, Any]] = OrderlessDict if is_orderless else dict
            make_list = OpaqueMessages if is_blind else _keep_list
            plan = TextPlan(recording, self._record(recording, messages, tools, variables, make_dict, make_list))
        except (GiveUp, Exception):  # Jinja runs the template again, and reports what it raises
            plan = None
        except TemplateTimeout:
            self.is_closed = True
        if thread_time() - started > _MAX_SECONDS:
            self.is_closed = True
            if self._restart_clock is not None:
                self._restart_clock()
        return plan if plan is not None and self.count_plan(plan.num_chars) else None

    def _record(
        self,
        recording: Recording,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        make_dict: type[dict[str, Any]],
        make_list: Callable[[Recording, list[Any]], Any],
    ) -> list[int]:
        """Run the template on opaque texts; returns the nodes of its output."""
        if self._template is None:
            self._compile()
        if make_list is OpaqueMessages and not self._can_stretch:
            raise GiveUp("state in a loop")
        opaque = OpaqueChat(recording, make_dict)
        arguments = {"add_generation_prompt": False, "documents": None, **self._variables, **variables}
        arguments["messages"] = make_list(recording, [opaque.make_opaque(message) for message in messages])
        arguments["tools"] = opaque.make_opaque(list(tools)) if tools else None
        self._environment.recording = recording
        context = self._template.new_context(arguments)
        text = self._environment.concat(self._template.root_render_func(context))
        return _list_output(recording, text)

    def _compile(self) -> None:
        self._environment = make_tracing_environment(self._today)
        tree = self._environment.parse(self._source)
        if not can_trace(tree):
            self.is_closed = True
            raise GiveUp("statement")
        self._can_stretch = can_stretch(tree)
        self._template = self._environment.from_string(tree)
        self._template.globals = dict(self._template.globals)


def _keep_list(_: Recording, messages: list[Any]) -> list[Any]:
    return messages


def _find_plan(outline: _Outline, texts: Sequence[str]) -> tuple[TextPlan | None, list[str] | None]:
    """Find the plan whose guards a record meets, and its pieces; the one that was used last is tried first."""
    for index, plan in enumerate(outline.plans):
        pieces = plan.fill(texts)
        if pieces is not None:
            if index:
                outline.plans.insert(0, outline.plans.pop(index))
            return plan, pieces
    return None, None


def _list_output(recording: Recording, text: str | OpaqueText) -> list[int]:
    """List the nodes of a text, with neighbouring constants joined."""
    number = find_number(recording, text)
    operation, operands, _ = recording.nodes[number]
    output: list[int] = []
    for operand in operands if operation == "join" else (number,):
        kind, _, constants = recording.nodes[operand]
        if kind == "constant" and output and recording.nodes[output[-1]][0] == "constant":
            before = recording.nodes[output.pop()][2][0]
            output.append(recording.add("constant", (), (before + constants[0],)))
        else:
            output.append(operand)
    return output


def raise_difference(messages: Sequence[Mapping[str, Any]], expected: str, text: str) -> NoReturn:
    """End the run: a plan has written another text than Jinja."""
    pairs = enumerate(zip(expected, text, strict=False))
    position = next((index for index, (first, second) in pairs if first != second), min(len(expected), len(text)))
    start = max(0, position - _SHOWN_CHARS // 2)
    traced, rendered = (repr(side[start : start + _SHOWN_CHARS]) for side in (text, expected))
    first = repr(messages[0].get("content"))[:_SHOWN_CHARS]
    raise ParityError(
        f"render: the traced template writes {traced} where Jinja writes {rendered}, in the conversation of "
        f"{len(messages)} messages that begins with {first}",
        help=TRACE_HELP,
    )
