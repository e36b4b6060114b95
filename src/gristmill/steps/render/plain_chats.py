"""Records that are chats of nothing but roles and contents: recognised while they are decoded.

The keys of the first records decide a struct, into which msgspec decodes the others without a dict in between. A record
that does not fit, by a key or by a type, is decoded as usual; so no record is read differently from what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats import MESSAGES, ROLES, NotAChat, parse_conversation
from gristmill.text.chats.chat_images import IMAGE_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.text.chats import ChatOptions

_MAX_MISSES = 64
_KEYS_WITH_MEANING = frozenset(("tools", "chat_template_kwargs"))


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class PlainChatDecoder:
    """Decodes lines of JSON that are plain chats."""

    def __init__(self, options: ChatOptions, *, has_images: bool = False) -> None:
        self._options = options
        self._keys_with_meaning = _KEYS_WITH_MEANING.union(IMAGE_KEYS if has_images else ())
        self._reads_messages = options.shape in ("auto", MESSAGES)
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._num_misses = 0

    def decode(self, line: bytes) -> tuple[tuple[str, ...], list[str]] | None:
        """Decode the roles and contents of a line; None if it has to be decoded as usual."""
        if self._decoder is None:
            return None
        try:
            messages = self._decoder.decode(line).messages
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._num_misses += 1
            if self._num_misses > _MAX_MISSES:
                self._decoder = None
            return None
        return tuple([message.role for message in messages]), [message.content for message in messages]

    def read(self, record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]] | None:
        """Read the roles and contents of a decoded record; None if it is not a plain chat."""
        if any(record.get(key) for key in self._keys_with_meaning) or record.get("tools") is not None:
            return None
        messages = record.get(MESSAGES) if self._reads_messages else None
        if messages is None:
            try:
                messages = parse_conversation(record, self._options.shape).messages
            except NotAChat:
                return None
        if type(messages) is not list:
            return None
        roles, contents = [], []
        for message in messages:
            if type(message) is not dict or len(message) != 2:
                return None
            role, content = message.get("role"), message.get("content")
            if type(role) is not str or role not in ROLES or type(content) is not str:
                return None
            roles.append(role)
            contents.append(content)
        if self._decoder is None and messages is record.get(MESSAGES) and self._num_misses <= _MAX_MISSES:
            self._expect_keys(record)
        return tuple(roles), contents

    def _expect_keys(self, record: Mapping[str, Any]) -> None:
        """Expect the keys of this record in those that follow."""
        if self._keys_with_meaning.isdisjoint(record):
            others = [key for key in record if key != MESSAGES]
            fields = [(f"field_{number}", Any, msgspec.field(name=key)) for number, key in enumerate(others)]
            chat = msgspec.defstruct(
                "PlainChat", [(MESSAGES, list[_PlainMessage]), *fields], forbid_unknown_fields=True, gc=False
            )
            self._decoder = msgspec.json.Decoder(chat)
