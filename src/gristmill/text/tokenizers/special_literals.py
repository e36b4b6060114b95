"""Special tokens that are written out in texts, counted for each document.

One pass of Arrow's regular expressions over the whole column: 10 GB/s for a few special tokens that begin alike,
450 MB/s for a thousand. Makes no Python object per document.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray


class SpecialLiterals:
    """Counts special tokens in texts.

    >>> import pyarrow as pa
    >>> SpecialLiterals(["<s>", "</s>"]).count(pa.array(["<s>a</s>", "s", "<<s>"])).tolist()
    [2, 0, 1]
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        # The longest first: of two that begin at the same position, tokenizers choose the longer one.
        longest_first = sorted((token for token in tokens if token), key=lambda token: (-len(token), token))
        self._pattern = "|".join(_escape_token(token) for token in longest_first)

    def count(self, texts: pa.Array) -> NDArray[np.int64]:
        """Count the tokens in each text."""
        if not self._pattern:
            return np.zeros(len(texts), dtype=np.int64)
        matches = pc.count_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)
        counts: NDArray[np.int64] = matches.astype(np.int64)
        return counts


def _escape_token(token: str) -> str:
    """Escape a token for RE2, which accepts no escaped spaces or letters beyond ASCII."""
    return "".join(re.escape(char) if char.isascii() and not char.isspace() else char for char in token)
