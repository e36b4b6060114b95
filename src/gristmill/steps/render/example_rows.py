"""The rendered examples of a batch, collected in flat lists and turned into columns.

No Python object is kept for an example: its text is a few pieces among those of all others, joined once for the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import LITERALS, NUM_TOKENS, ORIGIN, ORIGIN_TYPE, TEXT, TEXT_TYPE, TRAINED
from gristmill.text.chats import NotAChat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gristmill.text.chats import Example, FilledRecord, RenderedRecord

PROMPT = "prompt"
"""The column with the text before the last answer."""
COMPLETION = "completion"
"""The column with the last answer."""


class ExampleRows:
    """The rendered examples of a batch, as columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sources: list[int] = []
        self._parts: list[int] = []
        self._pieces: list[bytes] = []
        self._sizes: list[int] = []
        self._places: dict[str, list[int]] = {TRAINED: [], LITERALS: []}
        self._num_places: dict[str, list[int]] = {TRAINED: [], LITERALS: []}
        self._prompts: list[int] = []

    def add(self, row: int, rendered: RenderedRecord) -> None:
        """Add the examples of a record. Raises `NotAChat` if a text cannot be written in UTF-8; then none is added."""
        encoded = [encode_example(example) for example in rendered.examples]
        for part, (text, trained, literals, answer) in enumerate(encoded):
            self._sources.append(row)
            self._parts.append(part)
            self._pieces.append(text)
            self._sizes.append(len(text))
            for name, places in ((TRAINED, trained), (LITERALS, literals)):
                self._places[name] += places
                self._num_places[name].append(len(places))
            self._prompts.append(answer)

    def add_filled(self, row: int, filled: FilledRecord) -> None:
        """Add the one example of a record that a plan has filled in."""
        self._sources.append(row)
        self._parts.append(0)
        self._pieces += filled.pieces
        self._sizes.append(filled.num_bytes)
        *trained, answer = filled.places
        self._places[TRAINED] += trained
        self._num_places[TRAINED].append(len(trained))
        self._num_places[LITERALS].append(0)
        self._prompts.append(answer)

    def to_batch(
        self, batch: pa.RecordBatch, count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None
    ) -> pa.RecordBatch:
        """Make the batch of the examples; `batch` has the records that they came from."""
        rows = pa.array(self._sources, pa.int64())
        data = b"".join(self._pieces)
        ends = _sum_up(self._sizes)
        borders = ends[:-1] + np.array(self._prompts, dtype=np.int64)  # between a prompt and its completion
        columns: dict[str, pa.Array] = {}
        for name in self._schema.names:
            if name in self._places:
                places = pa.array(np.array(self._places[name], dtype=np.int64))
                offsets = pa.array(_sum_up(self._num_places[name]).astype(np.int32))
                columns[name] = pa.ListArray.from_arrays(offsets, places, type=self._schema.field(name).type)
            elif name == TEXT:
                columns[name] = _make_texts(ends, data)
            elif name == NUM_TOKENS and count_tokens is not None:
                columns[name] = pa.array(count_tokens(_make_texts(ends, data)), pa.int64())
            elif name == PROMPT:
                columns[name] = _cut_texts(data, ends[:-1], borders)
            elif name == COMPLETION:
                columns[name] = _cut_texts(data, borders, ends[1:])
            elif name == ORIGIN:
                columns[name] = self._make_origins(batch.column(ORIGIN).take(rows))
            else:
                columns[name] = batch.column(name).take(rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _make_origins(self, origins: pa.StructArray) -> pa.StructArray:
        """Return the origins of examples: several examples of one record are its parts."""
        if not any(self._parts):
            return origins
        parts = pc.add(origins.field("part"), pa.array(self._parts, pa.uint32()))
        fields = [origins.field("file"), origins.field("position"), parts]
        return pa.StructArray.from_arrays(fields, fields=list(ORIGIN_TYPE))


def encode_example(example: Example) -> tuple[bytes, list[int], list[int], int]:
    """Return the text in UTF-8 and its places in bytes. Each character is encoded once.

    Raises:
        NotAChat: The text has a lone surrogate.
    """
    trained = [place for span in example.trained for place in span]
    literals = [place for span in example.literals for place in span]
    text = example.text
    if text.isascii():
        return text.encode(), trained, literals, example.last_answer
    places = sorted({*trained, *literals, example.last_answer, len(text)})
    pieces, in_bytes, start, num_bytes = [], {}, 0, 0
    try:
        for place in places:
            pieces.append(text[start:place].encode())
            num_bytes += len(pieces[-1])
            in_bytes[place] = num_bytes
            start = place
    except UnicodeEncodeError as error:
        raise NotAChat("lone_surrogate", str(error)) from None
    joined = b"".join(pieces)
    return (
        joined,
        [in_bytes[place] for place in trained],
        [in_bytes[place] for place in literals],
        in_bytes[example.last_answer],
    )


def _sum_up(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(sizes, dtype=np.int64))])


def _make_texts(offsets: NDArray[np.int64], data: bytes) -> pa.LargeStringArray:
    """Make a column of texts. They were encoded here, so they need no check."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    texts: Any = pa.Array.from_buffers(TEXT_TYPE, len(offsets) - 1, buffers)
    return texts


def _cut_texts(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.LargeStringArray:
    pieces = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return _make_texts(_sum_up([len(piece) for piece in pieces]), b"".join(pieces))
