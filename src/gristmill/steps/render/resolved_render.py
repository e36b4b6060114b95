"""`render` after planning: nothing is left to look up."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import date  # noqa: TC003  (msgspec looks at the types of fields)
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import (
    BESIDE_RECORD,
    IMAGES,
    IMAGES_TYPE,
    LITERALS,
    NUM_TOKENS,
    ORIGIN,
    RECORD,
    SPLIT,
    TEXT,
    TEXT_TYPE,
    TRAINED,
)
from gristmill.core.step import LocalStep
from gristmill.images.image_files import ImageTable  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.images.image_tokens import ImageRule  # noqa: TC001
from gristmill.steps.records.columns import list_value_columns
from gristmill.steps.records.record_functions import decode_records
from gristmill.steps.render.chat_image_files import make_chat_images, refer_to_images
from gristmill.steps.render.example_rows import COMPLETION, PROMPT
from gristmill.steps.render.kernel import RenderKernel
from gristmill.text.chats import ChatOptions, ExampleMaker, FoundTemplate, TemplateReport
from gristmill.text.chats.check_template import check_template
from gristmill.text.chats.template_limits import TemplateLimits, TemplateTimeout
from gristmill.text.tokenizers import REFERENCE, TokenizerFiles, load_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import StepResult
    from gristmill.text.chats.chat_images import ChatImages

PLACES_TYPE = pa.list_(pa.int64())
CHAT_FIELDS = frozenset(
    (
        *("messages", "conversations", "conversation", "instruction", "input", "output", "prompt", "completion"),
        *("system", "tools", "chat_template_kwargs", TEXT),
    )
)


class ResolvedRender(LocalStep, tag="render", frozen=True, kw_only=True):
    """The step `render` with its template and tokenizer found."""

    version: ClassVar[int] = 4
    needs_whole_record: ClassVar[bool] = True
    makes_text: ClassVar[bool] = True
    runs_template: ClassVar[bool] = True
    is_slow: ClassVar[bool] = True
    not_fingerprinted: ClassVar[tuple[str, ...]] = (
        *("files", "unknown_tokens", "report"),
        "trace",  # texts are the same with it and without
        "image_table",  # `image_content` is a hash of it
    )

    template: FoundTemplate
    options: ChatOptions
    today: date | None
    files: TokenizerFiles | None
    special_tokens: dict[str, int]
    control_tokens: tuple[str, ...] = ()
    """Control tokens that the tokenizer does not mark as special."""
    unknown_tokens: tuple[str, ...] = ()
    """Special tokens that only `tokenizer_config.json` knows, not the tokenizer."""
    is_tokenized: bool = False
    """Whether a `tokenize` step follows, which needs texts and the ranges that are trained."""
    keeps_chat: bool = False
    """Whether records stay as they are, each with its text beside it."""
    engine: str = ""
    """The engine that counts tokens, if their number is limited."""
    renderer: str
    """The library that runs the template, and its version."""
    report: TemplateReport | None = None
    trace: bool = True
    """Whether the template is traced."""
    image_rule: ImageRule | None = None
    image_table: ImageTable | None = None
    image_content: str = ""

    @property
    def keeps_record_beside(self) -> bool:
        return self.keeps_chat

    def keys_consumed(self) -> tuple[str, ...]:
        return () if self.keeps_chat else tuple(sorted(CHAT_FIELDS))

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return () if self.files is None else (self.files.content,)

    @property
    def untrusted_template(self) -> str:
        return "" if self.template.is_built_in else self.template.name

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.keeps_chat:
            return self._add_schema_beside(schema)
        carried = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if self.is_tokenized:
            added = [(TEXT, TEXT_TYPE), (TRAINED, PLACES_TYPE), (LITERALS, PLACES_TYPE)]
            added += [(IMAGES, IMAGES_TYPE)] if self.image_rule is not None else []
        else:
            added = [(TEXT, TEXT_TYPE), (PROMPT, TEXT_TYPE), (COMPLETION, TEXT_TYPE)]
            carried += [field for field in list_value_columns(schema) if field.name not in CHAT_FIELDS]
            carried += [schema.field(RECORD)] if RECORD in schema.names else []
        return pa.schema([*carried, *(pa.field(*column) for column in added)])

    def _add_schema_beside(self, schema: pa.Schema) -> pa.Schema:
        added = [pa.field(TEXT, TEXT_TYPE, metadata={BESIDE_RECORD: b"text"})]
        added += [pa.field(NUM_TOKENS, pa.int64())] if self.files is not None else []
        names = {field.name for field in added}
        return pa.schema([*(field for field in schema if field.name not in names), *added], schema.metadata)

    def columns_added(self) -> tuple[str, ...]:
        return (NUM_TOKENS,) if self.keeps_chat else (PROMPT, COMPLETION)

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:
        """Check the template on real records; raises `UsageError` for anything that would be trained wrongly."""
        report = self.check_records([record for record in decode_records(sample) if isinstance(record, dict)])
        for problem in report.problems:
            raise UsageError(f"render with the template of {self.template.name}: {problem.message}", help=problem.help)
        return msgspec.structs.replace(self, report=report)

    def check_records(self, records: Sequence[Mapping[str, Any]]) -> TemplateReport:
        """Report what the template does to these records."""
        maker = self.load().maker
        with self._limit_template():
            return check_template(
                maker,
                records,
                self.template.variables,
                unknown_tokens=self.unknown_tokens,
                count_tokens=self._make_token_counter(),
            )

    def notes(self) -> list[str]:
        images = []
        if self.image_rule is not None and self.image_table is not None:
            images = [f"images: {len(self.image_table.entries):,} names; tokens by the rule {self.image_rule.family}"]
        return [*images, *(self.report.notes if self.report is not None else [])]

    def load(self) -> RenderKernel:
        count = self._make_token_counter(self.engine) if self.options.max_tokens is not None else None
        count_all = self._make_batch_counter() if self.keeps_chat else None
        with self._limit_template() as limits:
            maker = ExampleMaker(
                self.template,
                self.options,
                today=self.today,
                special_tokens=self.special_tokens,
                control_tokens=self.control_tokens,
                count_tokens=count,
                images=self._load_images(),
            )
            if self.trace:
                maker.start_tracing(limits.restart if limits is not None else None)
        tokens = [*self.special_tokens, *self.control_tokens]
        return RenderKernel(maker, self.output_schema, tokens, limits, count_all, self._refer_to_images)

    def _load_images(self) -> ChatImages | None:
        if self.image_rule is None or self.image_table is None:
            return None
        return make_chat_images(self.image_rule, self.image_table)

    def _refer_to_images(self, names: Iterable[str]) -> list[dict[str, Any]]:
        assert self.image_rule is not None
        assert self.image_table is not None
        return refer_to_images(names, self.image_rule, self.image_table)

    def _make_token_counter(self, name: str = REFERENCE) -> Callable[[str], int] | None:
        if self.files is None:
            return None
        engine = load_engine(self.files, name, specials_as_text=False)
        return lambda text: len(engine.encode([text])[0])

    def _make_batch_counter(self) -> Callable[[pa.Array], NDArray[np.int64]] | None:
        if self.files is None:
            return None
        engine = load_engine(self.files, self.engine, specials_as_text=False)
        return lambda texts: np.diff(engine.encode(texts)[1])

    @contextmanager
    def _limit_template(self) -> Iterator[TemplateLimits | None]:
        """Limit time and memory of an untrusted template, which runs code already while Jinja compiles it."""
        if not self.runs_untrusted_code:
            yield None
            return
        limits = TemplateLimits()
        try:
            with limits:
                yield limits
        except TemplateTimeout as error:
            problem = str(error)
        except MemoryError:
            problem = f"takes more than {limits.max_growth_bytes >> 30} GiB of memory"
        else:
            return
        raise UsageError(
            f"render: the template of {self.template.name} {problem}",
            help="look for a loop or a large number in it, or name another template",
        )

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Apply the step once, for tests and trials: this compiles the template. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)
