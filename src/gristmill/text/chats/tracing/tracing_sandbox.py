"""The sandbox of a traced template: what each operation does with opaque values.

An operation whose operands are all plain, to any depth, runs as in Jinja. One with an opaque operand runs if a rule
here understands it, and gives up if not: a list of what is allowed, not of what is refused.
"""

from __future__ import annotations

import operator
from types import BuiltinMethodType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.jinja_environment import to_json
from gristmill.text.chats.tracing.recording import (
    METHODS,
    GiveUp,
    Opaque,
    OpaqueList,
    OpaqueMethod,
    OpaqueNumber,
    OpaqueText,
    OrderlessDict,
    find_number,
    join_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gristmill.text.chats.tracing.recording import Recording

_SCALARS = frozenset((str, int, float, bool, type(None), range))
_CONTAINERS = (list, tuple, dict, OrderlessDict)
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_ITERABLES: tuple[type[Iterable[Any]], ...] = (*_CONTAINERS, *_VIEWS, GeneratorType, type(reversed([])))
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda item, container: item in container,
    "notin": lambda item, container: item not in container,
}
_DICT_NAMES = frozenset(dir(dict))
_HOLE = "zq7hole"
_CONTAINER_FILTERS = frozenset(
    (
        "list",
        "first",
        "last",
        "reverse",
        "length",
        "count",
        "items",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "map",
    )
)
"""Filters that only move the items of a container, or look at them through the environment."""
_TYPE_TESTS = {
    **dict.fromkeys(("defined", "string", "sequence", "iterable"), True),
    **dict.fromkeys(("undefined", "none", "mapping", "number", "boolean", "true", "false"), False),
    **dict.fromkeys(("integer", "float", "callable"), False),
}
"""Tests of an opaque text: it stands for a `str`."""
_EQUAL_TESTS = {"eq": "eq", "equalto": "eq", "==": "eq", "ne": "ne", "!=": "ne", "in": "in"}
_VARIABLES_OF_FRAMES = ("_loop_vars", "_block_vars")


def extend_sandbox(sandbox: Any) -> Any:
    """Derive a sandbox that records what a template does with opaque values."""
    from jinja2.runtime import LoopContext, Macro, Undefined  # noqa: PLC0415
    from jinja2.utils import Namespace  # noqa: PLC0415

    class TracingSandbox(sandbox):  # type: ignore[misc]
        """A sandbox that records what a template does with opaque values."""

        intercepted_binops = frozenset(sandbox.default_binop_table)
        intercepted_unops = frozenset(sandbox.default_unop_table)
        recording: Recording

        def is_plain(self, value: Any) -> bool:
            """Tell whether a value holds nothing opaque, at any depth, and nothing unknown."""
            kind = type(value)
            if kind in _SCALARS or kind is Undefined:
                return True
            if kind is list or kind is tuple:
                return all(map(self.is_plain, value))
            return kind is dict and all(map(self.is_plain, value)) and all(map(self.is_plain, value.values()))

        def concat(self, parts: Iterable[Any]) -> str | OpaqueText:
            texts = list(parts)
            if not {type(text) for text in texts} <= {str, OpaqueText}:
                raise GiveUp("output")
            return join_texts(self.recording, texts)

        def join_shown(self, values: Iterable[Any]) -> str | OpaqueText:
            return join_texts(self.recording, [self.show(value) for value in values])

        def show(self, value: Any) -> str | OpaqueText:
            """Turn a value into text, as an output does."""
            self.recording.count_operation()
            if type(value) is str or type(value) is OpaqueText:
                return value
            if type(value) is OpaqueNumber:
                return value.to_text()
            if self.is_plain(value):
                return str(value)
            raise GiveUp("output")

        def compare(self, left: Any, *operations: Any) -> Any:
            result: Any = True
            for name, get_right in zip(operations[::2], operations[1::2], strict=True):
                right = get_right()
                result = self._compare_two(left, name, right)
                if not result:
                    break
                left = right
            return result

        def _compare_two(self, left: Any, name: str, right: Any) -> Any:
            self.recording.count_operation()
            if (type(left) in _SCALARS or self.is_plain(left)) and (type(right) in _SCALARS or self.is_plain(right)):
                return _COMPARISONS[name](left, right)
            if name in ("ne", "notin"):
                return not self._compare_two(left, {"ne": "eq", "notin": "in"}[name], right)
            if name == "eq":
                return self._is_equal(left, right)
            if name == "in":
                return self._is_in(left, right)
            return _compare_number(left, name, right)

        def _is_equal(self, left: Any, right: Any) -> bool:
            if isinstance(left, OpaqueNumber) or isinstance(right, OpaqueNumber):
                return _compare_number(left, "eq", right)
            texts = [type(side) in (str, OpaqueText) for side in (left, right)]
            if all(texts):
                numbers = tuple(find_number(self.recording, side) for side in (left, right))
                return bool(self.recording.ask("equals", numbers))
            others = [side for side, is_text in zip((left, right), texts, strict=True) if not is_text]
            if any(isinstance(side, Opaque) for side in others):
                raise GiveUp("==")
            if any(type(side) not in _CONTAINERS and not self.is_plain(side) for side in others):
                raise GiveUp("==")
            if any(texts) or left is right:
                return left is right  # a text equals nothing but a text
            kinds = [dict if type(side) is OrderlessDict else type(side) for side in (left, right)]
            if kinds[0] is not kinds[1] or len(left) != len(right):
                return False  # both are plain or containers, and one of them is a container
            raise GiveUp("==")

        def _is_in(self, item: Any, container: Any) -> bool:
            if type(item) in (str, OpaqueText) and type(container) in (str, OpaqueText):
                numbers = tuple(find_number(self.recording, side) for side in (container, item))
                return bool(self.recording.ask("contains", numbers))
            if isinstance(container, dict) and self.is_plain(item):
                return item in container  # keys are never opaque
            if type(container) in (list, tuple) and (self.is_plain(item) or type(item) is OpaqueText):
                return any(inner is item or self._compare_two(inner, "eq", item) for inner in container)
            raise GiveUp("in")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self.recording.count_operation()
            if self.is_plain(left) and self.is_plain(right):
                return super().call_binop(context, operator, left, right)
            if operator == "+":
                kinds = {type(left), type(right)}
                if kinds <= {str, OpaqueText}:
                    return join_texts(self.recording, [left, right])
                if kinds in ({list}, {tuple}):
                    return left + right
            raise GiveUp(operator)

        def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
            if not self.is_plain(arg):
                raise GiveUp(operator)
            return super().call_unop(context, operator, arg)

        def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
            self.recording.count_operation()
            if not self.is_plain((start, stop, step)):
                raise GiveUp("slice")
            if type(value) in (OpaqueText, OpaqueList):
                return value.cut(start, stop, step)
            if type(value) not in (list, tuple) and not self.is_plain(value):
                raise GiveUp("slice")
            return value[start:stop:step]

        def getattr(self, obj: Any, attribute: str) -> Any:
            self.recording.count_operation()
            kind = type(obj)
            if kind is dict or kind is OrderlessDict:  # most of all attributes
                return (
                    obj[attribute]
                    if attribute in obj and attribute not in _DICT_NAMES
                    else super().getattr(obj, attribute)
                )
            if kind is OpaqueText:
                return self._find_text_attribute(obj, attribute)
            self._refuse_unknown(obj)
            return super().getattr(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            self.recording.count_operation()
            if not self.is_plain(argument):
                raise GiveUp("subscript")
            if type(obj) is OpaqueText and type(argument) is str:
                return self._find_text_attribute(obj, argument)
            if type(obj) in (OpaqueText, OpaqueList) and type(argument) is int:
                item = obj.get(argument)
                return item if item is not None else self.undefined(obj="", name=argument)
            self._refuse_unknown(obj)
            return super().getitem(obj, argument)

        def _find_text_attribute(self, text: OpaqueText, name: str) -> Any:
            if name in METHODS:
                return OpaqueMethod(text, name)
            if name.startswith("_"):
                return self.unsafe_undefined("", name)
            if hasattr(str, name):
                raise GiveUp(name)
            return self.undefined(obj="", name=name)

        def _refuse_unknown(self, obj: Any) -> None:
            if type(obj) in _CONTAINERS or isinstance(obj, (LoopContext, Namespace)) or obj is self.globals["dict"]:
                return
            if not self.is_plain(obj):
                raise GiveUp("subscript")

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            self.recording.count_operation()
            named = {name: value for name, value in kwargs.items() if name not in _VARIABLES_OF_FRAMES}
            if type(function) is OpaqueMethod:
                if named:
                    raise GiveUp(function.method)
                return function.call(args)
            is_plain = self.is_plain(args) and self.is_plain(named)
            if type(function) is BuiltinMethodType and type(function.__self__) is str and not is_plain:
                if function.__name__ == "join" and len(args) == 1 and not named:
                    return self.join(function.__self__, args[0], shows=False)
                raise GiveUp(function.__name__)
            if not self._may_call(function, args, is_plain=is_plain):
                raise GiveUp("call")
            return super().call(context, function, *args, **kwargs)

        def _may_call(self, function: Any, args: Any, *, is_plain: bool) -> bool:
            """Tell whether a function does no more with its arguments than pass them on, or whether they are plain."""
            if type(function) in (Macro, LoopContext):  # a macro, and a loop that calls itself
                return True
            if function is self.globals["namespace"] or function is self.globals["dict"]:
                return True
            if type(function) is BuiltinMethodType and isinstance(function.__self__, dict):
                return function.__name__ in ("get", "items", "keys", "values") and self.is_plain(args[:1])
            if not is_plain or function is self.globals["lipsum"]:
                return False
            if type(function) is BuiltinMethodType:
                return self.is_plain(function.__self__)
            if isinstance(getattr(function, "__self__", None), LoopContext):  # `loop.cycle(…)`
                return True
            # Functions of the sandbox, and what it makes of `str.format`.
            return type(function) is FunctionType

        def join(self, separator: Any, items: Any, *, shows: bool) -> str | OpaqueText:
            """Join items; `shows`: of any type, as the filter does."""
            if type(separator) is not str:
                raise GiveUp("join")
            if type(items) is OpaqueList:
                return items.join(separator)
            if not isinstance(items, _ITERABLES):
                raise GiveUp("join")
            parts: list[str | OpaqueText] = []
            for item in items:
                if not shows and type(item) not in (str, OpaqueText):
                    raise GiveUp("join")
                parts += [separator, self.show(item)] if parts else [self.show(item)]
            return join_texts(self.recording, parts)

        def apply_filter(self, name: str, run: Callable[[], Any], values: tuple[Any, ...], kwargs: Any) -> Any:
            """Apply a filter to values that are not plain."""
            value, *rest = values
            if name in ("default", "d"):  # looks at nothing but whether a value is defined or true
                return run()
            if name == "tojson":
                return self._to_json(value, rest, kwargs)
            if not self.is_plain(rest) or not self.is_plain(kwargs):
                raise GiveUp(name)
            if name == "join" and len(rest) <= 1 and not kwargs:
                return self.join(rest[0] if rest else "", value, shows=True)
            if type(value) is OpaqueText:
                return self._filter_text(name, value, rest, kwargs)
            if type(value) is OpaqueNumber and name in ("string", "int") and not rest and not kwargs:
                return value.to_text() if name == "string" else value
            if type(value) is OpaqueList:
                if name in ("length", "count"):
                    return value.length()
                if name in ("first", "last") and (item := value.get(0 if name == "first" else -1)) is not None:
                    return item
                if name in ("list", "reverse"):
                    return run()
            if name in _CONTAINER_FILTERS and isinstance(value, _ITERABLES):
                return run()
            raise GiveUp(name)

        def _filter_text(self, name: str, text: OpaqueText, rest: list[Any], kwargs: Any) -> Any:
            if kwargs:
                raise GiveUp(name)
            if name == "string" and not rest:
                return text
            if name in ("length", "count") and not rest:
                return text.length()
            if name == "trim" and (not rest or type(rest[0]) is str):
                return text.call("strip", rest)
            if name in ("upper", "lower") and not rest:
                return text.call(name, rest)
            if name == "replace" and len(rest) == 2 and all(type(part) is str for part in rest):
                return text.call("replace", rest)
            raise GiveUp(name)

        def _to_json(self, value: Any, rest: list[Any], kwargs: Any) -> str | OpaqueText:
            if not self.is_plain(rest) or not self.is_plain(kwargs):
                raise GiveUp("tojson")
            leaves: list[OpaqueText] = []
            ensure_ascii = bool(rest[0] if rest else kwargs.get("ensure_ascii", False))

            def dig_holes(inner: Any) -> Any:
                if type(inner) is OpaqueText:
                    leaves.append(inner)
                    return f"{_HOLE}{len(leaves) - 1}."
                if type(inner) is dict:
                    return {key: dig_holes(item) for key, item in inner.items()}
                if type(inner) in (list, tuple):
                    return [dig_holes(item) for item in inner]
                if not self.is_plain(inner):
                    raise GiveUp("tojson")
                return inner

            written = to_json(dig_holes(value), *rest, **kwargs)
            parts: list[str | OpaqueText] = []
            # A text in quotes is replaced with its quotes. In the text of the template a hole may occur by chance.
            first, *others = written.split(f'"{_HOLE}')
            parts.append(first)
            if len(others) != len(leaves) or written.count(_HOLE) != len(leaves):
                raise GiveUp("tojson")
            for part in others:
                number, _, after = part.partition('."')
                parts += [leaves[int(number)].quote(ensure_ascii=ensure_ascii), after]
            return join_texts(self.recording, parts)

        def apply_test(self, name: str, run: Callable[[], Any], values: tuple[Any, ...], kwargs: Any) -> Any:
            """Apply a test to values that are not plain."""
            value, *rest = values
            if kwargs:
                raise GiveUp(name)
            if name in _EQUAL_TESTS and len(rest) == 1:
                return self._compare_two(value, _EQUAL_TESTS[name], rest[0])
            if rest:
                raise GiveUp(name)
            if type(value) is OpaqueText:
                if name in ("upper", "lower"):
                    return value.call(f"is{name}", ())
                if name in _TYPE_TESTS:
                    return _TYPE_TESTS[name]
            elif type(value) in _CONTAINERS and name in _TYPE_TESTS:
                return run()
            elif name in ("defined", "undefined", "none"):
                return name == "defined"
            raise GiveUp(name)

    return TracingSandbox


def _compare_number(left: Any, name: str, right: Any) -> bool:
    if type(left) is OpaqueNumber and type(right) is int:
        return left.compare(name, right)
    if type(right) is OpaqueNumber and type(left) is int:
        swapped = {"gt": "lt", "gteq": "lteq", "lt": "gt", "lteq": "gteq"}
        return right.compare(swapped.get(name, name), left)
    raise GiveUp(name)
