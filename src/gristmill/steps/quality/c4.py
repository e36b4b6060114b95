"""`c4`: the rules of C4 (Raffel et al. 2020), which edit documents line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, RuleValues, StepResult, count_dropped
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.edit_columns import put_columns
from gristmill.steps.quality.languages import (
    NO_TABLES,
    LanguageTables,
    add_built_in_tables,
    assign_tables,
    check_language_column,
    make_tables,
    note_english_thresholds,
)
from gristmill.text.buffers import get_text_buffers
from gristmill.text.quality.c4_lines import CITATIONS, LINE_REASONS, PAGE_REASONS, PARAMETERS, PHRASES, clean_pages
from gristmill.text.quality.character_classes import make_character_classes

if TYPE_CHECKING:
    from numpy.typing import NDArray


class C4(LocalStep, tag="c4", frozen=True, kw_only=True):
    r"""Keep the lines that are sentences, and the pages that have enough of them.

    Rules apply to a line in this order: a word that is too long, (citations such as [1] are cut out,) no terminal
    punctuation, too few words, "lorem ipsum" (drops the page), "javascript", a curly bracket (drops the page), phrases
    of policies (terms of use, privacy policy, cookie policy, uses cookies, use of cookies, use cookies). So a bracket
    in a line that an earlier rule removes does not drop the page. Lines are written without the space at their ends,
    and blank lines are removed. The defaults are those of the reference implementation. null switches a rule off.

    >>> from gristmill.core.records import documents, texts
    >>> page = "Home | About\nThis is the first sentence.[1] This is another one.\nAnd this is the last one."
    >>> texts(C4().apply(documents([page]), seed=0).batch)
    ['This is the first sentence. This is another one.\nAnd this is the last one.']
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)

    max_characters: int | None = 190_000
    """Longer pages are dropped."""
    max_word_length: int | None = 1000
    """A line with a longer word is removed."""
    remove_citations: bool | None = True
    """Whether to cut out `[12]`, `[edit]` and `[citation needed]`."""
    require_terminal_punctuation: bool | None = True
    """Whether lines must end in `.`, `?`, `!`, their equivalents in other scripts or a quotation mark, and not in
    `...`.
    """
    min_words_per_line: int | None = 5
    """A line with fewer words is removed."""
    drop_lorem_ipsum: bool | None = True
    """Whether a page with “lorem ipsum” is dropped."""
    remove_javascript_lines: bool | None = True
    """Whether lines that mention JavaScript are removed."""
    drop_curly_brackets: bool | None = True
    """Whether a page is dropped for a curly bracket in a line that passed the rules before it."""
    remove_policy_lines: bool | None = True
    """Whether lines with phrases of policies are removed."""
    min_sentences: int | None = 3
    """Sentences in the lines that are left; a page without any line is dropped as `no_lines`."""
    by_language: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Other values of these keys for documents of a language."""
    language_column: str = "language"
    """The column with the language."""
    language_tables: LanguageTables = "none"
    """`built_in`: [tables for 55 languages](quality.md#languages), derived from translations, in addition to those
    of `by_language`.
    """

    def __post_init__(self) -> None:
        for table in make_tables(self, PARAMETERS, self.by_language):
            for name, value in table.items():
                if value is not None and value < 0:
                    raise UsageError(
                        f"c4: {name} must be at least 0, not {value}", help="write null to switch the rule off"
                    )

    def resolve(self, folder: str) -> C4:  # noqa: ARG002
        return add_built_in_tables(self)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.by_language:
            check_language_column(schema, self.language_column)
        return schema

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:
        return note_english_thresholds(self, sample, self.language_column, self.by_language)

    def columns_needed(self) -> tuple[str, ...]:
        return (TEXT, self.language_column) if self.by_language else (TEXT,)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        if self.language_tables != NO_TABLES:
            return add_built_in_tables(self).apply(batch, seed)
        texts, codes, deciding_numbers, removed = self._clean(batch)
        dropped = count_dropped(codes, PAGE_REASONS)
        counters = {
            f"lines_removed:{reason}": int(count) for reason, count in zip(LINE_REASONS, removed, strict=True) if count
        }
        is_kept = pa.array(codes == 0)
        cleaned, quarantined = put_columns(self, batch.filter(is_kept), {TEXT: texts.filter(is_kept)})
        rule_values = self._measure_rules(batch, deciding_numbers) if dropped else {}
        return StepResult(
            cleaned,
            dropped,
            quarantined=quarantined,
            counters=counters,
            codes=codes,
            reasons=PAGE_REASONS,
            rule_values=rule_values,
        )

    def _measure_rules(self, batch: pa.RecordBatch, deciding_numbers: NDArray[np.int64]) -> dict[str, RuleValues]:
        thresholds = self._make_parameters()[assign_tables(batch, self.language_column, self.by_language)].astype(
            np.float64
        )
        rules = ("max_characters", "min_sentences")  # the other rules compare no numbers
        return {rule: RuleValues(deciding_numbers, thresholds[:, PARAMETERS.index(rule)]) for rule in rules}

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        texts, codes, deciding_numbers, removed = self._clean(record)
        findings = [
            Finding(name="lines_removed", value=int(count), rule=reason)
            for reason, count in zip(LINE_REASONS, removed, strict=True)
            if count
        ]
        if codes[0]:
            rule = PAGE_REASONS[codes[0] - 1]
            rule_values = self._measure_rules(record, deciding_numbers).get(rule)
            value, threshold = rule_values.at(0) if rule_values is not None else ("dropped", None)
            return [*findings, Finding(name="page", value=value, rule=rule, threshold=threshold, passed=False)]
        return [*findings, Finding(name="characters_left", value=len(texts[0].as_py()))]

    def _clean(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.LargeStringArray, NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Return the edited texts, the code and the deciding number of each, and how many lines each rule removed."""
        data, offsets = get_text_buffers(batch.column(TEXT))
        out = np.empty(int(offsets[-1] - offsets[0]) + 1, np.uint8)
        out_offsets = np.empty(len(offsets), np.int64)
        codes, removed = np.zeros(batch.num_rows, np.uint8), np.zeros(len(LINE_REASONS), np.int64)
        deciding_numbers = np.zeros(batch.num_rows, np.int64)
        begins = np.zeros(256, np.bool_)
        begins[[ord(letter) for phrase in PHRASES for letter in phrase[0] + phrase[0].upper()]] = True
        clean_pages(
            data, offsets, make_character_classes(), self._make_parameters(),
            assign_tables(batch, self.language_column, self.by_language),
            *_join_phrases(PHRASES), begins, *_join_phrases(CITATIONS),
            out, out_offsets, codes, deciding_numbers, removed,
        )  # fmt: skip
        buffers = [None, pa.py_buffer(out_offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.large_string(), batch.num_rows, buffers), codes, deciding_numbers, removed

    def _make_parameters(self) -> NDArray[np.int64]:
        rows = make_tables(self, PARAMETERS, self.by_language)
        return np.array(
            [[-1 if row[name] is None else int(row[name]) for name in PARAMETERS] for row in rows], np.int64
        )


def _join_phrases(phrases: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Join phrases as bytes, and return where each ends."""
    encoded = [phrase.encode() for phrase in phrases]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(phrase) for phrase in encoded])
