"""The environment of chat templates, with the same settings, filters and globals as in transformers.

A template is code that came with a model. It runs in Jinja's immutable sandbox: no attributes that begin with an
underscore, no files, no network, no changes to its arguments.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from jinja2.sandbox import ImmutableSandboxedEnvironment

GENERATION_START = "\ufdd0"
GENERATION_END = "\ufdd1"
"""Marks around what is inside of `{% generation %}`, in a marked rendering. Unicode will never assign them."""
MARK_METHOD = "_mark_generated"
_DICT_NAMES = frozenset(dir(dict))


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
            return nodes.CallBlock(self.call_method(MARK_METHOD), [], [], body).set_lineno(line)

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
