"""`toxicity`: the share of a document's words that are on your list. Arrow's own code (RE2), about 20 MB/s a core."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.checks import is_share
from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, RuleValues, StepResult, count_dropped
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import Finding, LocalStep, StepKernel
from gristmill.steps.cleaning.url import read_list
from gristmill.steps.edit_columns import put_columns, with_fields
from gristmill.steps.quality.languages import (
    assign_tables,
    can_name_languages,
    check_language_column,
    note_languages_without_table,
)
from gristmill.text.language_codes import check_language_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_WITHOUT_BORDERS = ("ja", "th", "zh")
_WORD = r"[\p{L}\p{M}\p{N}]+"
_GAP = r"[^\p{L}\p{M}\p{N}]+"
_BORDER = "\0"
"""The mark before and after every word of a text with word borders. Two neighbouring words have two of them between."""
_REASON = "max_density"
_DEFINITION = "Words and phrases of the list / words (letters in scripts without spaces)."


class Toxicity(LocalStep, tag="toxicity", frozen=True, kw_only=True):
    """Measure which share of a document's words is on a list, in the column `toxicity`.

    A list is your own file with one word or phrase a line, or a file of an installed package
    (`package:NAME/path/in/it.txt`). Case does not matter. Only whole words match, so "class" contains no other word;
    in documents in Japanese, Thai and Chinese (by `language_column`, if there is one) parts of words match too. Between
    the words of a phrase there may be any space or punctuation; an entry with symbols in it (`a$$`) matches as it is
    written. Nothing is dropped unless you set `max_density`: words on such lists are also used to talk about health,
    identity and law. Words in `allow` do not count.

    Gristmill includes no list.

    >>> from gristmill.core.records import documents
    >>> step = Toxicity(lists={"": ["darn"]}, max_density=0.5)
    >>> step.apply(documents(["Darn, darned thing", "darn darn darn!"]), seed=0).batch.column("toxicity").to_pylist()
    [0.3333333333333333]
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("words", "by_language")

    words: str | None = None
    """The list for documents in languages without their own: a file with one word or phrase a line, its path from
    the recipe's folder, or `package:NAME/path.txt`.
    """
    by_language: dict[str, str] = msgspec.field(default_factory=dict)
    """Lists for languages: `{de: words/de.txt}`."""
    language_column: str = "language"
    """The column with the language."""
    allow: list[str] = msgspec.field(default_factory=list)
    """Words that do not count, even if a list has them."""
    max_density: float | None = None
    """The share above which documents are dropped; null: none is dropped."""
    lists: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The words of the files, by language (\"\": all): read when a run is planned, or set here."""

    def __post_init__(self) -> None:
        if self.max_density is not None and not is_share(self.max_density):
            raise UsageError(f"max_density must be from 0 to 1, not {self.max_density}")
        if not (self.words or self.by_language or self.lists):
            raise UsageError("toxicity needs a list of words", help="write words: list.txt, one word or phrase a line")
        for language in filter(None, (*self.by_language, *self.lists)):
            check_language_code(language, "by_language")

    def resolve(self, folder: str) -> Toxicity:
        files = {**({"": self.words} if self.words else {}), **self.by_language}
        lists = {language: read_list(self.name, path, folder) for language, path in files.items()}
        step = msgspec.structs.replace(self, lists=self.lists | lists)
        step.load().check()
        return step

    def columns_needed(self) -> tuple[str, ...]:
        by_language = self.by_language or any(self.lists)
        return (TEXT, self.language_column) if by_language else (TEXT,)

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:
        if "" in self.lists:
            return []
        problem, consequence = f"{self.name} has no list", "none of their words count"
        return note_languages_without_table(sample, self.language_column, self.lists, problem, consequence)

    def columns_added(self) -> tuple[str, ...]:
        return (self.name,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.language_column in self.columns_needed():
            check_language_column(schema, self.language_column)
        return with_fields(schema, [pa.field(self.name, pa.float64())])

    def load(self) -> ToxicityKernel:
        return ToxicityKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def describe_scores(self) -> StepScores:
        rule = ThresholdRule(name=_REASON, score=self.name, reason=_REASON, thresholds=[self.max_density])
        return StepScores(
            step=self.name,
            scores=[MeasuredScore(name=self.name, definition=_DEFINITION)],
            rules=[] if self.max_density is None else [rule],
            reasons=[_REASON],
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        density = self.load().measure_densities(record)[0].item()
        return [
            Finding(
                name=self.name,
                value=density,
                definition=_DEFINITION,
                rule=None if self.max_density is None else _REASON,
                threshold=self.max_density,
                passed=self.max_density is None or density <= self.max_density,
            )
        ]


class ToxicityKernel(StepKernel):
    """The lists as regular expressions, each built when a document first needs it."""

    def __init__(self, step: Toxicity) -> None:
        self._step = step
        self._languages = [language for language in step.lists if language]
        self._patterns: dict[tuple[int, bool], _WordPatterns | None] = {}

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        densities = self.measure_densities(batch)
        limit = self._step.max_density
        codes = np.zeros(batch.num_rows, np.uint8) if limit is None else (densities > limit).astype(np.uint8)
        is_kept = pa.array(codes == 0)
        dropped = count_dropped(codes, (_REASON,))
        columns = {self._step.name: pa.array(densities).filter(is_kept)}
        measured, quarantined = put_columns(self._step, batch.filter(is_kept), columns)
        return StepResult(
            measured,
            dropped,
            quarantined=quarantined,
            codes=codes,
            reasons=(_REASON,),
            rule_values={_REASON: RuleValues(densities, limit)} if dropped else {},
            scores=RowScores({self._step.name: densities}),
        )

    def measure_densities(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the share of listed words in each document."""
        column = self._step.language_column
        table_of = assign_tables(batch, column, self._languages)
        has_borders = np.ones(batch.num_rows, np.bool_)
        if column in batch.schema.names and can_name_languages(batch.schema.field(column).type):
            has_borders = assign_tables(batch, column, _WITHOUT_BORDERS) == 0
        texts = pc.utf8_lower(pc.fill_null(batch.column(TEXT), ""))
        densities = np.zeros(batch.num_rows)
        for table in range(len(self._languages) + 1):
            for borders in (True, False):
                rows = np.flatnonzero((table_of == table) & (has_borders == borders))
                patterns = self._load_patterns(table, borders=borders) if len(rows) else None
                if patterns is not None:
                    densities[rows] = _measure_densities(texts.take(pa.array(rows)), patterns, borders=borders)
        return densities

    def check(self) -> None:
        """Refuse lists that are too long for one regular expression: about 50,000 words."""
        for table, language in enumerate(["", *self._languages]):
            patterns = self._load_patterns(table, borders=True)
            try:
                _count(pa.array([""]), "" if patterns is None else patterns.all)
            except pa.ArrowInvalid as error:
                raise UsageError(
                    f"toxicity: the list{language and f' for {language}'} of {len(self._step.lists[language]):,} words "
                    f"is too long: {error}",
                    help="make it shorter, or divide it by_language",
                ) from error

    def _load_patterns(self, table: int, *, borders: bool) -> _WordPatterns | None:
        key = (table, borders)
        if key not in self._patterns:
            words = self._step.lists.get(["", *self._languages][table], [])
            self._patterns[key] = _build_patterns(words, self._step.allow, borders=borders)
        return self._patterns[key]


@dataclass(frozen=True, slots=True)
class _WordPatterns:
    """The patterns of all entries of a list, and of entries that are symbols alone: these are not words of the text."""

    all: str
    symbols: str | None


def _measure_densities(texts: pa.Array, patterns: _WordPatterns, *, borders: bool) -> NDArray[np.float64]:
    total = _count(texts, _WORD if borders else r"[\p{L}\p{N}]")
    if patterns.symbols is not None:
        total += _count(texts, patterns.symbols)
    num_listed = _count(_with_borders(texts) if borders else texts, patterns.all)
    # Symbols after words of the list can match in another way than alone, so there could be more matches than words.
    total = np.maximum(total, num_listed)
    return np.divide(num_listed, total, out=np.zeros(len(texts)), where=total > 0)


def _with_borders(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, f"({_WORD})", rf"{_BORDER}\1{_BORDER}")


def _build_patterns(words: list[str], allow: list[str], *, borders: bool) -> _WordPatterns | None:
    allowed = set(_normalize_words(allow))
    entries = pa.array([word for word in _normalize_words(words) if word and word not in allowed], pa.large_string())
    if not len(entries):
        return None
    has_words = pc.match_substring_regex(entries, _WORD).to_pylist()
    has_symbols = pc.match_substring_regex(entries, r"[^\p{L}\p{M}\p{N} ]").to_pylist()
    marked = _with_borders(entries).to_pylist() if borders else entries.to_pylist()
    border = _BORDER if borders else ""
    # Each pattern, and whether it has words. Sorted backwards, so that of two entries that begin alike the longer one
    # comes first, and neighbours in the expression share their beginning, which RE2 merges.
    has_words_by_pattern: dict[str, bool] = {}
    for word, literal, with_words, with_symbols in sorted(
        zip(entries.to_pylist(), marked, has_words, has_symbols, strict=True), reverse=True
    ):
        shape, gap = (literal, r"\s+") if with_symbols else (f"{border}{word}{border}", _GAP)
        parts = shape.split(" ")
        has_words_by_pattern[gap.join(map(re.escape, parts))] = with_words
    symbols = [pattern for pattern, with_words in has_words_by_pattern.items() if not with_words]
    return _WordPatterns(_match_any(has_words_by_pattern), _match_any(symbols) if symbols else None)


def _normalize_words(words: list[str]) -> list[str]:
    """Return the words in lower case with single spaces."""
    # All in one call: a call of Arrow costs as much as a thousand words.
    plain: list[str] = pc.utf8_lower(
        pa.array([" ".join(word.split()) for word in words], pa.large_string())
    ).to_pylist()
    return plain


def _match_any(patterns: Iterable[str]) -> str:
    return f"(?:{'|'.join(patterns)})"


def _count(texts: pa.Array, pattern: str) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = pc.count_substring_regex(texts, pattern).to_numpy(zero_copy_only=False).astype(np.int64)
    return counts
