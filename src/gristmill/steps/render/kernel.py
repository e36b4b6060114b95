"""Chats to text in a worker: each record is decoded, rendered to one or more texts, and kept in buffers only."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import ParityError
from gristmill.core.records import ORIGIN, RECORD, TEXT_TYPE, QuarantinedRecord, StepResult, describe_origin
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.steps.records.columns import has_text_beside
from gristmill.steps.records.record_functions import (
    RefusedRecord,
    decode_record,
    decode_records,
    quarantine_exception,
    quarantine_row,
)
from gristmill.steps.render.compare_with_jinja import compare_filled, make_both_ways
from gristmill.steps.render.example_rows import ExampleRows
from gristmill.steps.render.plain_chats import PlainChatDecoder
from gristmill.text.chats import NotAChat, RecordPlans
from gristmill.text.chats.template_limits import TemplateTimeout
from gristmill.text.chats.tracing.template_tracer import NUM_COMPARED
from gristmill.text.tokenizers import SpecialLiterals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.text.chats import ExampleMaker
    from gristmill.text.chats.template_limits import TemplateLimits


COMPARED_SHARE = 1 / 10_000
"""The share of records that are also rendered by Jinja, if the template is traced."""
_MAX_SINGLE_SEARCHES = 8
"""Number of records that are searched for special tokens one by one, before all of their batch are."""


class RenderKernel:
    """A compiled template that renders the records of a batch."""

    def __init__(
        self,
        maker: ExampleMaker,
        output_schema: Callable[[pa.Schema], pa.Schema],
        special_tokens: Sequence[str],
        limits: TemplateLimits | None = None,
        count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None,
        refer_to_images: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None,
    ) -> None:
        self.maker = maker
        self._limits = limits
        self._output_schema = output_schema
        self._count_tokens = count_tokens
        self._refer_to_images = refer_to_images
        self._decoder = PlainChatDecoder(maker.options, has_images=maker.images is not None)
        self._plans = RecordPlans(maker) if maker.usual_finder.template.tracer is not None else None
        # A JSON line may hold a token without its letters: by escapes, or in content parts that are joined later.
        is_escaped = any(character < " " or character in '\\"' for token in special_tokens for character in token)
        hiding = ("\\", '"type"') if is_escaped else ("\\u", "\\/", '"type"')
        self._suspicious = SpecialLiterals((*special_tokens, *hiding))

    def begin_cell(self) -> None:
        """Do nothing: no record depends on an earlier one."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        with self._limits or nullcontext():
            return self._apply(batch, seed)

    def _apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        schema = self._output_schema(batch.schema)
        suspects = _SuspectRows(batch, self._suspicious)
        compared = self._choose_compared(batch, seed).tolist()
        has_lines = RECORD in batch.schema.names
        is_decoded = not has_lines or has_text_beside(batch.schema)
        records: Sequence[Any] = list(decode_records(batch)) if is_decoded else batch.column(RECORD).to_pylist()
        rows = ExampleRows(schema, self._refer_to_images)
        quarantined: list[QuarantinedRecord] = []
        dropped: Counter[str] = Counter()
        counters: Counter[str] = Counter()
        created = 0
        for row, (record, is_compared) in enumerate(zip(records, compared, strict=True)):
            if self._limits is not None:
                self._limits.restart()
            try:
                chat = self._decoder.decode(record) if not is_decoded else None
                if chat is None:
                    if not is_decoded:
                        record = decode_record(record)  # noqa: PLW2901
                    if isinstance(record, RefusedRecord):
                        raise NotAChat(record.reason, record.message)
                    if not has_lines:
                        record = _without_nulls(record)  # noqa: PLW2901
                    chat = self._decoder.read(record) if self._plans is not None else None
                if chat is not None and self._plans is not None:
                    filled = self._plans.fill(*chat)
                    if filled is not None:
                        plan, pieces = filled
                        if is_compared or plan.num_compared < NUM_COMPARED:
                            plan.num_compared += 1
                            compare_filled(self.maker, chat, plan, pieces)
                        rows.add_filled(row, plan, pieces)
                        continue
                if type(record) is bytes:
                    record = decode_record(record)  # noqa: PLW2901
                if is_compared:
                    rendered = make_both_ways(self.maker, record, may_hold_literals=suspects.has(row))
                else:
                    rendered = self.maker.make(record, may_hold_literals=suspects.has(row))
                rows.add(row, rendered)
            except NotAChat as problem:
                quarantined.append(quarantine_row(batch, row, problem.reason, problem.message))
                continue
            except TemplateTimeout as error:
                quarantined.append(quarantine_row(batch, row, "timeout", f"the template {error}"))
                continue
            except ParityError as difference:
                origin = batch.column(ORIGIN)[row].as_py()
                message = f"{difference.message}; it is at {describe_origin(origin)}"
                raise ParityError(message, help=difference.help, **origin) from None
            except Exception as error:  # a template can raise anything: that costs one record, not the run
                quarantined.append(quarantine_exception(batch, row, error))
                continue
            created += len(rendered.examples) + len(rendered.dropped) - 1
            dropped.update(rendered.dropped)
            for name, count in rendered.counts:
                counters[name] += count
        for plan, num_records in rows.count_filled():
            for name, count in plan.counts:
                counters[name] += count * num_records
        texts = rows.to_batch(batch, self._count_tokens)
        return StepResult(texts, dict(dropped), created=created, quarantined=quarantined, counters=dict(counters))

    def _choose_compared(self, batch: pa.RecordBatch, seed: int) -> NDArray[np.bool_]:
        """For each row whether it is also rendered by Jinja."""
        if self._plans is None:
            return np.zeros(batch.num_rows, dtype=bool)
        hashes = hash_origins(seed, "render/parity", batch.column(ORIGIN))
        return hashes < np.uint64(hash_bound(COMPARED_SHARE))


class _SuspectRows:
    """The records that may hold a special token, visible in the raw line or hidden by escapes. Found when asked for.

    With plans few records are asked about, and a search through all lines would take a tenth of the time of the batch.
    """

    def __init__(self, batch: pa.RecordBatch, suspicious: SpecialLiterals) -> None:
        self._batch = batch
        self._suspicious = suspicious
        self._num_asked = 0

    def has(self, row: int) -> bool:
        if RECORD not in self._batch.schema.names:
            return True
        self._num_asked += 1
        if self._num_asked > _MAX_SINGLE_SEARCHES:
            return bool(self._is_suspect[row])
        return bool(self._search(self._batch.slice(row, 1))[0])

    @cached_property
    def _is_suspect(self) -> NDArray[np.bool_]:
        return self._search(self._batch)

    def _search(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        is_suspect: NDArray[np.bool_] = self._suspicious.count(batch.column(RECORD).cast(TEXT_TYPE)) > 0
        return is_suspect


def _without_nulls(value: Any) -> Any:
    """Remove nulls: in columns every message has the fields of all messages, so most nulls were never written."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None or key == "content"}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
