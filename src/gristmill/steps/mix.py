"""`mix`: the training records of all sources in chosen proportions, up to a chosen size.

Whole epochs come first. Which records of an incomplete epoch are taken depends on a hash of their origins: a larger
size takes the same records and more. The barrier of `mix` brings the records together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import msgspec
import numpy as np
import pyarrow.compute as pc

from gristmill.core.checks import check_positive_number, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, ORIGIN, is_for_training
from gristmill.core.seeds import hash_origins
from gristmill.core.step import GlobalStep, LocalStep, StepPosition, check_choices
from gristmill.order.mixture import plan_epochs, plan_shares
from gristmill.steps.edit_columns import NameSource, with_source_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.order.mixture import SourceShare

Unit = Literal["tokens", "rows", "documents"]
UNITS: tuple[str, ...] = get_args(Unit)
TOKENS, ROWS, DOCUMENTS = UNITS

NOT_CHOSEN = "not_chosen"
"""The reason for dropping the other records."""


class Mix(GlobalStep, tag="mix", frozen=True, kw_only=True):
    """Take `size` tokens, rows or documents of all sources together, in the proportions of their `weights`.

    Every source needs a weight, or with `epochs` the number of its passes. Whole epochs of a source are taken first,
    then a part of one more, as close to its share as whole documents allow; a hash of the seed and the origin chooses
    that part, and a larger size takes the same documents and more. Records that are not taken are dropped as
    `not_chosen`; copies count as created. If a source is too small for its share within `max_epochs`, the run fails and
    says how much is missing and which size is possible (a run with `--limit` therefore needs a smaller `size`). Only
    training records are mixed: other splits stay as they are. `by: tokens` must come after `tokenize`; `by: rows` is
    for recipes without `pack`, where a document is a row.

    The mixture is written as one lane, `train/mixed/`: every beginning of it holds each source in its share, and a
    second copy of a document comes after the whole first epoch of its source. Documents get a column `source`.

    In the first n of the lane's N records (or packed rows), each source is less than one record away from n times its
    share of the N. A `shuffle` after `mix` shuffles within each epoch. All later steps, including packing, process each
    source separately: the books stay separate, and a packed row has documents of one source. The sources are
    interleaved last, out of core, in one more pass over the work folder. An existing column `source` stays.

    [`Stream`](streaming.md) shuffles such a lane as a whole and reports the shares by origin; it refuses other weights,
    and the plan refuses `mixture` together with `mix`. Training with `Stream` needs no such copy: `mixture` mixes while
    it reads. The step ends a stage, and must be one of the common steps.

    >>> from gristmill.core.records import documents
    >>> Mix(weights={"web": 0.7, "code": 0.3}, size=1000, by="documents").amounts(documents(["one", "two"])).tolist()
    [1, 1]
    """

    version: ClassVar[int] = 2

    weights: dict[str, float] = msgspec.field(default_factory=dict)
    """A weight above 0 for every source: `{web: 0.7, code: 0.3}`."""
    size: int | None = None
    """The size of all together, in the unit of `by`: `20G`."""
    epochs: dict[str, float] = msgspec.field(default_factory=dict)
    """Instead of `weights` and `size`: how often each source is taken, `{web: 1, code: 2.5}`."""
    by: Unit = "tokens"
    """`tokens` after `tokenize` (and before `pack`), `documents`, or `rows`."""
    max_epochs: float = 1.0
    """How often a source may be taken."""
    interleave: bool = True
    """Whether to write one mixed lane; false: a folder for each source, one after the other."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        if bool(self.epochs) == bool(self.weights or self.size is not None) or bool(self.weights) != (
            self.size is not None
        ):
            raise UsageError(
                "mix needs weights and a size, or epochs",
                help="write mix: {weights: {web: 0.7, code: 0.3}, size: 20G}, or mix: {epochs: {web: 1, code: 2}}",
            )
        if self.size is not None:
            check_whole_number("size", self.size, least=1)
        check_positive_number("max_epochs", self.max_epochs)
        for name, weight in self.weights.items():
            check_positive_number(f"the weight of {name}", weight)
        for name, count in self.epochs.items():
            check_positive_number(f"the epochs of {name}", count)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.by == TOKENS and INPUT_IDS not in schema.names:
            raise UsageError("mix: there are no tokens to count", help="put it after tokenize, or write by: documents")
        return with_source_field(schema) if self.interleave else schema

    @property
    def joins_sources(self) -> bool:
        return self.interleave

    def sample_step(self) -> LocalStep | None:
        return NameSource(source="") if self.joins_sources else None

    def check_position(self, position: StepPosition) -> None:
        if not position.is_common:
            raise UsageError(f"{position.key}: mix needs all sources", help="put it among the common steps")
        if position.is_packed and self.by == ROWS:
            raise UsageError(
                f"{position.key}: rows are made by pack, after mix", help="mix by tokens, or mix the finished datasets"
            )
        chosen, word = (self.epochs, "epochs") if self.epochs else (self.weights, "weight")
        for name in [*chosen, *position.sources]:
            if name not in position.sources or name not in chosen:
                problem = "is not a source" if name not in position.sources else f"has no {word}"
                names = ", ".join(position.sources)
                raise UsageError(
                    f"{position.key}: {name} {problem}", help=f"give {word.removesuffix('s')}s for {names}"
                )

    def plan_shares(self, available: Mapping[str, int]) -> dict[str, SourceShare]:
        """Compute how much is taken of each source."""
        if self.epochs:
            return plan_epochs(self.epochs, available)
        return plan_shares(self.weights, available, size=self.size or 0, by=self.by, max_epochs=self.max_epochs)

    def expect_epochs(self, available: Mapping[str, int]) -> dict[str, float]:
        """Compute how often each source would have to be taken, whether or not `max_epochs` allows it."""
        if self.epochs:
            return dict(self.epochs)
        scale = (self.size or 0) / sum(self.weights.values())
        return {name: scale * weight / max(1, available[name]) for name, weight in self.weights.items()}

    def amounts(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return how much each record counts."""
        if self.by != TOKENS:
            return np.ones(batch.num_rows, dtype=np.int64)
        lengths: NDArray[np.int64] = pc.list_value_length(batch.column(INPUT_IDS)).to_numpy().astype(np.int64)
        return lengths

    def keys(self, batch: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
        """Return a uniform number for each record: the smallest are taken first."""
        return hash_origins(seed, "mix", batch.column(ORIGIN))

    def is_mixed(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Whether each record is for training."""
        return is_for_training(batch)
