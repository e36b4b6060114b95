"""Special tokens of a tokenizer in a text, found in one pass.

A pattern that lists thousands of tokens one after the other is tried at each position from the first to the last. Here
tokens that begin alike share their beginning, `<(?:s>|/s>|unused(?:0>|1(?:0>|>)))`, so that a position costs at most as
many comparisons as the longest token has characters, however many tokens there are.

Special tokens that are written out in texts, counted for each document.

In a column: one pass of Arrow's regular expressions, 10 GB/s for a few special tokens that begin alike, 450 MB/s for a
thousand. In Python strings: only those that hold the beginning of a special token are passed to Arrow. `in` runs at 2
to 7 GB/s.

Control tokens that a tokenizer does not mark as special: `<tool_call>`, `</think>`.

Engines encode them as tokens wherever they occur in a text, with no option against it. So a text in which someone has
written one is encoded by a copy of the tokenizer that marks them as special: then they can be encoded as plain letters.

Begin and end tokens, inserted into flat ids in one pass: about 1 ns a token.
"""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.text.tokenizers.engine import ReferenceEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import Texts
    from gristmill.text.tokenizers.files import TokenizerFacts, TokenizerFiles


_MAX_NESTED = 40
"""How deep groups are nested. Python's parser of patterns calls itself for each level."""


class _StrippingToken(msgspec.Struct):
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_StrippingToken] | None = None


class SpecialTokenFinder:
    """Finds special tokens, and control tokens that are not marked as special, with the space that they strip."""

    def __init__(self, files: TokenizerFiles) -> None:
        added = msgspec.json.decode(files.read(), type=_AddedTokens).added_tokens or ()
        tokens = [token for token in added if token.special or is_unmarked_control(token.content, special=False)]
        self._pattern = compile_tokens(token.content for token in tokens)
        self._strips_before = {token.content for token in tokens if token.lstrip}
        self._strips_after = {token.content for token in tokens if token.rstrip}

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Find all tokens in a text: where each begins and ends, and its content."""
        position = 0
        while self._pattern is not None and (match := self._pattern.search(text, position)):
            (begin, end), token = match.span(), match.group()
            if token in self._strips_before:
                begin = position + len(text[position:begin].rstrip())
            if token in self._strips_after:
                end = _skip_space(text, end)
            yield begin, end, token
            position = end


def compile_tokens(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Compile a pattern that matches tokens; None if there are none.

    Of several that begin at the same position it matches the longest, as tokenizers do.

    >>> compile_tokens(["<s>", "</s>", "<s>>", ""]).findall("<s>> </s>s>")
    ['<s>>', '</s>']
    """
    contents = sorted({token for token in tokens if token})
    return re.compile(_join_tokens(contents, 0)) if contents else None


def _join_tokens(endings: list[str], depth: int) -> str:
    """Make a pattern of endings, which are sorted and not empty, that tries the longest first."""
    if depth == _MAX_NESTED:
        return "|".join(re.escape(ending) for ending in sorted(endings, key=len, reverse=True))
    alternatives = []
    for _, alike in groupby(endings, key=lambda ending: ending[0]):
        group = list(alike)
        beginning = os.path.commonprefix(group)  # noqa: RUF071  (characters are what is meant)
        rest = [ending.removeprefix(beginning) for ending in group]
        longer = [ending for ending in rest if ending]
        inner = f"(?:{_join_tokens(longer, depth + 1)}){'?' if len(longer) < len(rest) else ''}" if longer else ""
        alternatives.append(re.escape(beginning) + inner)
    return "|".join(alternatives)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


MAX_BEGINNINGS = 4
"""How many beginnings are looked for in strings. With more, all strings are passed to Arrow."""


class SpecialLiterals:
    """Counts special tokens in texts.

    >>> import pyarrow as pa
    >>> SpecialLiterals(["<s>", "</s>"]).count(pa.array(["<s>a</s>", "s", "<<s>"])).tolist()
    [2, 0, 1]
    >>> SpecialLiterals(["sop"], whole_words=True).count(pa.array(["[gMASK] sop", "philosophy"])).tolist()
    [1, 0]
    """

    def __init__(self, tokens: Iterable[str], *, whole_words: bool = False) -> None:
        """`whole_words` counts no token inside a word: ChatGLM's `sop` and `eop` are in philosophy and people."""
        # The longest first: of two that begin at the same position, tokenizers choose the longer one.
        longest_first = sorted((token for token in tokens if token), key=lambda token: (-len(token), token))
        # RE2 accepts no escaped spaces or letters beyond ASCII.
        patterns = [
            "".join(re.escape(char) if char.isascii() and not char.isspace() else char for char in token)
            for token in longest_first
        ]
        if whole_words:
            patterns = [
                rf"\b{pattern}\b" if _is_word(token) else pattern
                for token, pattern in zip(longest_first, patterns, strict=True)
            ]
        self._pattern = "|".join(patterns)
        self._beginnings = find_beginnings(longest_first)

    def count(self, texts: pa.Array) -> NDArray[np.int64]:
        """Count the tokens in each text."""
        if not self._pattern:
            return np.zeros(len(texts), dtype=np.int64)
        matches = pc.count_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)
        counts: NDArray[np.int64] = matches.astype(np.int64)
        return counts

    def count_in(self, texts: Texts) -> NDArray[np.int64]:
        """Like `count`, in the form that the texts have."""
        if texts.column is not None:
            return self.count(texts.column)
        counts = np.zeros(len(texts), dtype=np.int64)
        if not self._pattern:
            return counts
        rows, suspects = self._find_suspects(texts.strings)
        if suspects:
            counts[rows] = self.count(pa.array(suspects, pa.large_string()))
        return counts

    def _find_suspects(self, strings: list[str]) -> tuple[list[int], list[str]]:
        """Return the strings that hold the beginning of a token, and their numbers."""
        beginnings = self._beginnings
        if len(beginnings) > MAX_BEGINNINGS:
            return list(range(len(strings))), strings
        rows: set[int] = set()
        for beginning in beginnings:
            # One character is found ten times as fast as several, and most texts do not hold both of these.
            first, last = beginning[0], beginning[-1]
            rows.update(row for row, text in enumerate(strings) if first in text and last in text and beginning in text)
        in_order = sorted(rows)
        return in_order, [strings[row] for row in in_order]


def find_beginnings(tokens: Sequence[str]) -> list[str]:
    """Find what tokens with the same first character begin with, in common."""
    by_first = groupby(sorted(tokens), key=lambda token: token[0])
    return [os.path.commonprefix(list(alike)) for _, alike in by_first]  # noqa: RUF071  (characters are what is meant)


def is_inside_word(text: str | bytes, begin: int, end: int) -> bool:
    """Tell whether a token in a text is a word and part of a longer one.

    >>> is_inside_word("philosophy", 5, 8), is_inside_word("a sop.", 2, 5), is_inside_word("a<s>b", 1, 4)
    (True, False, False)
    """
    return _is_word(text[begin:end]) and (text[begin - 1 : begin].isalnum() or text[end : end + 1].isalnum())


def _is_word(token: str | bytes) -> bool:
    return token.isascii() and token.isalnum()


_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


def is_unmarked_control(token: str, *, special: bool) -> bool:
    """Tell whether an added token is such a control token. Added runs of spaces and words are not."""
    return not special and _LOOKS_LIKE_CONTROL.fullmatch(token) is not None


def find_unmarked_controls(facts: TokenizerFacts) -> dict[str, int]:
    """Find all tokens of a tokenizer that look like control tokens and are not marked as special, with their ids."""
    return {
        token: number
        for token, number in facts.added_tokens.items()
        if is_unmarked_control(token, special=token in facts.special_tokens)
    }


class PlainTextEngine(ReferenceEngine):
    """The reference engine with all control tokens encoded as plain text, marked as special or not."""

    def __init__(self, files: TokenizerFiles) -> None:
        super().__init__(files, specials_as_text=True)

    def _load(self) -> Any:
        import tokenizers  # noqa: PLC0415

        described = msgspec.json.decode(self._files.read())
        for token in described.get("added_tokens") or ():
            token["special"] = token["special"] or is_unmarked_control(token["content"], special=False)
        tokenizer = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(described))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return tokenizer


def add_end_tokens(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    dtype: type[np.unsignedinteger],
    *,
    begin: int | None,
    end: int | None,
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """Return the ids as `dtype`, with these tokens around each document unless it has them already.

    >>> ids, offsets = add_end_tokens(np.array([5, 6, 9, 7]), np.array([0, 3, 4, 4]), np.uint16, begin=None, end=9)
    >>> ids.tolist(), offsets.tolist()
    ([5, 6, 9, 7, 9, 9], [0, 3, 5, 6])

    If both are the same token, an empty document gets it once.
    """
    first, last = offsets[:-1], offsets[1:]
    filled = last > first
    begins = _lacks_token(ids, first, filled, begin)
    if begin == end:
        begins &= filled
    ends = _lacks_token(ids, last - 1, filled, end)
    new_offsets = np.zeros(len(offsets), dtype=np.int64)
    np.cumsum(last - first + begins + ends, out=new_offsets[1:])
    if new_offsets[-1] == len(ids):
        return ids.astype(dtype), new_offsets
    result = np.empty(new_offsets[-1], dtype=dtype)
    is_old = np.ones(len(result), dtype=bool)
    for places, token in ((new_offsets[:-1][begins], begin), (new_offsets[1:][ends] - 1, end)):
        if token is not None:
            result[places] = token
            is_old[places] = False
    result[is_old] = ids
    return result, new_offsets


def _lacks_token(
    ids: NDArray[np.uint32], places: NDArray[np.int64], filled: NDArray[np.bool_], token: int | None
) -> NDArray[np.bool_]:
    """For each document whether it lacks the token at its place. An empty document does."""
    if token is None:
        return np.zeros(len(places), dtype=bool)
    missing = np.ones(len(places), dtype=bool)
    missing[filled] = ids[places[filled]] != token
    return missing
