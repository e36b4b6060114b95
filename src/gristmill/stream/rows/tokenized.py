"""Samples as rows of tokens: their texts are encoded where a batch is made, or they hold ids already.

One sample becomes one row, so the order stays that of the samples. All texts of a batch are encoded in one call, and
the kernel of stored rows fills the arrays of the batch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.stream.stream_kernels import (
    A_DOCUMENTS,
    A_FILLED,
    A_ID_BYTES,
    A_IDS,
    A_LENGTHS,
    A_SHARD,
    A_STORED,
    ADDRESS_COLUMNS,
)
from gristmill.text.tokenizers.choose import AUTO, choose_engine
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer, read_facts
from gristmill.text.tokenizers.special_tokens import add_end_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.stream.lanes.arguments import TokenizeTexts
    from gristmill.text.tokenizers.engine import Engine


_TEXT_COLUMNS = ("text", "txt", "content")
_MAX_ID = (1 << 31) - 1


class SampleIds:
    """Finds the ids of samples: in a column, or by encoding their texts. Threads may use it together."""

    def __init__(self, column: str | None, settings: TokenizeTexts | None) -> None:
        self._column = column
        self._settings = settings
        self.pad_id: int | None = None
        if settings is not None:
            self._files = find_tokenizer(settings.tokenizer)
            self._engine = choose_engine(self._files, AUTO, specials_as_text=True).engine
            facts = read_facts(self._files)
            self.pad_id = facts.pad_id if facts.pad_id is not None else facts.eos_id
            self._begin = facts.bos_id if settings.add_bos else None
            self._end = facts.eos_id if settings.add_eos else None
            for role, token in (("bos", facts.bos_id), ("eos", facts.eos_id)):
                if getattr(settings, f"add_{role}") and token is None:
                    raise UsageError(
                        f"add_{role}: {self._files.path} does not name that token",
                        help=f'pass tokenize={{"tokenizer": …, "add_{role}": False}}',
                    )
        self._loaded = threading.local()

    def find(self, samples: Sequence[Mapping[str, Any]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each sample."""
        if self._settings is None:
            return [self._take_column(sample) for sample in samples]
        ids, offsets = self._load().encode([_find_text(sample, self._settings.text) for sample in samples])
        ids, offsets = add_end_tokens(ids, offsets, np.uint32, begin=self._begin, end=self._end)
        most = self._settings.max_tokens
        borders = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        return [ids[start : stop if most is None else min(stop, start + most)] for start, stop in borders]

    def _load(self) -> Engine:
        """Load the tokenizer once a thread: threads would wait for each other."""
        engine: Engine | None = getattr(self._loaded, "engine", None)
        if engine is None:
            engine = self._loaded.engine = load_engine(self._files, self._engine)
        return engine

    def _take_column(self, sample: Mapping[str, Any]) -> NDArray[np.uint32]:
        assert self._column is not None
        if self._column not in sample:
            raise UsageError(f"a sample has no {self._column}, only {', '.join(sample)}", help='name its ids: ids="…"')
        ids = np.asarray(sample[self._column])
        is_plain = ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids))
        if not is_plain or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= _MAX_ID):
            raise UsageError(
                f"{self._column} of a sample is not a list of token ids: {ids!r:.80}", help="ids are from 0 to 2^31 - 1"
            )
        return ids.astype(np.uint32)


def make_addresses(
    ids: Sequence[NDArray[np.uint32]], shards: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[NDArray[Any], NDArray[Any]]]:
    """Return the addresses of rows, and what must be kept as long as they are used.

    `shards` has the shard of each row, -1 for rows at the end that only fill up a batch and have no ids.
    """
    addresses = np.zeros((len(shards), ADDRESS_COLUMNS), dtype=np.int64)
    addresses[:, A_SHARD] = shards
    lengths = np.array([len(row) for row in ids], dtype=np.int32)
    values = np.concatenate([np.empty(0, np.uint32), *ids])
    rows = addresses[: len(ids)]
    rows[:, A_STORED] = rows[:, A_FILLED] = lengths
    rows[:, A_DOCUMENTS] = 1
    rows[:, A_ID_BYTES] = 4
    rows[:, A_IDS] = values.ctypes.data + 4 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    rows[:, A_LENGTHS] = lengths.ctypes.data + 4 * np.arange(len(ids))
    return addresses, (values, lengths)


def _find_text(sample: Mapping[str, Any], column: str | None) -> str:
    name = column if column is not None else next((name for name in _TEXT_COLUMNS if name in sample), None)
    if name is None or name not in sample:
        raise UsageError(
            f"a sample has no text: its columns are {', '.join(sample)}",
            help='name the column: tokenize={"tokenizer": …, "text": "…"}',
        )
    text = sample[name]
    if isinstance(text, bytes):
        text = text.decode()
    if not isinstance(text, str):
        raise UsageError(f"the text of a sample, {name}, is {type(text).__name__}", help="make it a str in transform=")
    return text
