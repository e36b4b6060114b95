"""A pattern for the special tokens of a tokenizer in a text, with the space that some of them include."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gristmill.text.tokenizers.special_tokens.control_tokens import is_unmarked_control

if TYPE_CHECKING:
    from gristmill.text.tokenizers.files import TokenizerFiles


class _StrippingToken(msgspec.Struct):
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_StrippingToken] | None = None


def compile_special_pattern(files: TokenizerFiles) -> re.Pattern[str] | None:
    """Compile a pattern that matches a special token, in a group of its own, with the space that it strips.

    It also matches control tokens that are not marked as special. Of two that begin at the same position it matches the
    longer one, as tokenizers do.
    """
    added = msgspec.json.decode(files.read(), type=_AddedTokens).added_tokens or ()
    tokens = [token for token in added if token.special or is_unmarked_control(token.content, special=False)]
    tokens = [token for token in tokens if token.content]
    if not tokens:
        return None
    tokens.sort(key=lambda token: (-len(token.content), token.content))
    return re.compile("|".join(_make_alternative(number, token) for number, token in enumerate(tokens)))


def _make_alternative(number: int, token: _StrippingToken) -> str:
    before, behind = (r"\s*" if strips else "" for strips in (token.lstrip, token.rstrip))
    return f"{before}(?P<t{number}>{re.escape(token.content)}){behind}"
