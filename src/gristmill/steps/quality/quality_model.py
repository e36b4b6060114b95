"""`quality_model`: score documents with a trained model, and optionally keep those above a threshold.

A third-party model (fastText, ONNX) is opened in a limited process while the run is planned
(`text/classifiers/trial`), then once in each worker.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.checks import is_share
from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, RuleValues, StepResult, count_dropped
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import Finding, LocalStep, StepKernel
from gristmill.runtime.process import load_once
from gristmill.steps.edit_columns import put_columns, with_fields
from gristmill.text.classifiers.onnx_model import Activation, ScorerOptions
from gristmill.text.classifiers.scorer import (
    LINEAR,
    ONNX,
    TextScorer,
    find_kind,
    map_file,
    open_scorer,
    try_scorer,
)
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REASON = "min_score"
_DEFINITION = "How likely it is that the document is like the good examples of the model."
_KIND = "quality model"


class QualityModel(LocalStep, tag="quality_model", frozen=True, kw_only=True):
    """Score documents with a trained model, in the column `quality`.

    [Quality](quality.md#models) says which models can be used, how one is trained, and what protects you from
    third-party files. Without `min_score` nothing is dropped. `buckets: [0.2, 0.8]` adds the column
    `quality_bucket`: 0 below 0.2, 1 below 0.8, 2 from there on.

    >>> QualityModel(model="edu.model", min_score=0.5).column
    'quality'
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True

    model: str
    """The file of the model."""
    label: str | int | None = None
    """The class whose number is the score: a label of fastText, or a class or column of an ONNX model. A model with
    one number, or an ONNX model with two classes, needs none: the last one counts.
    """
    tokenizer: str | None = None
    """For ONNX models with `input_ids`: a folder with `tokenizer.json`, such a file, or a name on the Hub."""
    max_tokens: int = 512
    """How many tokens of a document such a model gets."""
    activation: Activation = "none"
    """What to do with the numbers of an ONNX model first."""
    min_score: float | None = None
    """Documents below it are dropped; null: none is."""
    buckets: list[float] = msgspec.field(default_factory=list)
    """Borders: `[0.2, 0.8]` adds `quality_bucket`, to split or weight by."""
    column: str = "quality"
    """The column of the score."""

    def __post_init__(self) -> None:
        if self.min_score is not None and not math.isfinite(self.min_score):
            raise UsageError(f"min_score must be a number, not {self.min_score}")
        if not all(map(math.isfinite, self.buckets)) or sorted(set(self.buckets)) != self.buckets:
            raise UsageError(f"buckets must be growing numbers, not {self.buckets}")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.column in (TEXT, ""):
            raise UsageError(f'column: the score cannot be in "{self.column}"')

    def resolve(self, folder: str) -> QualityModel:
        """Find the model and the tokenizer, and try them in a limited process if they are third-party."""
        path = str(Path(folder, Path(self.model).expanduser()).absolute())
        content = map_file(path)
        kind = find_kind(content, path)
        # Refuse keys that do not apply to a kind of model: they would do nothing.
        for key, kinds in (("label", (LINEAR,)), ("tokenizer", ()), ("activation", ())):
            is_set = getattr(self, key) not in (None, "none")
            if is_set and kind != ONNX and (not kinds or kind in kinds):
                raise UsageError(f"{key} does not apply to {self.model}, a {kind} model", help=f"leave {key} out")
        files = None if self.tokenizer is None else find_tokenizer(self.tokenizer, folder)
        step = ResolvedQualityModel(
            **msgspec.structs.asdict(self),
            path=path,
            content=_hash_content(content),
            kind=kind,
            tokenizer_files=files,
            model_bytes=len(content),
        )
        is_probability = True
        if kind == LINEAR:
            open_scorer(content, step.options)
        else:
            is_probability = try_scorer(step.options).is_probability
        limits = [*self.buckets, *([] if self.min_score is None else [self.min_score])]
        if is_probability and not all(map(is_share, limits)):
            raise UsageError(f"min_score and buckets must be from 0 to 1 for a {kind} model, not {limits}")
        return step

    @property
    def _fields(self) -> list[pa.Field]:
        fields = [pa.field(self.column, pa.float64())]
        return [*fields, pa.field(f"{self.column}_bucket", pa.int64())] if self.buckets else fields

    def columns_added(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._fields)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_fields(schema, self._fields)

    def load(self) -> QualityModelKernel:
        return self.resolve(".").load()

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def describe_scores(self) -> StepScores:
        rule = ThresholdRule(name=_REASON, score=self.column, reason=_REASON, thresholds=[self.min_score])
        return StepScores(
            step=self.name,
            scores=[MeasuredScore(name=self.column, definition=_DEFINITION)],
            rules=[] if self.min_score is None else [rule],
            reasons=[_REASON],
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        score = float(self.load().score(record)[0])
        return [
            Finding(
                name=self.column,
                value=score,
                definition=_DEFINITION,
                rule=None if self.min_score is None else _REASON,
                threshold=self.min_score,
                passed=self.min_score is None or score >= self.min_score,
            )
        ]


class ResolvedQualityModel(QualityModel, tag="quality_model", frozen=True, kw_only=True):
    """The step `quality_model` with its model found."""

    not_fingerprinted: ClassVar[tuple[str, ...]] = ("model", "path", "tokenizer", "tokenizer_files", "model_bytes")

    path: str
    content: str
    """A hash of the model."""
    kind: str
    tokenizer_files: TokenizerFiles | None = None
    model_bytes: int = 0

    def resolve(self, folder: str) -> QualityModel:  # noqa: ARG002
        return self

    @property
    def fingerprint_versions(self) -> object:
        if self.kind != ONNX:
            return self.version
        files = self.tokenizer_files
        tokenizer = None if files is None else [files.content, version("tokenizers")]
        return [self.version, version("onnxruntime"), tokenizer]

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return (self.content,)

    def expected_bytes(self, slice_bytes: int) -> int:  # noqa: ARG002
        return self.model_bytes

    @property
    def options(self) -> ScorerOptions:
        """How its model is opened."""
        return ScorerOptions(
            path=self.path,
            label=None if self.label is None else str(self.label),
            tokenizer=self.tokenizer_files,
            max_tokens=self.max_tokens,
            activation=self.activation,
        )

    def load(self) -> QualityModelKernel:
        form = self.label, self.max_tokens, self.activation, self.tokenizer
        return QualityModelKernel(self, load_once(_KIND, self.content, form, self._open, max_kept=1))

    def _open(self) -> TextScorer:
        content = map_file(self.path)
        if _hash_content(content) != self.content:
            raise UsageError(f"{self.path} has changed since the run was planned", help="run the same command again")
        return open_scorer(content, self.options)


class QualityModelKernel(StepKernel):
    """The step with its model in memory."""

    def __init__(self, step: QualityModel, model: TextScorer) -> None:
        self._step = step
        self._model = model

    def score(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Return the score of each document."""
        return self._model.score(batch.column(TEXT))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        scores = self.score(batch)
        limit = self._step.min_score
        codes = np.zeros(batch.num_rows, np.uint8) if limit is None else (scores < limit).astype(np.uint8)
        is_kept = pa.array(codes == 0)
        dropped = count_dropped(codes, (_REASON,))
        columns = {self._step.column: pa.array(scores).filter(is_kept)}
        if self._step.buckets:
            buckets = np.searchsorted(self._step.buckets, scores, side="right").astype(np.int64)
            columns[f"{self._step.column}_bucket"] = pa.array(buckets).filter(is_kept)
        scored, quarantined = put_columns(self._step, batch.filter(is_kept), columns)
        return StepResult(
            scored,
            dropped,
            quarantined=quarantined,
            codes=codes,
            reasons=(_REASON,),
            rule_values={_REASON: RuleValues(scores, limit)} if dropped else {},
            scores=RowScores({self._step.column: scores}),
        )


def _hash_content(content: NDArray[np.uint8]) -> str:
    return xxhash.xxh3_128_hexdigest(content.data)
