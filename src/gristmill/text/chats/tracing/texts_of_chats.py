"""A conversation taken apart: its texts, and the rest, which decides together with them what a template writes.

    {"role": "user", "content": "Hi"}    texts: Hi    outline: a dict of role = "user" and content = a text

Roles and types of parts are of the outline, because templates branch on them; so are keys, numbers and nulls. Two
conversations with the same outline are rendered by the same plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.text.chats.tracing.opaque import OpaqueText
from gristmill.text.chats.tracing.recording import LEAF

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gristmill.text.chats.tracing.recording import Recording

_NAMING_KEYS = frozenset(("role", "type"))
_MAX_NAME_CHARS = 64
_SCALARS = frozenset((bool, int, float, type(None)))
_TEXT = "text"


class NoOutline(Exception):
    """A value of another type than those of JSON."""


def take_apart(value: Any, texts: list[str], key: object = None) -> Hashable:
    """Return the outline of a value, and add its texts to `texts`."""
    kind = type(value)
    if kind is str:
        if key in _NAMING_KEYS and len(value) <= _MAX_NAME_CHARS:
            return ("name", value)
        texts.append(value)
        return _TEXT
    if kind is dict:
        return ("dict", tuple([(name, take_apart(inner, texts, name)) for name, inner in value.items()]))
    if kind is list:
        return ("list", tuple([take_apart(inner, texts) for inner in value]))
    if kind in _SCALARS:
        return (kind.__name__, repr(value))
    raise NoOutline(kind.__name__)


def take_message_apart(message: Mapping[str, Any], texts: list[str]) -> Hashable:
    """Like `take_apart`, with a short way for most messages: their outline is the role."""
    if len(message) == 2 and type(message) is dict:
        (first, role), (second, content) = message.items()
        if first == "role" and second == "content" and type(role) is str and type(content) is str:
            texts.append(content)
            return role
    return take_apart(message, texts)


def outline_variables(variables: Mapping[str, Any]) -> Hashable:
    """Return the outline of variables: they are constants."""
    if not variables:
        return ()
    if any(type(value) not in _SCALARS and type(value) is not str for value in variables.values()):
        raise NoOutline("variables")
    return tuple([(name, type(value).__name__, repr(value)) for name, value in variables.items()])


class OpaqueChat:
    """A conversation with opaque texts in place of its texts, numbered in the order of `take_apart`."""

    def __init__(self, recording: Recording, make_dict: type[dict[str, Any]]) -> None:
        self._recording = recording
        self._make_dict = make_dict
        self._num_texts = 0

    def make_opaque(self, value: Any, key: object = None) -> Any:
        """Return a value with opaque texts."""
        kind = type(value)
        if kind is str:
            if key in _NAMING_KEYS and len(value) <= _MAX_NAME_CHARS:
                return value
            self._num_texts += 1
            return OpaqueText(self._recording, self._recording.add(LEAF, (), (self._num_texts - 1,)))
        if kind is dict:
            return self._make_dict({name: self.make_opaque(inner, name) for name, inner in value.items()})
        if kind is list:
            return [self.make_opaque(inner) for inner in value]
        return value
