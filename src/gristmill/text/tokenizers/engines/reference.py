"""The reference engine: Hugging Face's `tokenizers`. Always installed, loads every `tokenizer.json`, 1 to 2 MB/s.

It needs about 150 bytes of memory for each byte of a text. So it gets one text at a time, and a long one in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers.engines.engine import REFERENCE, Engine
from gristmill.text.tokenizers.engines.pieces import encode_in_pieces
from gristmill.text.tokenizers.facts import make_not_a_tokenizer_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


class ReferenceEngine(Engine):
    """The reference engine, on the library `tokenizers`."""

    name: ClassVar[str] = REFERENCE

    def __init__(self, files: TokenizerFiles, *, specials_as_text: bool) -> None:
        import tokenizers  # noqa: PLC0415

        super().__init__(files, specials_as_text=specials_as_text)
        self.version = tokenizers.__version__
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(files.read())
        except ValueError as error:
            raise make_not_a_tokenizer_error(files, error) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = specials_as_text

    def check_ids(self) -> None:
        """Refuse a file whose added tokens are loaded with other ids: engines number them without gaps."""
        loaded = {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        for token, number in self.facts.added_tokens.items():
            if loaded.get(token) != number:
                raise UsageError(
                    f"{self._files.path} says that {token!r} is {number}, but it is loaded as {loaded.get(token)}",
                    help="number the added tokens without a gap after the vocabulary, or save the tokenizer again",
                )

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        parts: list[NDArray[np.uint32]] = []
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        for index, text in enumerate(texts):
            pieces = encode_in_pieces(self._encode_one, text)
            parts += pieces
            offsets[index + 1] = sum(len(piece) for piece in pieces)
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)
        return ids, np.cumsum(offsets)

    def _encode_one(self, text: str) -> NDArray[np.uint32]:
        # A batch of one text, because the other method also computes the offsets of all tokens.
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # the library raises nothing more exact
            raise UsageError(
                f"{self._files.path}: {REFERENCE} {self.version} cannot encode {text[:60]!r}: {error}",
                help="add a token for unknown text (unk_token) to the tokenizer, or use another one",
            ) from error
        return np.array(encoding.ids, dtype=np.uint32)

    def token_spans(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode a text; returns the ids, and for each the bytes of the text that it stands for, from and to. Slow."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        if not text.isascii():
            sizes = np.array([len(char.encode()) for char in text], dtype=np.int64)
            spans = np.concatenate([[0], np.cumsum(sizes)])[spans]
        return np.array(encoding.ids, dtype=np.uint32), spans
