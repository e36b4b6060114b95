"""The texts of a batch as Python strings or as an Arrow column, one made from the other only when it is needed.

A JSON decoder makes strings and a tokenizer takes strings. An Arrow column between them would cost two copies and their
memory: 4 to 9 ns a byte, half of what the fast tokenizer itself takes.
"""

from __future__ import annotations

from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Texts:
    """The texts of some records, none of them null.

    >>> texts = Texts(["Grüße", "a"])
    >>> len(texts), texts.sizes.tolist(), texts.num_bytes
    (2, [7, 1], 8)
    """

    def __init__(self, texts: Sequence[str] | pa.Array, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        """The schema from which a reader left their column out."""
        self._column = texts if isinstance(texts, pa.Array) else None
        self._strings = None if isinstance(texts, pa.Array) else list(texts)
        self._chosen_from: tuple[Texts, NDArray[np.bool_]] | None = None

    def __len__(self) -> int:
        return len(self.strings if self._column is None else self._column)

    @property
    def column(self) -> pa.Array | None:
        """The texts as a column, if they came as one."""
        return self._column

    @cached_property
    def strings(self) -> list[str]:
        if self._strings is not None:
            return self._strings
        assert self._column is not None
        strings: list[str] = self._column.to_pylist()
        return strings

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each text in UTF-8. Of strings this is cheap once a tokenizer has read them.

        Python keeps the UTF-8 form of a string after native code has asked for it, so that `encode` only copies it.
        """
        if self._column is not None:
            sizes: NDArray[np.int64] = pc.binary_length(self._column).to_numpy(zero_copy_only=False).astype(np.int64)
            return sizes
        if self._chosen_from is not None:  # all texts are measured once
            texts, is_kept = self._chosen_from
            return texts.sizes[is_kept]
        return np.array([len(text) if text.isascii() else len(text.encode()) for text in self.strings], np.int64)

    @property
    def num_bytes(self) -> int:
        return int(self.sizes.sum())

    def filter(self, is_kept: NDArray[np.bool_]) -> Texts:
        """Return the texts that are kept."""
        if self._column is not None:
            return Texts(self._column.filter(pa.array(is_kept)), self.schema)
        texts = Texts(list(compress(self.strings, is_kept.tolist())), self.schema)
        texts._chosen_from = self, is_kept
        return texts
