"""`decontaminate`: find the items of benchmarks inside documents, and mark, drop or cut them.

The step is a description. `items.py` and `benchmark_files.py` read benchmarks, `item_index.py` searches; the barrier
applies it to all sources, because it takes all documents to know which n-grams are common in a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.checks import is_share
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_count
from gristmill.core.records import TEXT, SourceFile, StepResult
from gristmill.core.step import GlobalStep, LocalStep, check_choices
from gristmill.steps.column_names import require_column
from gristmill.steps.decontaminate.items import BenchmarkItem, ItemKeys, make_item, read_benchmark_file
from gristmill.steps.edit_columns import put_new_columns
from gristmill.storage.paths import find_files

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTAMINATED = "contaminated"
"""The reason for dropping a document that holds an item of a benchmark."""
ITEMS_COLUMN = "contaminated_by"
SHARE_COLUMN = "contamination"
TAG_FIELDS = (pa.field(ITEMS_COLUMN, pa.list_(pa.string())), pa.field(SHARE_COLUMN, pa.float64()))
"""The columns of `action: tag`: the items that were found, and the largest share of an item's words."""

Action = Literal["tag", "drop", "cut"]
_MAX_NGRAM = 64
_BENCHMARK_KEYS = ("read", "question", "answer", "choices", "id")


class Decontaminate(GlobalStep, tag="decontaminate", frozen=True, kw_only=True):
    """Find the items of `benchmarks` in documents, whatever text surrounds them, and mark, drop or cut them.

    A benchmark is a file of JSON lines, a JSON array, CSV or Parquet: `{gsm8k: gsm8k.jsonl}`. The usual keys of
    questions, choices and answers are known; `{mine: {read: a.jsonl, question: ask, answer: reply}}` names others.
    Case, accents, punctuation and spacing do not matter, nor do tags, entities, escapes, the syntax of Markdown, LaTeX
    wrappers and what each line of a listing begins with. Words are letters in scripts without spaces.

    An item is found where n-grams of `ngram` words within a `window` of the document, in item lengths, have at least
    `min_coverage` of its words, and at least 10 of a question and 20 of an answer, or all if there are fewer. A
    question of fewer than `ngram` words must occur whole, and have at least `min_words`; shorter ones are listed as
    `too_short_to_check`. An answer is looked for if it has at least 13 words. N-grams without a letter do not count,
    nor those in more than 10 items, nor those that are common in a source: in over 100 of its documents and over
    `max_common_share` of them.

    `action: tag` adds the columns `contaminated_by` (the items) and `contamination` (the largest share found); `drop`
    drops the documents as `contaminated`, and fails if a source would lose more than `max_source_loss`; `cut` removes
    the passages, and drops documents of which no word is left. Held-out records are not changed.

    The step ends a stage. [Decontaminating](decontaminating.md) says exactly what is found.

    >>> Decontaminate(benchmarks={"gsm8k": "gsm8k_test.jsonl"}, action="drop").min_coverage
    0.4
    """

    version: ClassVar[int] = 3
    kernel_modules: ClassVar[tuple[str, ...]] = (
        "gristmill.text.shingle_kernels",
        "gristmill.steps.decontaminate.label_kernels",
        "gristmill.steps.decontaminate.markup_kernels",
        "gristmill.steps.decontaminate.item_index",
    )
    kernel_calls: ClassVar[str] = "gristmill.steps.decontaminate.item_index"
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("max_source_loss",)

    benchmarks: dict[str, str | list[str] | dict[str, Any]]
    """Name and file, or `{read: …, question: …, answer: …, choices: …, id: …}` with the keys of its records."""
    action: Action = "tag"
    """`tag`, `drop` or `cut`."""
    ngram: int = 8
    """Words in an n-gram; a shorter question must occur whole."""
    min_words: int = 6
    """The fewest words of a question that is looked for."""
    min_coverage: float = 0.4
    """The share of an item's words from which on it is found."""
    window: float = 2.0
    """The longest passage in which an item's words are counted together, in lengths of the item."""
    max_common_share: float = 0.01
    """N-grams in more documents of a source than this share (and than 100) do not count there."""
    max_source_loss: float = 0.1
    """For `drop`: the run stops if a source would lose a larger share (and more than 10 documents)."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        if not self.benchmarks:
            raise UsageError("decontaminate needs a benchmark", help="write benchmarks: {gsm8k: gsm8k_test.jsonl}")
        if not 1 <= self.min_words <= self.ngram <= _MAX_NGRAM:
            raise UsageError(
                f"min_words ({self.min_words}) must be at least 1 and at most ngram ({self.ngram}), and ngram at most "
                f"{_MAX_NGRAM}"
            )
        if not self.window >= 1:  # refuses NaN too
            raise UsageError(f"window must be at least 1, the length of an item, not {self.window}")
        for name in ("min_coverage", "max_common_share", "max_source_loss"):
            share = getattr(self, name)
            if not is_share(share) or (name == "min_coverage" and not share):
                raise UsageError(f"{name} must be above 0 and at most 1, not {share}")
        for name, benchmark in self.benchmarks.items():
            _parse_benchmark(name, benchmark)

    @property
    def tags(self) -> bool:
        """Whether documents stay as they are and get columns."""
        return self.action == "tag"

    def columns_needed(self) -> tuple[str, ...]:
        return (TEXT,)

    def columns_added(self) -> tuple[str, ...]:
        return tuple(field.name for field in TAG_FIELDS) if self.tags else ()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        require_column(self.name, TEXT, schema)
        for field in TAG_FIELDS if self.tags else ():
            if field.name in schema.names:
                raise UsageError(f'there is already a column "{field.name}"', help="rename it before this step")
            schema = schema.append(field)
        return schema

    def sample_step(self) -> LocalStep | None:
        return AddCleanTags() if self.tags else None

    def resolve(self, folder: str) -> ResolvedDecontaminate:
        """Read the files of all benchmarks."""
        items: list[BenchmarkItem] = []
        files: list[SourceFile] = []
        digest = xxhash.xxh3_128()
        for name, benchmark in self.benchmarks.items():
            patterns, keys = _parse_benchmark(name, benchmark)
            first = len(items)
            for file in find_files(patterns, base=folder):
                content, records = read_benchmark_file(file)
                digest.update(name.encode() + b"\0" + content)
                files.append(SourceFile(file.path, file.relative, file.num_bytes, file.version, 0))
                number = len(items) - first
                items += [make_item(name, number + row, record, keys) for row, record in enumerate(records)]
            if len(items) == first:
                raise UsageError(f"decontaminate: benchmark {name} has no records")
        fields = msgspec.structs.asdict(self)
        return ResolvedDecontaminate(**fields, items=items, files=files, content=digest.hexdigest())


class ResolvedDecontaminate(Decontaminate, tag="decontaminate", frozen=True, kw_only=True):
    """The step with the items that the plan has read."""

    not_fingerprinted: ClassVar[tuple[str, ...]] = (*Decontaminate.not_fingerprinted, "items", "files")

    items: list[BenchmarkItem]
    files: list[SourceFile]
    content: str
    """A hash of the content of the files."""

    def input_files(self) -> Sequence[SourceFile]:
        return self.files

    def notes(self) -> list[str]:
        num_items, num_benchmarks = len(self.items), len(self.benchmarks)
        note = f"{self.name}: {format_count(num_items, 'item')} of {format_count(num_benchmarks, 'benchmark')}"
        return [f"{note}; documents with one are tagged and stay (action: tag)" if self.tags else note]


class AddCleanTags(LocalStep, tag="decontaminate", frozen=True, kw_only=True):
    """A step that adds the columns of `action: tag` to the sample records of a plan."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(with_tags(batch, {}, {}))


def with_tags(batch: pa.RecordBatch, items: dict[int, list[str]], shares: dict[int, float]) -> pa.RecordBatch:
    """Return the batch with the columns of `action: tag`; rows without items are clean."""
    values = (
        [items.get(row, []) for row in range(batch.num_rows)],
        [shares.get(row, 0.0) for row in range(batch.num_rows)],
    )
    columns = {field.name: pa.array(value, field.type) for field, value in zip(TAG_FIELDS, values, strict=True)}
    return put_new_columns("decontaminate", batch, columns)


def _parse_benchmark(name: str, benchmark: str | list[str] | dict[str, Any]) -> tuple[list[str], ItemKeys]:
    """Return the patterns of a benchmark's files, and the keys of its records."""
    if not name or "/" in name:
        raise UsageError(f'benchmarks: "{name}" is no name: it must not be empty or have a slash')
    described = benchmark if isinstance(benchmark, dict) else {"read": benchmark}
    unknown = [key for key in described if key not in _BENCHMARK_KEYS]
    patterns = described.get("read")
    if unknown or not patterns:
        raise UsageError(
            f"benchmarks.{name}: " + (f'there is no key "{unknown[0]}"' if unknown else "it names no file"),
            help=f"write a path, or {{read: …}} with any of {', '.join(_BENCHMARK_KEYS[1:])}",
        )
    keys = {key: str(value) for key, value in described.items() if key != "read" and value is not None}
    return [patterns] if isinstance(patterns, str) else list(patterns), ItemKeys(**keys)
