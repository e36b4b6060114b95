"""`keep_best` and `cap`: the best share of all documents by a score, and at most a number of documents of each host.

Documents are ranked in groups: by a key (smaller is better), then by source, file and position. Both steps keep a
beginning of every group. The barrier sorts them out of core; what is here are functions of arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.checks import check_positive_number, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS
from gristmill.core.seeds import hash_texts
from gristmill.core.step import GlobalStep, check_choices
from gristmill.steps.column_names import require_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOURCE = "source"
HOST = "host"
_HOST = r"^(?:[A-Za-z][A-Za-z0-9+.-]*://)?(?:[^/?#@]*@)?(?P<host>[^/?#:]+)"


class KeepBest(GlobalStep, tag="keep_best", frozen=True, kw_only=True):
    """Keep the training documents with the best values of a column; drop the others as `not_best`.

    `by` is a column of numbers, such as a score that a filter adds with `keep_scores: true`. One of `share`, `count`
    and `tokens` says how many stay: of all sources together, or `per` source or value of a column. Exactly that many
    stay: among equal values the document that comes first by source, file and position is the better one. Documents
    without a value are the worst. Records of other splits than `train` are all kept.

    The step needs all records, so it ends a stage. Only numbers of 32 bytes a document are sorted, out of core; the
    result is the same for any number of workers.

    >>> batch = pa.record_batch({"score": [0.2, 0.9, None]})
    >>> KeepBest(by="score", count=1).find_keys(batch).argsort().tolist()
    [1, 0, 2]
    """

    version: ClassVar[int] = 1
    reason: ClassVar[str] = "not_best"

    by: str
    """A column of numbers."""
    share: float | None = None
    """The share that is kept, `0.1`; of each group, rounded to whole documents."""
    count: int | None = None
    """The number of documents that are kept: `1M`."""
    tokens: int | None = None
    """The best documents that have at most this many tokens together: `20G`. After `tokenize`, before `pack`."""
    per: str | None = None
    """`source` or a column, such as `language`: that many of each source or value. Null: of all documents together."""
    order: Literal["highest", "lowest"] = "highest"
    """Which values are the best."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        amounts = {"share": self.share, "count": self.count, "tokens": self.tokens}
        chosen = [name for name, amount in amounts.items() if amount is not None]
        if len(chosen) != 1:
            raise UsageError(
                f"keep_best needs one of share, count and tokens, not {' and '.join(chosen) or 'none'}",
                help="write keep_best: {by: score, share: 0.1}",
            )
        if self.share is not None and not 0 < check_positive_number("share", self.share) <= 1:
            raise UsageError(f"share must be above 0 and at most 1, not {self.share}")
        for name in ("count", "tokens"):
            if amounts[name] is not None:
                check_whole_number(name, amounts[name], least=1)

    def columns_needed(self) -> tuple[str, ...]:
        return (self.by, *((self.per,) if self.per not in (None, SOURCE) else ()))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        _require_numbers("keep_best", self.by, schema)
        if self.per not in (None, SOURCE):
            require_column("keep_best", str(self.per), schema)
        if self.tokens is not None and INPUT_IDS not in schema.names:
            raise UsageError("keep_best: there are no tokens to count", help="put it after tokenize, or use count")
        return schema

    def find_groups(self, batch: pa.RecordBatch, source: str) -> NDArray[np.uint64]:
        """Find the group of each document."""
        if self.per is None or self.per == SOURCE:
            names = pa.array(["" if self.per is None else source], pa.string())
            return np.repeat(hash_texts(0, "keep_best", names), batch.num_rows)
        return hash_texts(0, "keep_best", batch.column(self.per).cast(pa.string()))

    def find_keys(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """Find the keys that documents are ranked by."""
        return _make_keys(batch.column(self.by), highest=self.order == "highest")

    def find_values(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Find the values that documents are ranked by from their keys; NaN without a value.

        >>> step = KeepBest(by="score", count=1)
        >>> step.find_values(step.find_keys(pa.record_batch({"score": [0.2, -9.0, None]}))).tolist()
        [0.2, -9.0, nan]
        """
        ascending = ~keys if self.order == "highest" else keys
        return np.where(ascending >> np.uint64(63), ascending ^ np.uint64(1 << 63), ~ascending).view(np.float64)

    def find_amounts(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Find how much each document counts."""
        if self.tokens is None:
            return np.ones(batch.num_rows, np.int64)
        lengths: NDArray[np.int64] = pc.list_value_length(batch.column(INPUT_IDS)).to_numpy().astype(np.int64)
        return lengths

    def find_kept(
        self, ranks: NDArray[np.int64], amounts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell which documents stay.

        Args:
            ranks: How many better documents are in the group of each.
            amounts: How much it and all better ones count.
            sizes: How many documents are in its group.
        """
        if self.tokens is not None:
            return amounts <= self.tokens
        most = np.int64(self.count or 0) if self.share is None else np.floor(sizes * self.share + 0.5)
        is_kept: NDArray[np.bool_] = ranks < most
        return is_kept


class Cap(GlobalStep, tag="cap", frozen=True, kw_only=True):
    """Keep at most `max` training documents of each host, author or topic; drop the others as `over_cap`.

    `by: host` takes the host of the column `url`; any other name is a column. Documents without a value are all kept.
    The first ones stay, by source, file and position; with `keep: best` those with the highest `score`. Records of
    other splits than `train` are all kept.

    The step needs all records, so it ends a stage. Only numbers of 32 bytes a document are sorted, out of core; the
    result is the same for any number of workers.

    >>> batch = pa.record_batch({"url": ["http://a.org/1", "https://A.org:80/2", "http://b.org"]})
    >>> groups = Cap(by="host", max=1).find_groups(batch, "web")
    >>> groups[0] == groups[1] != groups[2]
    np.True_
    """

    version: ClassVar[int] = 1
    reason: ClassVar[str] = "over_cap"

    by: str
    """`host` or a column."""
    max: int
    """How many documents of one value are kept: `1000`, `10k`."""
    keep: Literal["first", "best"] = "first"
    """Which ones."""
    score: str | None = None
    """For `keep: best`: a column of numbers; the highest ones stay."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        check_whole_number("max", self.max, least=1)
        if (self.keep == "best") != (self.score is not None):
            raise UsageError(
                "cap: keep: best and score belong together",
                help="write cap: {by: host, max: 1000, keep: best, score: …}",
            )

    def columns_needed(self) -> tuple[str, ...]:
        return (self._column, *(() if self.score is None else (self.score,)))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        require_column("cap", self._column, schema)
        if self.score is not None:
            _require_numbers("cap", self.score, schema)
        return schema

    @property
    def _column(self) -> str:
        return "url" if self.by == HOST else self.by

    def find_groups(self, batch: pa.RecordBatch, source: str) -> NDArray[np.uint64]:  # noqa: ARG002
        """Find the group of each document; 0: it has none."""
        values = batch.column(self._column).cast(pa.string())
        if self.by == HOST:
            values = pc.utf8_lower(pc.struct_field(pc.extract_regex(values, _HOST), "host"))
        groups = hash_texts(0, "cap", values) | np.uint64(1)
        groups[values.is_null().to_numpy(zero_copy_only=False)] = 0
        return groups

    def find_keys(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """Find the keys that documents are ranked by."""
        if self.score is None:
            return np.zeros(batch.num_rows, np.uint64)
        return _make_keys(batch.column(self.score), highest=True)

    def find_values(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Find no values: the report shows none for a cap."""
        return np.empty(0)

    def find_amounts(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Find how much each document counts: all the same, or nothing without a group."""
        return np.ones(batch.num_rows, np.int64)

    def find_kept(
        self,
        ranks: NDArray[np.int64],
        amounts: NDArray[np.int64],  # noqa: ARG002
        sizes: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.bool_]:
        """Tell which documents stay."""
        return ranks < self.max


def _require_numbers(step: str, column: str, schema: pa.Schema) -> None:
    require_column(step, column, schema)
    kind = schema.field(column).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UsageError(f'{step}: needs a column of numbers, and "{column}" is {kind}')


def _make_keys(values: pa.Array, *, highest: bool) -> NDArray[np.uint64]:
    """Make numbers in the order of values, the best first; what is no number comes last.

    >>> _make_keys(pa.array([-1.0, 2.0, 0.0, None]), highest=True).argsort().tolist()
    [1, 2, 0, 3]
    """
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0  # -0.0 equals 0.0
    bits = numbers.view(np.uint64)
    # Bits of floats are in the order of their values, if those of negative ones are turned around.
    ascending = np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))
    keys = ~ascending if highest else ascending
    return np.where(np.isnan(numbers), np.uint64(2**64 - 1), keys)
