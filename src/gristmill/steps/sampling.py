"""`sample`, `limit`, `shuffle` and `split`: a random share of the records, the first ones, all in a random order, or in
splits by a hash that copies share.

Samples and random orders depend on the origins of records alone. Each record's key is a hash of the seed and its
origin. A corpus larger than memory is first distributed to buckets by the highest bits of the key, then each bucket is
sorted. The buckets one after another are the whole order, however many there are.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, SPLIT, TEXT, StepResult, is_for_training
from gristmill.core.seeds import hash_bound, hash_origins, hash_texts
from gristmill.core.splits import TRAIN
from gristmill.core.step import FilterStep, GlobalStep, LocalStep, Step, StepTraits, check_choices
from gristmill.steps.column_names import require_column
from gristmill.steps.edit_columns import NameSource, read_content, require_content, with_source_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Sample(FilterStep, tag="sample", frozen=True, kw_only=True):
    """Keep each training record with the probability `fraction`, by a hash of the seed and its origin.

    Adding or removing files changes no choice, and a smaller fraction keeps a subset of what a larger one keeps. So
    two samples in one recipe are not independent (0.5 and then 0.1 keep 0.1) unless their `salt` differs. Records of
    other splits than `train` are all kept.

    >>> from gristmill.core.records import documents
    >>> applied = Sample(fraction=0.25).apply(documents(["text"] * 1000), seed=7)
    >>> applied.batch.num_rows, applied.dropped
    (251, {'not_sampled': 749})
    """

    version: ClassVar[int] = 2

    fraction: float
    """The probability, 0 to 1; the other records are dropped as `not_sampled`."""
    salt: str = ""
    """Any text: another salt makes another choice."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UsageError(f"fraction must be from 0 to 1, not {self.fraction}")

    def drop_reasons(self, batch: pa.RecordBatch, seed: int) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        hashes = hash_origins(seed, f"sample/{self.salt}", batch.column(ORIGIN))
        is_dropped = (hashes >= hash_bound(self.fraction)) & is_for_training(batch)
        return is_dropped.astype(np.uint8), ("not_sampled",)


OVER_LIMIT = "over_limit"
"""The reason for dropping the other records."""


class Limit(GlobalStep, tag="limit", frozen=True, kw_only=True):
    """Keep the first `max_records` training records of each source, in path order; drop the others as `over_limit`.

    Records of other splits than `train` are all kept.

    The step needs all records, so it ends a stage.

    >>> Limit(max_records=5).shares([3, 0, 4, 2])
    [3, 0, 2, 0]
    """

    version: ClassVar[int] = 2

    max_records: int
    """The number of records that are kept of each source."""

    def applies_to_split(self, split: str) -> bool:
        """Whether the limit applies to the records of a split."""
        return split == TRAIN

    def max_first(self, split: str) -> int | None:
        return self.max_records if self.applies_to_split(split) else None

    def __post_init__(self) -> None:
        if self.max_records < 0:
            raise UsageError(f"max_records must be at least 0, not {self.max_records}")

    def shares(self, counts: Iterable[int]) -> list[int]:
        """Return how many of the first records to keep of each part of a source, from how many each part has."""
        ends = [0, *accumulate(counts)]
        bounded = [min(end, self.max_records) for end in ends]
        return [stop - start for start, stop in pairwise(bounded)]


class FirstRecords(Limit, tag="limit", frozen=True, kw_only=True):
    """The limit of a trial run (`--limit`): the first records of every split."""

    def applies_to_split(self, split: str) -> bool:  # noqa: ARG002
        return True


class KeepStage(GlobalStep, tag="keep_stage", frozen=True, kw_only=True):
    """The end of a stage that a recipe with `keep_stages` has before its last filter and before `pack`."""

    traits: ClassVar[StepTraits] = StepTraits(is_added_by_plan=True)


class Shuffle(GlobalStep, tag="shuffle", frozen=True, kw_only=True):
    """Put the records of each source in a random order; the same seed gives the same order.

    The shuffle is out of core: it handles any amount of data, in buckets of about 64 MiB. Splits other than `train`
    keep their order. Each source stays in a separate folder, since streams mix sources while they read. With `across:
    sources` they are written as one lane, `train/mixed/`: each in its random order, interleaved so that every beginning
    holds each source in its share.

    The step ends a stage.

    >>> from gristmill.core.records import documents, texts
    >>> texts(Shuffle().sort(documents(list("abcdef")), seed=1))
    ['b', 'e', 'c', 'a', 'f', 'd']
    """

    version: ClassVar[int] = 2
    traits: ClassVar[StepTraits] = StepTraits(disk_copies=2)

    across: Literal["sources"] | None = None
    """`sources`: one lane of all sources, as by [`mix`](#mix). Among the common steps only."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_source_field(schema) if self.joins_sources else schema

    @property
    def joins_sources(self) -> bool:
        return self.across == "sources"

    def sample_step(self) -> LocalStep | None:
        return NameSource(source="") if self.joins_sources else None

    def keys(self, batch: pa.RecordBatch, seed: int, epoch: int = 0) -> NDArray[np.uint64]:
        """Return the place of each record in the whole order; each epoch of a `mix` has other places."""
        return hash_origins(seed, f"shuffle/{epoch}" if epoch else "shuffle", batch.column(ORIGIN))

    def sort(self, batch: pa.RecordBatch, seed: int, epoch: int = 0) -> pa.RecordBatch:
        """Sort the records by their keys; records with equal keys by their origins."""
        origin = batch.column(ORIGIN)
        fields = [origin.field(name).to_numpy(zero_copy_only=False) for name in ("part", "position", "file")]
        return batch.take(np.lexsort((*fields, self.keys(batch, seed, epoch))))


_NAMES = ("validation", "test", TRAIN)


class Split(LocalStep, tag="split", frozen=True, kw_only=True):
    """Hold out training records for validation and test. Records that are held out already stay where they are.

    `validation` and `test` are fractions (0.005) or numbers of records (1000, over all sources). By default the text
    decides, so that copies of a text are in the same split; `by: origin` treats each record on its own, and
    `by: domain` keeps records with the same value in the column `domain` together. Numbers are filled in the order of
    the hash: if the last chosen value has copies, they are included, so a split may be that much larger.

    A split that exists already is refused. Numbers of records count over all sources together and end a stage.

    >>> from gristmill.core.records import documents
    >>> applied = Split(validation=0.4).apply(documents(["one", "two", "three", "one"]), seed=8)
    >>> applied.batch.column("__split__").to_pylist()
    ['validation', 'train', 'train', 'validation']
    """

    version: ClassVar[int] = 2
    preserves_text: ClassVar[bool] = True

    validation: int | float = 0
    """A fraction (0.005) or a number of records (1000)."""
    test: int | float = 0
    """The same kind as `validation`."""
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
