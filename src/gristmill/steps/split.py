"""`split`: hold out records for validation and test, by a hash that copies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, SPLIT, TEXT, StepResult, is_for_training
from gristmill.core.seeds import hash_bound, hash_origins, hash_texts
from gristmill.core.splits import TRAIN
from gristmill.core.step import GlobalStep, LocalStep, Step
from gristmill.steps.records.columns import require_column
from gristmill.steps.records.content import read_content, require_content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_NAMES = ("validation", "test", TRAIN)


class Split(LocalStep, tag="split", frozen=True, kw_only=True):
    """Hold out training records for validation and test. Records that are held out already stay where they are.

    `validation` and `test` are fractions (0.005) or numbers of records (1000, over all sources). By default the text
    decides, so that copies of a text are in the same split; `by: origin` treats each record on its own, and
    `by: domain` keeps records with the same value in the column `domain` together. Numbers are filled in the order of
    the hash: if the last chosen value has copies, they are included, so a split may be that much larger.

    >>> from gristmill.core.sample_batches import documents
    >>> applied = Split(validation=0.4).apply(documents(["one", "two", "three", "one"]), seed=8)
    >>> applied.batch.column("__split__").to_pylist()
    ['validation', 'train', 'train', 'validation']
    """

    version: ClassVar[int] = 2
    preserves_text: ClassVar[bool] = True

    validation: int | float = 0
    test: int | float = 0
    by: str = TEXT
    """`text` (of samples without one, their bytes), `origin` or the name of a column."""

    def __post_init__(self) -> None:
        amounts = [amount for amount in (self.validation, self.test) if amount != 0]
        if not amounts:
            raise UsageError("split needs an amount for validation or test", help="write split: {validation: 0.005}")
        if min(amounts) < 0:
            raise UsageError(f"validation and test must be above 0, not {min(amounts)}")
        if len({type(amount) for amount in amounts}) > 1:
            raise UsageError(
                f"validation ({self.validation}) and test ({self.test}) must both be fractions or both be numbers"
            )
        if isinstance(amounts[0], float) and not sum(amounts) < 1:  # not a number is refused too
            raise UsageError(
                f"validation and test take {sum(amounts):g} of all records: nothing is left for training",
                help="for a number of records write it without a decimal point",
            )

    def resolve(self, folder: str) -> Step:  # noqa: ARG002
        """Return the global step for numbers of records; by fractions each record is decided alone."""
        if isinstance(self.validation or self.test, float):
            return self
        return SplitByCount(validation=int(self.validation), test=int(self.test), by=self.by)

    def splits_added(self) -> tuple[str, ...]:
        return tuple(name for name, amount in (("validation", self.validation), ("test", self.test)) if amount)

    def columns_needed(self) -> tuple[str, ...]:
        return () if self.by == TEXT else (self.by,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.by == TEXT and TEXT not in schema.names:
            require_content(self.name, schema)
            return schema if SPLIT in schema.names else schema.append(pa.field(SPLIT, pa.string()))
        require_column(self.name, self.by, schema)
        if self.by != ORIGIN and pa.types.is_nested(schema.field(self.by).type):
            raise UsageError(
                f'split: by needs a column of plain values, and "{self.by}" is {schema.field(self.by).type}'
            )
        return schema if SPLIT in schema.names else schema.append(pa.field(SPLIT, pa.string()))

    def keys(self, batch: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
        """Return a uniform number for each record: the smallest are for validation, the next for test."""
        # A step for `test` alone may follow one for `validation`, which has taken the records with the smallest keys.
        # With the same keys, `test` would find none below its bound.
        purpose = "split" if self.validation else "split/test"
        if self.by == ORIGIN:
            return hash_origins(seed, purpose, batch.column(ORIGIN))
        values = read_content(batch) if self.by == TEXT else batch.column(self.by)
        if not (pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)):
            values = values.cast(pa.string()).cast(pa.large_string())
        return hash_texts(seed, purpose, values)

    def smallest(self, keys: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        """Return the smallest keys, sorted, as many as the numbers of records need.

        The result for all data can be computed from the results for its parts.
        """
        count = int(self.validation) + int(self.test)
        smallest = np.empty(0, dtype=np.uint64)
        for part in keys:
            smallest = np.sort(np.concatenate([smallest, part]))[:count]
        return smallest

    def bounds(self, smallest: NDArray[np.uint64] | None = None, num_records: int = 0) -> tuple[int, int]:
        """Return two bounds: keys below the first are for validation, below the second for test.

        Numbers of records need the `smallest` keys of all `num_records`.
        """
        if smallest is None:
            return hash_bound(self.validation), hash_bound(self.validation + self.test)
        num_held_out = int(self.validation) + int(self.test)
        if num_records <= num_held_out:
            raise UsageError(
                f"split: validation and test take {num_held_out} records, but there are only {num_records}",
                help="ask for fewer, or for a fraction",
            )
        ends = (int(self.validation), num_held_out)
        first, second = (int(smallest[end - 1]) + 1 if end else 0 for end in ends)
        return first, second

    def assign(self, batch: pa.RecordBatch, seed: int, bounds: tuple[int, int]) -> StepResult:
        """Return the batch with its column of splits."""
        keys = self.keys(batch, seed)
        codes = np.where(keys < bounds[0], 0, np.where(keys < bounds[1], 1, 2)).astype(np.int8)
        splits = pa.DictionaryArray.from_arrays(codes, list(_NAMES)).cast(pa.string())
        index = batch.schema.get_field_index(SPLIT)
        if index < 0:
            return StepResult(batch.append_column(pa.field(SPLIT, pa.string()), splits))
        splits = pc.if_else(pa.array(is_for_training(batch)), splits, batch.column(index))
        return StepResult(batch.set_column(index, batch.schema.field(index), splits))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.assign(batch, seed, self.bounds())


class SplitByCount(GlobalStep, tag="split", frozen=True, kw_only=True):
    """A `split` by numbers of records: all keys must be known before the first record is assigned."""

    version: ClassVar[int] = Split.version

    validation: int = 0
    test: int = 0
    by: str = TEXT

    @property
    def split(self) -> Split:
        """The equivalent `split`, for its keys and bounds."""
        return Split(validation=self.validation, test=self.test, by=self.by)

    def splits_added(self) -> tuple[str, ...]:
        return self.split.splits_added()

    def columns_needed(self) -> tuple[str, ...]:
        return self.split.columns_needed()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return self.split.output_schema(schema)

    def sample_step(self) -> LocalStep:
        return AssignSplit(split=self.split, bounds=(0, 0))


class AssignSplit(LocalStep, tag="split", frozen=True, kw_only=True):
    """The local step of a `split` by numbers, with the bounds that the barrier found."""

    split: Split
    bounds: tuple[int, int]

    def splits_added(self) -> tuple[str, ...]:
        return self.split.splits_added()

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.split.assign(batch, seed, self.bounds)
