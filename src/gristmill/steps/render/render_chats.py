"""`render`, as the plan has resolved it: nothing is left to look up."""

from __future__ import annotations

from datetime import date  # noqa: TC003  (msgspec looks at the types of fields)
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import LITERALS, ORIGIN, SPLIT, TEXT, TEXT_TYPE, TRAINED
from gristmill.core.step import LocalStep
from gristmill.steps.columns import value_columns
from gristmill.steps.record_functions import each_record
from gristmill.steps.render.kernel import COMPLETION, PROMPT, RenderKernel
from gristmill.text.chats import ChatOptions, ExampleMaker, FoundTemplate, TemplateReport, check_template
from gristmill.text.tokenizers import TokenizerFiles, load_engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.records import Applied

PLACES_TYPE = pa.list_(pa.int64())
_CHAT_FIELDS = frozenset(
    (
        *("messages", "conversations", "conversation", "instruction", "input", "output", "prompt", "completion"),
        *("system", "tools", "chat_template_kwargs", TEXT),
    )
)


class RenderChats(LocalStep, tag="render", frozen=True, kw_only=True):
    """Chats to text with a known template."""

    whole_record: ClassVar[bool] = True
    foreign_code: ClassVar[bool] = True
    not_shaping: ClassVar[tuple[str, ...]] = ("files", "accepts_quoted_arguments", "report")

    template: FoundTemplate
    options: ChatOptions
    today: date | None
    files: TokenizerFiles | None
    special_tokens: dict[str, int]
    added_tokens: dict[str, int]
    accepts_quoted_arguments: bool
    is_tokenized: bool = False
    """A `tokenize` step follows, which takes texts and which of their bytes are trained on."""
    engine: str = ""
    """With which tokens are counted, if there is a most of them."""
    renderer: str
    """What runs the template, and its version."""
    report: TemplateReport | None = None

    def compile(self) -> None:
        """Raise `UsageError` with the line of a mistake in the template. Nothing is rendered: it might never end."""
        ExampleMaker(self.template, self.options, today=self.today)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        kept = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if self.is_tokenized:
            added = [(TEXT, TEXT_TYPE), (TRAINED, PLACES_TYPE), (LITERALS, PLACES_TYPE)]
        else:
            added = [(TEXT, TEXT_TYPE), (PROMPT, TEXT_TYPE), (COMPLETION, TEXT_TYPE)]
            kept += [field for field in value_columns(schema) if field.name not in _CHAT_FIELDS]
        return pa.schema([*kept, *(pa.field(*column) for column in added)])

    def settled(self, sample: pa.RecordBatch) -> Self:
        """Checked on some real records; raises `UsageError` for what would be trained wrongly."""
        records = [record for record in each_record(sample) if isinstance(record, dict)]
        report = self.checked(records)
        for problem in report.problems:
            raise UsageError(f"render: {problem.message}", help=problem.help)
        return msgspec.structs.replace(self, report=report)

    def checked(self, records: Sequence[Mapping[str, Any]]) -> TemplateReport:
        """What the template does to some records."""
        return check_template(
            self.load().maker,
            records,
            self.added_tokens,
            self.template.variables,
            accepts_quoted_arguments=self.accepts_quoted_arguments,
        )

    def notes(self) -> list[str]:
        return self.report.notes if self.report is not None else []

    def load(self) -> RenderKernel:
        count = None
        if self.options.max_tokens is not None and self.files is not None:
            engine = load_engine(self.files, self.engine, specials_as_text=False)

            def count(text: str) -> int:
                return len(engine.encode([text])[0])

        maker = ExampleMaker(
            self.template,
            self.options,
            today=self.today,
            special_tokens=self.special_tokens,
            count_tokens=count,
        )
        return RenderKernel(maker, self.output_schema, list(self.special_tokens))

    def apply(self, batch: pa.RecordBatch, seed: int) -> Applied:
        """For a try: compiles the template each time. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)
