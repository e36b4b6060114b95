r"""Where an answer begins: where the prompt for it ends in the rendering, even if the two do not agree to the end.

    prompt:     <|user|>2+2?<|end|><|assistant|><think>\n
    rendering:  <|user|>2+2?<|end|><|assistant|>4<|end|>
                                                ^ the answer begins here, and `<think>\n` is missing

A comparison by characters alone would be wrong where an answer happens to begin like the rest of the prompt, or where
the two part in the middle of a token: then the start snaps back to the token's own start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import re

_MAX_HEADER_SHIFT = 64


class AnswerStart(NamedTuple):
    """The start of an answer in a rendering, and what the prompt holds beyond it."""

    start: int
    missing: str
    is_shifted: bool = False
    """Whether the rendering has something before it that the prompt has not."""


class CommonPrefix:
    """The text that a prompt and a rendering begin with."""

    def __init__(self, prompt: str, text: str, specials: re.Pattern[str]) -> None:
        self._prompt = prompt
        self._text = text
        self._specials = specials
        self.length = find_common_length(prompt, text)

    def find_start(self, history: int, generation_prompt: str) -> AnswerStart:
        """Find the start of the answer.

        Args:
            history: Where in the prompt the last message ends. An answer never starts before it.
            generation_prompt: The end of the prompt that the template adds for an answer.

        A rendering may have the generation prompt a little later than the prompt (one more line end behind the last
        message, say). Then the two part before it, and the answer still starts behind it.
        """
        begin = len(self._prompt) - len(generation_prompt)
        position = self.length if self.length < begin else begin
        header = self._snap_to_token(self.length, self.length)
        if self.length < begin and generation_prompt:
            window = self._text[position : position + _MAX_HEADER_SHIFT]
            first_token = self._specials.match(generation_prompt)
            shift = window.find(first_token.group() if first_token else generation_prompt[:1])
            if shift >= 0 and not self._specials.sub("", window[:shift]).strip():
                rest = self._text[position + shift : position + shift + len(generation_prompt)]
                length = find_common_length(generation_prompt, rest)
                header = self._snap_to_token(begin + length, position + shift + length)._replace(is_shifted=True)
        header = max(header, self._find_last_words(history, header.start), key=lambda candidate: candidate.start)
        return header if header.start >= history else AnswerStart(history, self._prompt[history:])

    def _find_last_words(self, history: int, parted: int) -> AnswerStart:
        """Find the prompt's last words in the rendering, around the position where the two part.

        A prompt may say more before the assistant's turn begins: `<|turn|>system…<|end|><|turn|>assistant`.
        """
        for token in self._specials.finditer(self._prompt, self.length):
            last_words = self._prompt[token.start() :]
            position = self._text.find(last_words, history, parted + len(last_words))
            if 0 <= position <= parted:
                return AnswerStart(position + len(last_words), self._prompt[self.length :], is_shifted=True)
        return AnswerStart(0, "")

    def _snap_to_token(self, in_prompt: int, in_text: int) -> AnswerStart:
        """Move back to the start of a token that one of the two has there: `<|a` is no common text of two tokens."""
        num_back = 0
        for text, position in ((self._prompt, in_prompt), (self._text, in_text)):
            near = max(0, position - _MAX_HEADER_SHIFT)
            for token in self._specials.finditer(text, near, position + _MAX_HEADER_SHIFT):
                if token.start() < position < token.end():
                    num_back = max(num_back, position - token.start())
        return AnswerStart(in_text - num_back, self._prompt[in_prompt - num_back :])


def find_common_length(first: str, second: str) -> int:
    """Count the characters that two texts begin with in common.

    >>> find_common_length("abcd", "abx")
    2
    """
    low, high = 0, min(len(first), len(second))
    while low < high:  # comparing slices is faster than comparing character by character
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
