"""Batches of samples by their rows: read, decoded and transformed where the batch is made, in a loader's worker.

Row p is the same sample, no matter what was read before it. A sample that fails raises, or is replaced by another one
of its lane, chosen by a hash of the seed, the row and the attempt: so the order stays a function of the row alone. The
same holds for a sample that `transform` skips by returning None. Both are counted, and too many are an error.

In a batch, arrays of equal shapes and numbers become one array, everything else a list. Each sample is copied once,
into its place in that array, which a trainer may want in pinned memory.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.errors import DamagedDatasetError, GristmillError, SampleError, UsageError
from gristmill.core.media import (
    ANY_IMAGE,
    IMAGE_EXTENSIONS,
    PATH_SUFFIX,
    find_member,
    is_media,
    list_image_columns,
)
from gristmill.core.records import KEY
from gristmill.core.seeds import derive_key
from gristmill.stream.collate import INPUT_IDS, Batch, choose_pad_id, collate, find_width
from gristmill.stream.rows.row_details import RowSources
from gristmill.stream.rows.row_reader import StreamReader
from gristmill.stream.rows.sample_shards import MemberError, SampleShards
from gristmill.stream.rows.tokenized import SampleIds, make_addresses
from gristmill.stream.stream_kernels import A_FILLED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.storage.user_cache import BlockCache
    from gristmill.stream.lanes.arguments import StreamArguments
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane


_MAX_FAILURES = 16
"""After this many replacements failed too, the sample fails: then it is not the samples."""
_MAX_SKIPS = 1024
"""After this many samples for one row were skipped, `transform` skips all."""
_FEW = 10
"""This many samples may be replaced at any share: of the first rows it says nothing."""


@dataclass(slots=True)
class Losses:
    """The numbers of samples that were read, replaced and skipped."""

    num_read: int = 0
    num_replaced: int = 0
    num_skipped: int = 0

    def add(self, other: Losses) -> None:
        self.num_read += other.num_read
        self.num_replaced += other.num_replaced
        self.num_skipped += other.num_skipped


def check_losses(losses: Losses, arguments: StreamArguments, readers_have: str) -> None:
    """Raise `SampleError` if more samples were replaced or skipped than the arguments allow."""
    for count, what, name, most in (
        (losses.num_replaced, "could not be used", "max_replaced", arguments.samples.max_replaced),
        (losses.num_skipped, "were skipped by transform", "max_skipped", arguments.samples.max_skipped),
    ):
        if count > max(_FEW, most * losses.num_read):
            share = count / losses.num_read
            raise SampleError(
                f"{count:,} of the {losses.num_read:,} samples that {readers_have} read {what}: {share:.1%}, and "
                f"{name} is {most:.1%}",
                help=f"find out why, or allow more: Samples({name}={min(2 * share, 1):.2f})",
            )


class SampleRows(StreamReader):
    """Makes batches of the samples of a stream."""

    table: SampleShards

    def __init__(
        self,
        lanes: list[Lane],
        order: RowOrder,
        arguments: StreamArguments,
        num_rows: int | None,
        cache: BlockCache | None,
    ) -> None:
        super().__init__(lanes, order, arguments, num_rows, cache)
        if self._collate.token_columns:
            raise UsageError(
                "token_columns are stored with rows of tokens, and these are samples", help="leave them out"
            )
        samples = arguments.samples
        self._ids = SampleIds(samples.ids, samples.tokenizing) if samples.makes_tokens else None
        """What makes rows of tokens of samples, if the stream does."""
        schemas = {id(shard.schema): shard.schema for shard in self._shards}  # all shards of a dataset share one
        columns = {key: _find_media(schema) for key, schema in schemas.items()}
        self._media = [columns[id(shard.schema)] for shard in self._shards]
        self._losses = Losses()
        """Those of this process."""
        self._counting = threading.Lock()
        self._has_warned = False
        self.close_files()

    def _open_table(self) -> None:
        self.table = SampleShards(self._shards, self._cache)
        self._row_sources = RowSources(self._shards, self._sources)

    def take(
        self,
        rows: NDArray[np.int64],
        *,
        first_row: int,
        next_row: int,
        end: int | None = None,
        new: Callable[..., Any] = np.empty,
    ) -> Batch:
        """Make a batch as `StreamReader.take` says. Empty rows are blank samples shaped like the step's first one."""
        end = self._num_rows if end is None else end
        is_real = np.ones(len(rows), bool) if end is None else rows < end
        samples, losses = self._read_samples(rows[is_real])
        if self._ids is not None:
            batch = self._join_tokens(self._ids, samples, rows, is_real, (first_row, next_row, end), new)
            batch.num_replaced, batch.num_skipped = losses.num_replaced, losses.num_skipped
            return batch
        if len(samples) < len(rows):
            model = samples[0] if samples else self.take_samples(np.array([first_row]))[0]
            samples += [make_blank(model) for _ in range(len(rows) - len(samples))]
        batch = self._describe(Batch(join_samples(samples, new)), rows, is_real, losses)
        batch.first_row = first_row
        batch.next_row = next_row if end is None else min(next_row, end)
        return batch

    def _describe(self, batch: Batch, rows: NDArray[np.int64], is_real: NDArray[np.bool_], losses: Losses) -> Batch:
        """Set the attributes of a batch of samples, except for its place in the order."""
        batch.sources, _ = self._find_sources(rows, is_real)
        batch.tokens = np.zeros(len(rows), np.int64)
        batch.num_positions = 0
        batch.num_replaced, batch.num_skipped = losses.num_replaced, losses.num_skipped
        return batch

    def _join_tokens(
        self,
        finder: SampleIds,
        samples: list[dict[str, Any]],
        rows: NDArray[np.int64],
        is_real: NDArray[np.bool_],
        span: tuple[int, int, int | None],
        new: Callable[..., Any],
    ) -> Batch:
        """Make a batch of tokens of samples, as `RowReader` makes it of stored rows."""
        first_row, next_row, end = span
        next_row = next_row if end is None else min(next_row, end)
        sources, shards = self._find_sources(rows, is_real)
        ids = finder.find(samples)
        addresses, buffers = make_addresses(ids, shards)
        whole = addresses
        if not samples and next_row > first_row:  # as wide as the global batch: no tensor may have a dimension of 0
            global_ids = finder.find(self.take_samples(np.arange(first_row, next_row)))
            whole, buffers = make_addresses(global_ids, np.zeros(len(global_ids), np.int64))
        width = find_width(whole, self._collate)
        batch = Batch(collate(addresses, self._collate, width, choose_pad_id(self._collate, finder.pad_id), new))
        del buffers
        batch.first_row = first_row
        batch.next_row = next_row
        batch.sources = sources
        batch.tokens = addresses[:, A_FILLED].copy()
        batch.num_positions = batch[INPUT_IDS].size
        return batch

    def _find_sources(
        self, rows: NDArray[np.int64], is_real: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the source and the shard of each row; -1 for rows that only fill up a batch."""
        indices = np.where(is_real, self._order(rows).indices, -1)
        shards = np.where(is_real, self.table.shards_of(indices), -1)
        return self._row_sources(shards, indices), shards

    def take_samples(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the samples of some rows, decoded and transformed."""
        return self._read_samples(rows)[0]

    def take_described(self, rows: NDArray[np.int64]) -> tuple[list[dict[str, Any]], Batch]:
        """Like `take_samples`, with a batch without arrays for the accounting."""
        samples, losses = self._read_samples(rows)
        return samples, self._describe(Batch(), rows, np.ones(len(rows), bool), losses)

    def _read_samples(self, rows: NDArray[np.int64]) -> tuple[list[dict[str, Any]], Losses]:
        self.close_files_of_parent()
        ordered, losses = self._order(rows), Losses()
        numbers = zip(rows.tolist(), ordered.lanes.tolist(), ordered.indices.tolist(), strict=True)
        samples = [self._take_sample(row, lane, index, losses) for row, lane, index in numbers]
        with self._counting:
            self._losses.add(losses)
            check_losses(self._losses, self._arguments, "this process has")
        return samples, losses

    def _take_sample(self, row: int, lane: int, index: int, losses: Losses) -> dict[str, Any]:
        num_failures = 0
        for attempt in range(_MAX_SKIPS):
            losses.num_read += 1
            key: object = None
            try:
                record = self.table.read(index)
                key = record.get(KEY)
                sample = self._prepare(record, self._media[self._find_shard(index)])
            except DamagedDatasetError:
                raise
            except Exception as error:
                key = error.key if isinstance(error, MemberError) else key
                failure = self._make_error(row, index, key, error)
                is_last = num_failures == _MAX_FAILURES
                if isinstance(error, UsageError) or self._arguments.samples.on_error != "replace" or is_last:
                    raise failure from error
                if not self._has_warned:  # later ones are only counted
                    self._has_warned = True
                    warnings.warn(
                        f"{failure.message}; another sample takes its place. Later ones are only counted in accounting",
                        stacklevel=2,
                    )
                num_failures += 1
                losses.num_replaced += 1
            else:
                if sample is not None:
                    return sample
                losses.num_skipped += 1
            # Another sample of the lane, by the seed, the row and the attempt alone.
            number = derive_key(self._arguments.seed, f"replace/{row}/{attempt}") % int(self._order.sizes[lane])
            index = int(self._order.sizes[:lane].sum()) + number
        refusal = UsageError(f"transform returned None for {_MAX_SKIPS:,} samples, so it skips all of them")
        raise self._make_error(row, index, None, refusal)

    def _find_shard(self, index: int) -> int:
        return int(self.table.shards_of(np.array([index]))[0])

    def _prepare(self, record: dict[str, Any], media: _MediaColumns) -> dict[str, Any] | None:
        decode, transform = self._arguments.samples.decode or "numpy", self._arguments.samples.transform
        for name in media.structs:
            _unwrap(record, name)
        images = media.images
        if images is None:
            images = [name for name in record if name.rpartition(".")[2] in IMAGE_EXTENSIONS]
        for name in images if decode != "bytes" else ():
            if record.get(name) is not None:
                record[name] = _decode(record[name], decode)
        if transform is None:
            return record
        sample = transform(record)
        if not isinstance(sample, dict | None):
            raise UsageError(
                f"transform returned {type(sample).__name__}, not a dict",
                help="return the sample as a dict, or None to skip it",
            )
        return sample

    def _make_error(self, row: int, index: int, key: object, error: Exception) -> GristmillError:
        number = self._find_shard(index)
        shard = self.table.shards[number]
        place = f"sample {index - int(self.table.ends[number]) + shard.rows:,} of {shard.path}"
        if key is not None:
            place = f"{key!r}, {place}"
        if isinstance(error, GristmillError):
            error.add_note(f"in row {row:,} of the stream: {place}")
            return error
        advice = "Samples(on_error='replace') takes another sample in its place"
        if self._arguments.samples.on_error == "replace":
            advice = f"the {_MAX_FAILURES} samples that were tried in its place cannot be used, either"
        return SampleError(
            f"row {row:,} of the stream ({place}) cannot be used: {type(error).__name__}: {error}", help=advice
        )


class _MediaColumns(NamedTuple):
    """The columns of a dataset that hold images and sounds."""

    structs: list[str]
    """Those of tables of `datasets`: bytes, and the path that they had."""
    images: list[str] | None
    """Those that are decoded; None: only a sample can tell."""


def _find_media(schema: pa.Schema) -> _MediaColumns:
    structs = [field.name for field in schema if is_media(field.type)]
    images = [name for name in structs if find_member(schema.field(name)) == ANY_IMAGE]
    return _MediaColumns(structs, [*list_image_columns(schema), *images] if len(schema) else None)


def _unwrap(record: dict[str, Any], name: str) -> None:
    """Replace the struct of an image or sound by its bytes, and keep its path in another column, as a recipe does."""
    if record[name] is None:
        return
    content, path = record[name]["bytes"], record[name]["path"]
    if content is None and path is not None:
        raise ValueError(f"{name} is only the path {path!r}: its bytes are not in the table")
    record[name] = content
    if KEY not in record:
        record.setdefault(name + PATH_SUFFIX, path)


def _decode(content: bytes, decode: Any) -> Any:
    if callable(decode):
        return decode(content)
    from gristmill.images.codec import decode_image  # noqa: PLC0415  (raw bytes need no Pillow)

    image = decode_image(content)
    return np.asarray(image) if decode == "numpy" else image


def join_samples(samples: Sequence[dict[str, Any]], new: Callable[..., Any]) -> dict[str, Any]:
    """Join samples into a batch, column by column. In a column that some samples lack, None stands for them.

    >>> batch = join_samples([{"x": np.zeros(2), "n": 1}, {"x": np.ones(2), "n": 2}], np.empty)
    >>> batch["x"].shape, batch["n"].tolist()
    ((2, 2), [1, 2])
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _join_values([sample.get(name) for sample in samples], new) for name in names}


def _join_values(values: list[Any], new: Callable[..., Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and all(
        isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype.kind in "biufc" for value in values
    ):  # numbers: there are no tensors of texts
        joined = new((len(values), *first.shape), str(np.result_type(*{value.dtype for value in values})))
    elif hasattr(first, "new_empty") and all(
        type(value) is type(first) and value.shape == first.shape and value.dtype == first.dtype for value in values
    ):
        joined = first.new_empty((len(values), *first.shape))  # tensors, without importing torch
    elif all(isinstance(value, (int, float, np.number, np.bool_)) for value in values):
        return np.array(values)
    else:  # views of decoded images are copied: torch warns of tensors that must not be written
        return [
            value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value for value in values
        ]
    for number, value in enumerate(values):
        joined[number] = value
    return joined


def make_blank(sample: dict[str, Any]) -> dict[str, Any]:
    """Make a sample that only fills up a batch: the shapes of another one, and zeros."""
    return {name: _make_blank_value(value) for name, value in sample.items()}


def _make_blank_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    if hasattr(value, "new_zeros"):
        return value.new_zeros(value.shape)
    if isinstance(value, (str, bytes, int, float, bool, list, dict)):
        return type(value)()
    if hasattr(value, "point"):  # a Pillow image
        return value.point(lambda _: 0)
    return value
