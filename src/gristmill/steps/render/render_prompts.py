"""`render: {until: prompt}`: records become prompts for reinforcement learning, with their other columns."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from gristmill.core.records import NUM_TOKENS, ORIGIN, RECORD, SPLIT, TEXT, TEXT_TYPE, QuarantinedRecord, StepResult
from gristmill.core.step import StepKernel
from gristmill.steps.column_names import list_value_columns
from gristmill.steps.record_functions import RefusedRecord, decode_records, quarantine_exception, quarantine_row
from gristmill.steps.render.example_rows import COMPLETION, PROMPT
from gristmill.steps.render.render import Render, ResolvedRender
from gristmill.text.chats.jinja_environment import TemplateTimeout
from gristmill.text.chats.options import DroppedChat
from gristmill.text.chats.prompts import PromptMaker, check_plain
from gristmill.text.chats.shapes import NotAChat

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.text.chats.jinja_environment import TemplateLimits

MESSAGES_TYPE = pa.large_list(pa.struct([("role", pa.large_string()), ("content", pa.large_string())]))
"""The messages of a prompt, as trainers read them."""
_KEPT = frozenset(("tools", "functions", "chat_template_kwargs", "enable_thinking"))
"""Keys that templates read, and that stay columns: whoever answers the prompt needs them, too."""


class RenderPrompts(Render, tag="render", frozen=True, kw_only=True):
    """A `render` that makes prompts. The plan puts it in the place of `Render`; recipes do not contain it."""

    def _resolved_class(self) -> type[ResolvedRender]:
        return ResolvedRenderPrompts


class ResolvedRenderPrompts(ResolvedRender, tag="render", frozen=True, kw_only=True):
    """The step `render` that makes prompts, with its template and tokenizer found."""

    version: ClassVar[int] = 1

    @property
    def _chat_fields(self) -> frozenset[str]:
        return super()._chat_fields.difference(_KEPT)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.keeps_chat:
            return super().output_schema(schema)
        added = [(TEXT, TEXT_TYPE), (PROMPT, MESSAGES_TYPE), (COMPLETION, TEXT_TYPE)]
        added += [(NUM_TOKENS, pa.int64())] if self.files is not None else []
        names = {name for name, _ in added}
        carried = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        others = [field for field in list_value_columns(schema) if field.name not in self._chat_fields | names]
        record = [schema.field(RECORD)] if RECORD in schema.names else []
        return pa.schema([*carried, *(pa.field(*column) for column in added), *others, *record])

    def columns_added(self) -> tuple[str, ...]:
        return (NUM_TOKENS,) if self.keeps_chat else (PROMPT, COMPLETION, NUM_TOKENS)

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:  # noqa: ARG002
        return self  # nothing of a prompt is trained, so there are no borders of answers to check

    def load(self) -> PromptKernel:  # type: ignore[override]  # both are kernels
        maker, limits = self._load_maker(traces=False)
        return PromptKernel(self, PromptMaker(maker), limits, self._make_batch_counter())


class PromptKernel(StepKernel):
    """A compiled template that renders the prompts of a batch."""

    def __init__(
        self,
        step: ResolvedRenderPrompts,
        maker: PromptMaker,
        limits: TemplateLimits | None,
        count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None,
    ) -> None:
        self._step = step
        self._maker = maker
        self._limits = limits
        self._count_tokens = count_tokens

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        with self._limits or nullcontext():
            return self._apply(batch)

    def _apply(self, batch: pa.RecordBatch) -> StepResult:
        rows: list[int] = []
        texts: list[str] = []
        prompts: list[Any] = []
        completions: list[str | None] = []
        dropped: Counter[str] = Counter()
        quarantined: list[QuarantinedRecord] = []
        for row, record in enumerate(decode_records(batch)):
            if self._limits is not None:
                self._limits.restart()
            try:
                if isinstance(record, RefusedRecord):
                    raise NotAChat(record.reason, record.message)
                rendered = self._maker.make(record)
                plain = rendered.messages if self._step.keeps_chat else check_plain(rendered.messages)
                _check_encodable(rendered.text, rendered.completion)
            except DroppedChat as problem:
                dropped[str(problem)] += 1
            except NotAChat as problem:
                quarantined.append(quarantine_row(batch, row, problem.reason, problem.message))
            except TemplateTimeout as error:
                quarantined.append(quarantine_row(batch, row, "timeout", f"the template {error}"))
            except Exception as error:  # a template can raise anything: that costs one record, not the run
                quarantined.append(quarantine_exception(batch, row, error))
            else:
                rows.append(row)
                texts.append(rendered.text)
                prompts.append(plain)
                completions.append(rendered.completion)
        schema = self._step.output_schema(batch.schema)
        columns: dict[str, pa.Array] = {TEXT: pa.array(texts, TEXT_TYPE)}
        if not self._step.keeps_chat:
            columns |= {PROMPT: pa.array(prompts, MESSAGES_TYPE), COMPLETION: pa.array(completions, TEXT_TYPE)}
        if NUM_TOKENS in schema.names and self._count_tokens is not None:
            columns[NUM_TOKENS] = pa.array(self._count_tokens(columns[TEXT]), pa.int64())
        other_columns = batch.take(pa.array(rows, pa.int64()))
        arrays = [columns[name] if name in columns else other_columns.column(name) for name in schema.names]
        counters = {"prompts": len(rows)}
        return StepResult(
            pa.RecordBatch.from_arrays(arrays, schema=schema), dict(dropped), quarantined=quarantined, counters=counters
        )


def _check_encodable(*texts: str | None) -> None:
    try:
        for text in texts:
            (text or "").encode()
    except UnicodeEncodeError as error:
        raise NotAChat("lone_surrogate", str(error)) from None
