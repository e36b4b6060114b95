"""The texts and bytes of tokens: one by one to be shown, and whole rows at once to be searched."""

from __future__ import annotations

import codecs
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS
from gristmill.shards.token_rows import tokens_in_rows
from gristmill.text.tokenizers import find_tokenizer, read_token_bytes, split_by_tokens

if TYPE_CHECKING:
    from gristmill.shards.dataset import Dataset


class TokenTexts:
    """The tokens of a dataset as people read them; without a tokenizer, their ids."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        tokenizer = dataset.manifest.tokenizer
        self._has_tokenizer = tokenizer is not None and bool(tokenizer.files)

    @cached_property
    def _bytes(self) -> list[bytes] | None:
        """The bytes of each token; None where they are not known."""
        if not self._has_tokenizer:
            return None
        return read_token_bytes(find_tokenizer(str(self._dataset.manifest.tokenizer_folder(self._dataset.folder))))

    @cached_property
    def _table(self) -> pa.LargeBinaryArray | None:
        return None if self._bytes is None else pa.array(self._bytes, pa.large_binary())

    def describe(self, ids: list[int], trained: list[bool]) -> list[tuple[int, str, int, str]]:
        """Describe tokens: id, text, 1 if it is trained, bytes as hexadecimal numbers."""
        return [
            (token, text, int(flag), self._show_bytes(token))
            for token, text, flag in zip(ids, self._list_texts(ids), trained, strict=True)
        ]

    def _list_texts(self, ids: list[int]) -> list[str]:
        """List the texts of neighbouring tokens. A character of several tokens is the text of the last of them."""
        if not self._has_tokenizer:
            return [f"{token} " for token in ids]
        table = self._bytes
        if table is None or max(ids, default=0) >= len(table):
            return split_by_tokens(self._dataset.decode_ids, ids)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(table[token], final=number == len(ids)) for number, token in enumerate(ids, 1)]

    def _show_bytes(self, token: int) -> str:
        table = self._bytes
        return table[token].hex(" ") if table is not None and token < len(table) else ""

    def decode(self, ids: Any) -> str:
        """Decode ids; without a tokenizer they are shown as numbers."""
        return self._dataset.decode_ids(ids) if self._has_tokenizer else " ".join(map(str, ids.tolist()))

    def decode_rows(self, batch: pa.RecordBatch) -> pa.Array:
        """Decode the rows of a checked batch for a search, without padding."""
        ids, num_tokens = batch.column(INPUT_IDS), tokens_in_rows(batch)
        flat = ids.flatten()
        starts = np.concatenate([[0], np.cumsum(ids.value_lengths().to_numpy(zero_copy_only=False))])
        values = flat.to_numpy(zero_copy_only=False)
        table = self._table
        if table is None or (len(values) and int(values.max()) >= len(table)):
            spans = zip(starts.tolist(), num_tokens.tolist(), strict=False)
            return pa.array([self.decode(values[start : start + count]) for start, count in spans], pa.large_string())
        pieces = table.take(pa.array(values))
        offsets = np.frombuffer(pieces.buffers()[1], np.int64)[pieces.offset : pieces.offset + len(pieces) + 1]
        data = memoryview(pieces.buffers()[2] or b"")
        texts = [
            str(data[offsets[start] : offsets[start + count]], "utf-8", "replace")
            for start, count in zip(starts.tolist(), num_tokens.tolist(), strict=False)
        ]
        return pa.array(texts, pa.large_string())
