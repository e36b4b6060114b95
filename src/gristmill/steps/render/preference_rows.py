"""The rendered preferences of a batch as columns: the prompt as text, the answers after it, and what was judged.

| column | pairs | labels |
|---|---|---|
| `text` | the prompt and the chosen answer | the prompt and the completion |
| `prompt` | what all answers of the row begin with | |
| `chosen`, `rejected` or `completion` | the rest of each text | |
| `trained` | where the answer in `text` is | |
| `literals`, `rejected_literals` | where someone wrote special tokens, in each text | |
| `margin`, `score_chosen`, `score_rejected` or `label`, `score` | as the record has them | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import LITERALS, ORIGIN, PLACES_TYPE, TEXT, TEXT_TYPE, TRAINED
from gristmill.shards.token_rows import LABEL_VALUES, PAIR_VALUES
from gristmill.steps.render.example_rows import COMPLETION, PROMPT, encode_example, make_origins, make_texts, sum_up
from gristmill.text.chats.preferences import CHOSEN, PAIRS, REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.text.chats.options import RenderedRecord
    from gristmill.text.chats.record_plan import RecordPlan


REJECTED_LITERALS = "rejected_literals"
_LITERALS_OF_SIDES = (LITERALS, REJECTED_LITERALS)


def list_sides(form: str) -> tuple[str, ...]:
    """List the columns of the answers."""
    return (CHOSEN, REJECTED) if form == PAIRS else (COMPLETION,)


def list_preference_fields(form: str, *, is_tokenized: bool) -> list[pa.Field]:
    """List the columns that `render` adds for preferences."""
    sides = list_sides(form)
    texts = [pa.field(name, TEXT_TYPE) for name in (TEXT, PROMPT, *sides)]
    places = [TRAINED, *_LITERALS_OF_SIDES[: len(sides)]] if is_tokenized else []
    return [*texts, *(pa.field(name, PLACES_TYPE) for name in places), *_list_values(form)]


def _list_values(form: str) -> list[pa.Field]:
    return [pa.field(*value) for value in (PAIR_VALUES if form == PAIRS else LABEL_VALUES)]


class PreferenceRows:
    """The rendered preferences of a batch: a row has one text for each of its sides."""

    def __init__(self, schema: pa.Schema, form: str) -> None:
        self._schema = schema
        self._sides = list_sides(form)
        self._value_fields = _list_values(form)
        self._sources: list[int] = []
        """For each row the row of its record."""
        self._parts: list[int] = []
        self._texts: list[list[bytes]] = [[] for _ in self._sides]
        self._literals: list[list[list[int]]] = [[] for _ in self._sides]
        self._borders: list[int] = []
        """For each row the bytes of its prompt."""
        self._values: list[Mapping[str, Any]] = []

    def add(self, row: int, rendered: RenderedRecord) -> int:
        """Add the preferences of a record; return how many rows these are."""
        encoded = [encode_example(example) for example in rendered.examples]
        for part, values in enumerate(rendered.values):
            self._sources.append(row)
            self._parts.append(part)
            self._values.append(values)
            sides = encoded[part * len(self._sides) : (part + 1) * len(self._sides)]
            for number, (text, _, literals, _) in enumerate(sides):
                self._texts[number].append(text)
                self._literals[number].append(literals)
            self._borders.append(sides[0][-1])
        return len(rendered.values)

    def count_filled(self) -> Iterator[tuple[RecordPlan, int]]:
        """Count the records that each plan has filled in."""
        return iter(())

    def to_batch(
        self,
        batch: pa.RecordBatch,
        count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None,  # noqa: ARG002  (of chats kept as chats)
    ) -> pa.RecordBatch:
        """Make the batch of the rows; `batch` has the records that they came from."""
        rows = pa.array(self._sources, pa.int64())
        columns: dict[str, pa.Array] = {
            TEXT: _join(self._texts[0]),
            PROMPT: _join([text[:border] for text, border in zip(self._texts[0], self._borders, strict=True)]),
            ORIGIN: make_origins(batch.column(ORIGIN).take(rows), np.array(self._parts, dtype=np.uint32)),
        }
        for name, texts in zip(self._sides, self._texts, strict=True):
            columns[name] = _join([text[border:] for text, border in zip(texts, self._borders, strict=True)])
        for name, literals in zip(_LITERALS_OF_SIDES, self._literals, strict=False):
            columns[name] = pa.array(literals, PLACES_TYPE)
        trained = [[border, len(text)] for border, text in zip(self._borders, self._texts[0], strict=True)]
        columns[TRAINED] = pa.array(trained, PLACES_TYPE)
        for field in self._value_fields:
            columns[field.name] = pa.array([values[field.name] for values in self._values], field.type)
        for name in self._schema.names:
            if name not in columns:
                columns[name] = batch.column(name).take(rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def _join(texts: Sequence[bytes]) -> pa.Array:
    return make_texts(sum_up(map(len, texts), len(texts)), b"".join(texts))
