"""Chat templates: the one door to Jinja, with the same settings, filters and globals as transformers.

A template is code that came with a model. It runs in Jinja's immutable sandbox: no attributes that begin with an
underscore, no files, no network, no changes to its arguments. About 25 µs for a short conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003  (of a constant)
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import GristmillError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from gristmill.text.chats.tracing.template_tracer import TemplateTracer

Message = dict[str, Any]
"""A message in OpenAI's form: `role`, `content`, and whatever else the template uses."""

GENERATION_START = "\ufdd0"
GENERATION_END = "\ufdd1"
"""Marks around what is inside of `{% generation %}`, in a marked rendering. Unicode will never assign them."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class TemplateError(GristmillError, ValueError):
    """A template refused a conversation, or failed on it."""


class ChatTemplate:
    """A compiled template.

    >>> chat = [{"role": "user", "content": "Hi"}]
    >>> ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ end }}{% endfor %}", {"end": "!"}).render(
    ...     chat
    ... )
    'user: Hi!'
    """

    def __init__(
        self, source: str, variables: Mapping[str, Any], *, today: date | None = None, name: str = "chat template"
    ) -> None:
        """Compile the template; `variables` are tokens that it may use (`bos_token`), `today` is for `strftime_now`."""
        self.source = source
        self.name = name
        self._variables = dict(variables)
        self._today = today
        self._tracer: TemplateTracer | None = None
        self._plain = self._compile(make_environment(today, marks=False))
        self.marks_generation = "generation" in source and self._has_generation()
        self._marked = self._compile(make_environment(today, marks=True)) if self.marks_generation else self._plain

    @property
    def begin_token(self) -> str:
        """The token that begins a conversation, if the tokenizer has one."""
        return str(self._variables.get("bos_token") or "")

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, variables: Mapping[str, Any] = _NOTHING
    ) -> str:
        """Render a conversation. With `add_generation_prompt` the text ends with what begins the next answer."""
        if self._tracer is not None:
            text = self._tracer.render(
                messages, tools, variables, lambda: self._render_with(self._plain, messages, tools, variables)
            )
            if text is not None:
                return text
        return self._render_with(self._plain, messages, tools, variables)

    def start_tracing(self, restart_clock: Callable[[], None] | None = None) -> None:
        """Trace the template from now on, where that is possible: the same texts, in less time."""
        from gristmill.text.chats.tracing.template_tracer import TemplateTracer  # noqa: PLC0415  (it needs this module)

        self._tracer = TemplateTracer(self.source, self._variables, self._today, restart_clock)

    @property
    def tracer(self) -> TemplateTracer | None:
        """The tracer, if the template is traced."""
        return self._tracer

    @contextmanager
    def without_tracing(self) -> Iterator[None]:
        """Render with Jinja inside of this `with`."""
        tracer, self._tracer = self._tracer, None
        try:
            yield
        finally:
            self._tracer = tracer

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, variables: Mapping[str, Any] = _NOTHING
    ) -> str:
        """Like `render`, with marks around what the template says the assistant writes."""
        return self._render_with(self._marked, messages, tools, variables)

    def _render_with(self, template: Any, messages: Any, tools: Any, variables: Mapping[str, Any]) -> str:
        arguments = {"add_generation_prompt": False, "documents": None, **self._variables, **variables}
        arguments |= {"messages": messages, "tools": tools or None}
        try:
            text: str = template.render(arguments)
        except RecursionError:
            raise TemplateError("the template calls itself without end") from None
        except MemoryError:  # about the machine, not the record
            raise
        except Exception as error:  # an untrusted program may raise anything
            raise TemplateError(f"{type(error).__name__}: {error}") from None
        return text

    def _compile(self, environment: ImmutableSandboxedEnvironment) -> Any:
        import jinja2  # noqa: PLC0415

        try:
            template = environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            line = self.source.splitlines()[error.lineno - 1] if self.source else ""
            raise UsageError(
                f"{self.name}, line {error.lineno}: {error.message}\n    {line.strip():.200}",
                help="fix the template, or name another one",
            ) from error
        except Exception as error:  # a constant that cannot be computed, an expression too deep
            raise UsageError(f"{self.name} cannot be compiled: {error}", help="fix the template") from error
        # Jinja copies the globals for every rendering. Of a chain of dicts that takes as long as the rendering.
        template.globals = dict(template.globals)
        return template

    def _has_generation(self) -> bool:
        environment = make_environment(None, marks=True)
        return any(
            getattr(node, "name", None) == _MARK_METHOD
            for node in environment.parse(self.source).find_all(_make_attribute_node())
        )


_MARK_METHOD = "_mark_generated"
_DICT_NAMES = frozenset(dir(dict))


def _make_attribute_node() -> Any:
    from jinja2.nodes import ExtensionAttribute  # noqa: PLC0415

    return ExtensionAttribute


def make_environment(
    today: date | None, *, marks: bool, extend: Callable[[Any], Any] | None = None
) -> ImmutableSandboxedEnvironment:
    """Make an environment like that of transformers; `extend` may derive another class from that of the sandbox."""
    from jinja2 import TemplateError as JinjaError  # noqa: PLC0415
    from jinja2 import nodes  # noqa: PLC0415
    from jinja2.exceptions import SecurityError  # noqa: PLC0415
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    from jinja2.utils import Namespace  # noqa: PLC0415

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}`."""

        tags = {"generation"}  # noqa: RUF012  (the API of Jinja)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            if not marks:
                return nodes.Scope(body).set_lineno(line)
            return nodes.CallBlock(self.call_method(_MARK_METHOD), [], [], body).set_lineno(line)

        def _mark_generated(self, caller: Any) -> str:
            return f"{GENERATION_START}{caller()}{GENERATION_END}"

    class PlainNamespace(Namespace):
        """`namespace()` without names that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *positional = args
            values = dict(*positional, **kwargs)
            for name in values:
                _refuse_hidden(name)
            Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_hidden(name)
            super().__setitem__(name, value)

    class PlainDict:
        """`dict()` without the class behind it."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def _refuse_hidden(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a template cannot use the name {name!r}")

    def raise_exception(message: object) -> None:
        raise JinjaError(str(message))

    def strftime_now(pattern: str) -> str:
        if today is None:
            raise JinjaError("the template asks for today's date, and no date is set")
        return today.strftime(pattern)

    class Sandbox(ImmutableSandboxedEnvironment):
        """A sandbox with a shortcut for `message.role`: Jinja first tries an attribute of the dict: 1 µs."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is dict and attribute not in _DICT_NAMES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            return super().getattr(obj, attribute)

    # Not optimized: constants (9**9**9) would be computed while the template compiles, without a limit on time.
    sandbox = Sandbox if extend is None else extend(Sandbox)
    environment: ImmutableSandboxedEnvironment = sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], optimized=False
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "namespace": PlainNamespace,
        "dict": PlainDict(),
    }
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates pass them by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Encode JSON as it is: Jinja's own filter escapes what would be markup in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
