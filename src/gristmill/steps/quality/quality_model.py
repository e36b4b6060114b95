"""`quality_model`: score documents with a trained classifier, and optionally keep those above a threshold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.numbers import is_share
from gristmill.core.records import TEXT, RuleValues, StepResult, count_dropped
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.records.put_columns import put_columns, with_fields
from gristmill.text.classifiers.linear_model import parse_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REASON = "min_score"
_DEFINITION = "How likely it is that the document is like the good examples of the model."


class QualityModel(LocalStep, tag="quality_model", frozen=True, kw_only=True):
    """Score documents with a classifier that `gristmill classifier train` made, in the column `quality`.

    The score is the probability that a document is like the good examples, from 0 to 1. Without `min_score` nothing is
    dropped. `buckets: [0.2, 0.8]` adds the column `quality_bucket`: 0 below 0.2, 1 below 0.8, 2 from there on.

    >>> QualityModel(model="edu.model", min_score=0.5).column
    'quality'
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True

    model: str
    """The file of the model."""
    min_score: float | None = None
    buckets: list[float] = msgspec.field(default_factory=list)
    column: str = "quality"

    def __post_init__(self) -> None:
        if self.min_score is not None and not is_share(self.min_score):
            raise UsageError(f"min_score must be from 0 to 1, not {self.min_score}")
        if not all(map(is_share, self.buckets)) or sorted(set(self.buckets)) != self.buckets:
            raise UsageError(f"buckets must be growing numbers from 0 to 1, not {self.buckets}")
        if self.column in (TEXT, ""):
            raise UsageError(f'column: the score cannot be in "{self.column}"')

    def resolve(self, folder: str) -> QualityModel:
        path = Path(folder, self.model).absolute()
        content = _read_model(path)
        parse_model(content, str(path))
        return ResolvedQualityModel(
            **msgspec.structs.asdict(self), path=str(path), content=xxhash.xxh3_128_hexdigest(content)
        )

    @property
    def _fields(self) -> list[pa.Field]:
        fields = [pa.field(self.column, pa.float64())]
        return [*fields, pa.field(f"{self.column}_bucket", pa.int64())] if self.buckets else fields

    def columns_added(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._fields)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_fields(schema, self._fields)

    def load(self) -> QualityModelKernel:
        return QualityModelKernel(self, _read_model(Path(self.model)))

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

    not_fingerprinted: ClassVar[tuple[str, ...]] = ("model", "path")

    path: str
    content: str
    """A hash of the model."""

    def resolve(self, folder: str) -> QualityModel:  # noqa: ARG002
        return self

    def load(self) -> QualityModelKernel:
        content = _read_model(Path(self.path))
        if xxhash.xxh3_128_hexdigest(content) != self.content:
            raise UsageError(f"{self.path} has changed since the run was planned", help="run the same command again")
        return QualityModelKernel(self, content)


class QualityModelKernel:
    """The step with its model in memory."""

    def __init__(self, step: QualityModel, content: bytes) -> None:
        self._step = step
        self._model = parse_model(content, step.model)

    def begin_cell(self) -> None:
        """Do nothing: no batch depends on an earlier one."""

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


def _read_model(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"quality_model: cannot read the model {path}: {error.strerror}",
            help="gristmill classifier train GOOD BAD --out FILE makes one",
        ) from error
