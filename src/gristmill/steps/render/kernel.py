"""Chats to text in a worker: each record is decoded, rendered to one or more texts, and kept in buffers only."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import (
    LITERALS,
    NUM_TOKENS,
    ORIGIN,
    ORIGIN_TYPE,
    RECORD,
    TEXT,
    TEXT_TYPE,
    TRAINED,
    QuarantinedRecord,
    StepResult,
)
from gristmill.steps.records.record_functions import RefusedRecord, decode_records, quarantine_exception, quarantine_row
from gristmill.text.chats import NotAChat
from gristmill.text.chats.template_limits import TemplateTimeout
from gristmill.text.tokenizers import SpecialLiterals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gristmill.text.chats import Example, ExampleMaker, RenderedRecord
    from gristmill.text.chats.template_limits import TemplateLimits


PROMPT = "prompt"
"""The column with the text before the last answer."""
COMPLETION = "completion"
"""The column with the last answer."""


class RenderKernel:
    """A compiled template that renders the records of a batch."""

    def __init__(
        self,
        maker: ExampleMaker,
        output_schema: Callable[[pa.Schema], pa.Schema],
        special_tokens: Sequence[str],
        limits: TemplateLimits | None = None,
        count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None,
    ) -> None:
        self.maker = maker
        self._limits = limits
        self._output_schema = output_schema
        self._count_tokens = count_tokens
        self._literals = SpecialLiterals(special_tokens)
        # A JSON line may hold a token without its letters: by escapes, or in content parts that are joined later.
        is_escaped = any(character < " " or character in '\\"' for token in special_tokens for character in token)
        self._hiding = ("\\", '"type"') if is_escaped else ("\\u", "\\/", '"type"')

    def begin_task(self) -> None:
        """Do nothing: no record depends on an earlier one."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        with self._limits or nullcontext():
            return self._apply(batch)

    def _apply(self, batch: pa.RecordBatch) -> StepResult:
        schema = self._output_schema(batch.schema)
        suspects = self._may_hold_literals(batch)
        rows = _ExampleRows(schema)
        quarantined: list[QuarantinedRecord] = []
        dropped: Counter[str] = Counter()
        counters: Counter[str] = Counter()
        created = 0
        for row, record in enumerate(decode_records(batch)):
            if self._limits is not None:
                self._limits.restart()
            try:
                if isinstance(record, RefusedRecord):
                    raise NotAChat(record.reason, record.message)
                if RECORD not in batch.schema.names:
                    record = _without_nulls(record)  # noqa: PLW2901
                rendered = self.maker.make(record, may_hold_literals=bool(suspects[row]))
                rows.add(row, rendered)
            except NotAChat as problem:
                quarantined.append(quarantine_row(batch, row, problem.reason, problem.message))
                continue
            except TemplateTimeout as error:
                quarantined.append(quarantine_row(batch, row, "timeout", f"the template {error}"))
                continue
            except Exception as error:  # a template can raise anything: that costs one record, not the run
                quarantined.append(quarantine_exception(batch, row, error))
                continue
            created += len(rendered.examples) + len(rendered.dropped) - 1
            dropped.update(rendered.dropped)
            for name, count in rendered.counts:
                counters[name] += count
        texts = rows.to_batch(batch, self._count_tokens)
        return StepResult(texts, dict(dropped), created=created, quarantined=quarantined, counters=dict(counters))

    def _may_hold_literals(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """For each row whether a special token may be written in it: visible in the raw line, or hidden by escapes."""
        if RECORD not in batch.schema.names:
            return np.ones(batch.num_rows, dtype=bool)
        lines = batch.column(RECORD).cast(TEXT_TYPE)
        is_suspect: NDArray[np.bool_] = self._literals.count(lines) > 0
        for sign in self._hiding:
            is_suspect |= pc.match_substring(lines, sign).to_numpy(zero_copy_only=False).astype(bool)
        return is_suspect


class _ExampleRows:
    """The rendered examples of a batch, as columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sources: list[int] = []
        self._parts: list[int] = []
        self._texts: list[bytes] = []
        self._places: dict[str, list[list[int]]] = {TRAINED: [], LITERALS: []}
        self._prompts: list[int] = []

    def add(self, row: int, rendered: RenderedRecord) -> None:
        encoded = [_encode_example(example) for example in rendered.examples]
        for part, (text, trained, literals, answer) in enumerate(encoded):
            self._sources.append(row)
            self._parts.append(part)
            self._texts.append(text)
            self._places[TRAINED].append(trained)
            self._places[LITERALS].append(literals)
            self._prompts.append(answer)

    def to_batch(
        self, batch: pa.RecordBatch, count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None
    ) -> pa.RecordBatch:
        rows = pa.array(self._sources, pa.int64())
        columns: dict[str, pa.Array] = {}
        for name in self._schema.names:
            if name in self._places:
                columns[name] = pa.array(self._places[name], self._schema.field(name).type)
            elif name == TEXT:
                columns[name] = _to_text_array(self._texts)
            elif name == NUM_TOKENS and count_tokens is not None:
                columns[name] = pa.array(count_tokens(_to_text_array(self._texts)), pa.int64())
            elif name == PROMPT:
                columns[name] = _to_text_array(
                    [text[:end] for text, end in zip(self._texts, self._prompts, strict=True)]
                )
            elif name == COMPLETION:
                columns[name] = _to_text_array(
                    [text[end:] for text, end in zip(self._texts, self._prompts, strict=True)]
                )
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


def _to_text_array(texts: Sequence[bytes]) -> pa.Array:
    return pa.array(texts, pa.large_binary()).cast(TEXT_TYPE)


def _encode_example(example: Example) -> tuple[bytes, list[int], list[int], int]:
    """Return the text in UTF-8 and its places in bytes. Each character is encoded once."""
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


def _without_nulls(value: Any) -> Any:
    """Remove nulls: in columns every message has the fields of all messages, so most nulls were never written."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None or key == "content"}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
