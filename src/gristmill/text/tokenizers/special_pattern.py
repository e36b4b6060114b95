"""Where a tokenizer finds its special tokens in a text, with the space that some of them take along."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gristmill.text.tokenizers.control_tokens import is_unmarked_control

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
    """Matches a special token, in a group of its own, and space before or behind it if the token takes that.

    Control tokens that are not marked as special are matched, too. Of two that begin at the same place the longer one
    is taken, as a tokenizer does.
    """
    added = msgspec.json.decode(files.read(), type=_AddedTokens).added_tokens or ()
    tokens = [token for token in added if token.special or is_unmarked_control(token.content, special=False)]
    tokens = [token for token in tokens if token.content]
    if not tokens:
        return None
    tokens.sort(key=lambda token: (-len(token.content), token.content))
    return re.compile("|".join(_alternative(number, token) for number, token in enumerate(tokens)))


def _alternative(number: int, token: _StrippingToken) -> str:
    before, behind = (r"\s*" if strips else "" for strips in (token.lstrip, token.rstrip))
    return f"{before}(?P<t{number}>{re.escape(token.content)}){behind}"
